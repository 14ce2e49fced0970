"""Workers with the runtime imported, kept warm so that a load is mostly the runtime's own time."""

import logging
from collections import deque
from typing import Final

import trio
from attrs import define, field

from rustedvino.hub.process import WorkerProcess, WorkerStartError

log = logging.getLogger(__name__)

START_BACKOFF_BASE_SECS: Final = 1.0
START_BACKOFF_MAX_SECS: Final = 60.0


@define(eq=False)
class SparePool:
    """Keeps ``count`` idle workers; ``take`` hands one out or starts one.

    All worker processes run in ``nursery``, whoever uses them: it ends last at shutdown.
    """

    nursery: trio.Nursery
    count: int
    stall_secs: float
    problem: str | None = None
    """Why workers cannot be started, while they cannot."""
    _ready: deque[WorkerProcess] = field(factory=deque)
    _wanted: trio.Event = field(factory=trio.Event)

    async def run(self) -> None:
        """Keep the pool filled until cancelled. A runtime whose import dies is tried again with backoff."""
        failures = 0
        while True:
            self._drop_dead()
            if len(self._ready) >= self.count:
                self._wanted = trio.Event()
                await self._wanted.wait()
                continue
            try:
                worker = await self._start()
            except WorkerStartError as error:
                failures += 1
                self.problem = str(error)
                delay = min(START_BACKOFF_BASE_SECS * 2 ** (failures - 1), START_BACKOFF_MAX_SECS)
                log.error("no spare worker: %s; next attempt in %g s", error, delay)
                await trio.sleep(delay)
                continue
            failures = 0
            self.problem = None
            self._ready.append(worker)
            self.nursery.start_soon(self._notice_end, worker)

    async def take(self) -> WorkerProcess:
        """Return a worker that has said hello. Raises WorkerStartError."""
        self._drop_dead()
        if self._ready:
            worker = self._ready.popleft()
            self._wanted.set()
            return worker
        try:
            worker = await self._start()
        except WorkerStartError as error:
            self.problem = str(error)
            raise
        self.problem = None
        return worker

    def idle(self) -> list[WorkerProcess]:
        """The spares that are ready now."""
        self._drop_dead()
        return list(self._ready)

    async def _start(self) -> WorkerProcess:
        worker = WorkerProcess(role="model", stall_secs=self.stall_secs)
        await self.nursery.start(worker.run)
        try:
            await worker.hello()
        except trio.Cancelled:
            worker.kill("killed", "its start was cancelled")
            raise
        return worker

    async def _notice_end(self, worker: WorkerProcess) -> None:
        await worker.ended.wait()
        if worker in self._ready:
            self._ready.remove(worker)
            self._wanted.set()

    def _drop_dead(self) -> None:
        for worker in [worker for worker in self._ready if worker.ended.is_set()]:
            self._ready.remove(worker)
