"""Replies find their calls."""

from typing import Any

import pytest
import trio
from attrs import define, field

from rustedvino.hub.calls import Calls
from rustedvino.hub.errors import BadInput, EngineFailed, HubError, WorkerLost
from rustedvino.worker.protocol import ProtocolError, encode_frame


@define(eq=False)
class Sent:
    """Takes the place of a worker process: what is sent is looked at, and answered by the test."""

    messages: list[tuple[Any, ...]] = field(factory=list)

    def send(self, *message: Any) -> None:
        encode_frame(message)
        self.messages.append(message)


async def outcomes(calls: Calls, worker: Any, count: int, answer: Any) -> list[Any]:
    """Make calls at once, have them answered, return what came of each."""
    results: list[Any] = [None] * count

    async def one(index: int) -> None:
        try:
            results[index] = await calls.make(worker, "method", {"index": index})
        except HubError as error:
            results[index] = error

    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            for index in range(count):
                nursery.start_soon(one, index)
            await trio.testing.wait_all_tasks_blocked()
            answer()
    assert calls._pending == {}
    return results


async def test_replies_in_any_order() -> None:
    calls, worker = Calls(), Sent()

    def answer() -> None:
        for _, number, _, arguments in reversed(worker.messages):
            calls.handle(["reply", number, arguments["index"] * 10])

    assert await outcomes(calls, worker, 5, answer) == [0, 10, 20, 30, 40]


async def test_errors_by_kind_and_a_second_reply_changes_nothing() -> None:
    calls, worker = Calls(), Sent()

    def answer() -> None:
        for _, number, _, arguments in worker.messages:
            kind = "bad_input" if arguments["index"] == 0 else "capacity"
            calls.handle(["call_error", number, kind, f"{kind} {arguments['index']}"])
            calls.handle(["reply", number, "too late"])
        calls.fail_all(lambda: WorkerLost("gone"))

    first, second = await outcomes(calls, worker, 2, answer)
    assert (type(first), first.message) == (BadInput, "bad_input 0")
    assert (type(second), second.message) == (EngineFailed, "capacity 1")


async def test_a_lost_worker_fails_each_call_with_an_error_of_its_own() -> None:
    calls, worker = Calls(), Sent()
    lost = await outcomes(calls, worker, 3, lambda: calls.fail_all(lambda: WorkerLost("gone", retry_after_secs=2)))
    assert [type(error) for error in lost] == [WorkerLost] * 3
    assert len({id(error) for error in lost}) == 3


async def test_a_cancelled_calls_reply_is_dropped() -> None:
    calls, worker = Calls(), Sent()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(calls.make, worker, "method", {})
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    calls.handle(["reply", worker.messages[0][1], 1])
    assert calls._pending == {}


@pytest.mark.parametrize("number", [0, 1, -1, "1", None, 10**9])
def test_a_reply_to_no_call_is_a_protocol_error(number: Any) -> None:
    with pytest.raises(ProtocolError):
        Calls().handle(["reply", number, None])


async def test_arguments_that_fit_no_frame_are_bad_input() -> None:
    calls = Calls()
    for bad in (2**64, bytes(65 * 1024 * 1024), object()):
        with pytest.raises(BadInput):
            await calls.make(Sent(), "method", {"bad": bad})  # type: ignore[arg-type]
    assert calls._pending == {}
