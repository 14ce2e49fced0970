"""Workers with the runtime imported, kept warm so that a load is mostly the runtime's own time."""

import logging
from collections import deque
from typing import Final

import trio
from attrs import define, field

from rustedvino.hub.process import Launcher, WorkerProcess, WorkerStartError, describe_end
from rustedvino.worker import platform

log = logging.getLogger(__name__)

START_BACKOFF_BASE_SECS: Final = 1.0
START_BACKOFF_MAX_SECS: Final = 60.0
MAX_COUNTED_FAILURES: Final = 16


@define(eq=False)
class SparePool:
    """Keeps ``count`` idle workers; ``take`` hands one out or starts one.

    All worker processes run in ``nursery``, whoever uses them: it ends last at shutdown.
    """

    nursery: trio.Nursery
    count: int
    stall_secs: float
    launcher: Launcher = platform.spawn_worker
    problem: str | None = None
    """Why workers cannot be started, while they cannot."""
    _ready: deque[WorkerProcess] = field(factory=deque)
    _wanted: trio.Event = field(factory=trio.Event)
    _failures: int = 0
    """Starts that failed and spares that died, since one was last of use."""

    async def run(self) -> None:
        """Keep the pool filled until cancelled, with backoff when the import of the runtime or a spare dies."""
        while True:
            if len(self._ready) >= self.count:
                self._wanted = trio.Event()
                await self._wanted.wait()
                continue
            if self._failures:
                delay = min(START_BACKOFF_BASE_SECS * 2.0 ** (self._failures - 1), START_BACKOFF_MAX_SECS)
                log.error("no spare worker: %s; next attempt in %g s", self.problem, delay)
                await trio.sleep(delay)
            try:
                worker = await self._start()
            except WorkerStartError as error:
                self._failed(str(error))
                continue
            self.problem = None
            self._ready.append(worker)
            self.nursery.start_soon(self._notice_end, worker)

    async def take(self) -> WorkerProcess:
        """Return a worker that has said hello. Raises WorkerStartError."""
        for worker in self.idle():
            self._ready.remove(worker)
            self._failures = 0
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
        return [worker for worker in self._ready if worker.alive]

    async def _start(self) -> WorkerProcess:
        worker = WorkerProcess(role="model", stall_secs=self.stall_secs, launcher=self.launcher)
        await worker.start(self.nursery)
        return worker

    async def _notice_end(self, worker: WorkerProcess) -> None:
        await worker.ended.wait()
        if worker in self._ready:
            self._ready.remove(worker)
            assert worker.end is not None
            self._failed(describe_end(worker.end))
            self._wanted.set()

    def _failed(self, problem: str) -> None:
        self._failures = min(self._failures + 1, MAX_COUNTED_FAILURES)
        self.problem = problem
