"""Questions to a worker that are answered by one reply: the pending ones of one process."""

from collections.abc import Awaitable, Callable
from typing import Any

import outcome
import trio
from attrs import define, field

from rustedvino.hub.errors import BadInput, EngineFailed, HubError
from rustedvino.hub.process import WorkerProcess
from rustedvino.worker.protocol import Message, ProtocolError

Call = Callable[[str, dict[str, Any]], Awaitable[Any]]
"""A way to one worker: method and arguments → result."""


@define(eq=False)
class _Pending:
    done: trio.Event = field(factory=trio.Event)
    result: "outcome.Outcome[Any] | None" = None


@define(eq=False)
class Calls:
    """Numbers the calls made of workers and matches their replies."""

    _pending: dict[int, _Pending] = field(factory=dict)
    _last: int = 0

    async def make(self, worker: WorkerProcess, method: str, arguments: dict[str, Any]) -> Any:
        """Call and wait for the reply, without a bound of its own.

        Raises BadInput or EngineFailed as the worker classified it, BadInput for arguments that fit no frame, and
        what ``fail_all`` is given when the worker ended first.
        A cancelled call's reply is dropped when it comes.
        """
        self._last += 1
        number = self._last
        pending = self._pending[number] = _Pending()
        try:
            try:
                worker.send("call", number, method, arguments)
            except ProtocolError as error:
                raise BadInput(str(error)) from error
            await pending.done.wait()
        finally:
            self._pending.pop(number, None)
        assert pending.result is not None
        return pending.result.unwrap()

    def handle(self, message: Message) -> None:
        """Take a ``reply`` or ``call_error``. Raises ProtocolError for a call that was never made."""
        kind, number, *rest = message
        if not isinstance(number, int) or not 0 < number <= self._last:
            raise ProtocolError(f"{kind} to call {number!r}, which was never made")
        if kind == "reply":
            (value,) = rest
            result: outcome.Outcome[Any] = outcome.Value(value)
        else:
            fault, text = rest
            result = outcome.Error(BadInput(str(text)) if fault == "bad_input" else EngineFailed(str(text)))
        pending = self._pending.pop(number, None)
        if pending is not None:
            pending.result = result
            pending.done.set()

    def fail_all(self, error: Callable[[], HubError]) -> None:
        """The worker ended: every pending call is lost, each with an ``error`` of its own."""
        while self._pending:
            _, pending = self._pending.popitem()
            pending.result = outcome.Error(error())
            pending.done.set()
