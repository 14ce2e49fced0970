"""The utility worker: untrusted short work in a process of its own, killed when it takes too long."""

import logging
from typing import Any, Final

import trio
from attrs import define, field

from rustedvino.hub.calls import Calls
from rustedvino.hub.errors import EngineFailed
from rustedvino.hub.process import WorkerProcess, WorkerStartError, describe_end
from rustedvino.worker.protocol import Message, ProtocolError

log = logging.getLogger(__name__)

DEFAULT_CALL_SECS: Final = 2.0
QUEUE_SECS: Final = 30.0
"""How long a call waits for those before it."""


class UtilityTimeout(Exception):
    """The work did not end within its bound; the process was killed."""


@define(eq=False)
class UtilityWorker:
    """One shared, restartable process; calls run one at a time, in order."""

    nursery: trio.Nursery
    stall_secs: float
    restarts: int = 0
    _calls: Calls = field(factory=Calls)
    _lock: trio.Lock = field(factory=trio.Lock)
    _worker: WorkerProcess | None = None

    async def call(self, method: str, arguments: dict[str, Any], *, bound_secs: float = DEFAULT_CALL_SECS) -> Any:
        """Run one call. Raises UtilityTimeout (the work was killed), BadInput or EngineFailed, WorkerLost,
        WorkerStartError. Cancellation kills the process if the call was running."""
        with trio.fail_after(QUEUE_SECS):
            await self._lock.acquire()
        try:
            worker = await self._ready_worker()
            try:
                with trio.move_on_after(bound_secs):
                    return await self._calls.make(worker, method, arguments)
            except trio.Cancelled:
                worker.kill("killed", f"{method} was cancelled")
                raise
            worker.kill("stall", f"{method} took longer than {bound_secs:g} s")
            await worker.ended.wait()
            raise UtilityTimeout(f"it took longer than {bound_secs:g} s")
        finally:
            self._lock.release()

    def kill(self) -> None:
        """End the process; the next call starts another."""
        if self._worker is not None:
            self._worker.kill("killed", "asked to end")

    @property
    def pid(self) -> int | None:
        """Process id of the running worker."""
        running = self._worker is not None and not self._worker.ended.is_set()
        return self._worker.pid if running and self._worker is not None else None

    async def start(self) -> None:
        """Start the process ahead of the first call. Raises WorkerStartError."""
        async with self._lock:
            await self._ready_worker()

    async def _ready_worker(self) -> WorkerProcess:
        if self._worker is not None and not self._worker.ended.is_set():
            return self._worker
        if self._worker is not None:
            self.restarts += 1
        worker = WorkerProcess(role="utility", stall_secs=self.stall_secs, label="utility", handler=self._handle)
        await self.nursery.start(worker.run)
        try:
            await worker.hello()
        except trio.Cancelled:
            worker.kill("killed", "its start was cancelled")
            raise
        self._worker = worker
        self.nursery.start_soon(self._notice_end, worker)
        return worker

    async def _notice_end(self, worker: WorkerProcess) -> None:
        await worker.ended.wait()
        assert worker.end is not None
        self._calls.fail_all(describe_end(worker.end), retry_after_secs=1.0)

    def _handle(self, message: Message) -> None:
        if message[0] not in ("reply", "call_error"):
            raise ProtocolError(f"a utility worker sent {message[0]}")
        self._calls.handle(message)


__all__ = ["DEFAULT_CALL_SECS", "EngineFailed", "UtilityTimeout", "UtilityWorker", "WorkerStartError"]
