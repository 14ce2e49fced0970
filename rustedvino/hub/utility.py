"""The utility worker: untrusted short work in a process of its own, killed when it takes too long."""

import logging
from typing import Any, Final

import trio
from attrs import define, field

from rustedvino.hub.calls import Calls
from rustedvino.hub.errors import EngineFailed, WorkerLost
from rustedvino.hub.process import Launcher, WorkerEnd, WorkerProcess, WorkerStartError, describe_end
from rustedvino.worker import platform
from rustedvino.worker.protocol import Message, ProtocolError

log = logging.getLogger(__name__)

DEFAULT_CALL_SECS: Final = 2.0
PATIENCE_SECS: Final = 10.0
"""How much longer a call may take by the clock: on a busy machine a worker, at its niceness, gets little time."""
QUEUE_SECS: Final = 30.0
"""How long a call waits for those before it."""
RETRY_AFTER_SECS: Final = 1.0


class UtilityTimeout(Exception):
    """The work did not end within its bound; the process was killed. ``starved``: by the clock, while the process had
    not got that much processor time, which says nothing about the work."""

    def __init__(self, message: str, *, starved: bool = False) -> None:
        super().__init__(message)
        self.starved = starved


class UtilityCrashed(WorkerLost):
    """The process ended by itself during the work, and not by a kill from outside: the work may well be the cause."""


@define(eq=False)
class UtilityWorker:
    """One shared, restartable process; calls run one at a time, in order."""

    nursery: trio.Nursery
    stall_secs: float
    launcher: Launcher = platform.spawn_worker
    restarts: int = 0
    _calls: Calls = field(factory=Calls)
    _lock: trio.Lock = field(factory=trio.Lock)
    _worker: WorkerProcess | None = None

    async def call(
        self,
        method: str,
        arguments: dict[str, Any],
        *,
        bound_secs: float = DEFAULT_CALL_SECS,
        queue_secs: float = QUEUE_SECS,
        again: bool = True,
    ) -> Any:
        """Run one call; one whose worker is lost is made once more if ``again``, since it need not be the cause.

        ``bound_secs`` is processor time, and PATIENCE_SECS more by the clock.
        Raises UtilityTimeout (the work was killed), BadInput or EngineFailed, WorkerLost or its UtilityCrashed,
        WorkerStartError, and trio.TooSlowError when the calls before it took longer than ``queue_secs``.
        Cancellation kills the process if the call was running."""
        with trio.fail_after(queue_secs):
            await self._lock.acquire()
        try:
            try:
                return await self._attempt(method, arguments, bound_secs)
            except WorkerLost as error:
                if not again:
                    raise
                log.warning("the utility worker was lost in %s and is started again: %s", method, error)
            return await self._attempt(method, arguments, bound_secs)
        finally:
            self._lock.release()

    async def _attempt(self, method: str, arguments: dict[str, Any], bound_secs: float) -> Any:
        worker = await self._ready_worker()
        over, spent = trio.CancelScope(), trio.Event()
        try:
            with trio.move_on_after(bound_secs + PATIENCE_SECS) as scope:
                self.nursery.start_soon(_end_when_spent, worker.pid, bound_secs, scope, over, spent)
                try:
                    return await self._calls.make(worker, method, arguments)
                finally:
                    over.cancel()
        except trio.Cancelled:
            worker.kill("killed", f"{method} was cancelled")
            raise
        worker.kill("stall", f"{method} took longer than {bound_secs:g} s")
        await worker.ended.wait()
        raise UtilityTimeout(f"it took longer than {bound_secs:g} s", starved=not spent.is_set())

    def kill(self) -> None:
        """End the process; the next call starts another."""
        if self._worker is not None:
            self._worker.kill("killed", "asked to end")

    @property
    def pid(self) -> int | None:
        """Process id of the running worker."""
        return self._worker.pid if self._worker is not None and self._worker.alive else None

    async def start(self) -> None:
        """Start the process ahead of the first call. Raises WorkerStartError."""
        async with self._lock:
            await self._ready_worker()

    async def _ready_worker(self) -> WorkerProcess:
        if self._worker is not None and self._worker.alive:
            return self._worker
        if self._worker is not None:
            self.restarts += 1
        worker = WorkerProcess(
            role="utility",
            stall_secs=self.stall_secs,
            launcher=self.launcher,
            label="utility",
            handler=self._handle,
        )
        await worker.start(self.nursery)
        self._worker = worker
        self.nursery.start_soon(self._notice_end, worker)
        return worker

    async def _notice_end(self, worker: WorkerProcess) -> None:
        await worker.ended.wait()
        assert worker.end is not None
        if worker is not self._worker:
            return  # calls are made one at a time: those of now are of its successor
        text = describe_end(worker.end)
        error = UtilityCrashed if _ended_by_itself(worker.end) else WorkerLost
        self._calls.fail_all(lambda: error(text, retry_after_secs=RETRY_AFTER_SECS))

    def _handle(self, message: Message) -> None:
        if message[0] not in ("reply", "call_error"):
            raise ProtocolError(f"a utility worker sent {message[0]}")
        self._calls.handle(message)


def _ended_by_itself(end: WorkerEnd) -> bool:
    """Whether a process died of what it did. Nothing that it does sends it a SIGKILL: that comes from us, from people,
    or from a kernel that is short of memory, of which it may take little."""
    return end.kind == "exit" and end.exit_code is not None and not platform.was_killed(end.exit_code)


async def _end_when_spent(
    pid: int, bound_secs: float, call: trio.CancelScope, over: trio.CancelScope, spent: trio.Event
) -> None:
    """Cancel a call once its process has used so much processor time, and set ``spent``; by the clock where that is
    not known."""
    with over:
        before = platform.cpu_secs(pid)
        left = bound_secs
        while left > 0:
            await trio.sleep(left)
            now = platform.cpu_secs(pid)
            left = 0.0 if before is None or now is None else before + bound_secs - now
        spent.set()
        call.cancel()


__all__ = ["DEFAULT_CALL_SECS", "EngineFailed", "UtilityCrashed", "UtilityTimeout", "UtilityWorker", "WorkerStartError"]
