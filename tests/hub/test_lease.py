"""Sequences take what a step may give, and readers are woken once."""

from typing import Any

import pytest
import trio

from rustedvino.hub.lease import Lease, Sequence
from rustedvino.worker.protocol import ProtocolError
from tests.support.actors import request


def sequence(number: int = 1, most: int = 4, *, with_logprobs: bool = False) -> Sequence:
    return Sequence(number, most, 1, with_logprobs=with_logprobs)


def test_takes_tokens_up_to_the_most() -> None:
    taking = sequence(most=3)
    taking.take([1, 2], None)
    taking.take([2**31 - 1], None)
    assert taking.tokens == [1, 2, 2**31 - 1]
    with pytest.raises(ProtocolError):
        taking.take([4], None)


@pytest.mark.parametrize("ids", [["a"], "ab", [1.0], [True], [-1], [2**31], [None], [[1]], [1, 2, 3, 4, 5], {"a": 1}])
def test_nothing_is_added_of_what_no_step_may_give(ids: Any) -> None:
    taking = sequence()
    with pytest.raises(ProtocolError):
        taking.take(ids, None)
    assert taking.tokens == []


@pytest.mark.parametrize("logprobs", [None, [], [-0.5], [-0.5, "x"], [-0.5, None], [-0.5, -1.0, -2.0]])
def test_log_probabilities_come_with_their_tokens(logprobs: Any) -> None:
    taking = sequence(with_logprobs=True)
    with pytest.raises(ProtocolError):
        taking.take([1, 2], logprobs)
    assert (taking.tokens, taking.logprobs) == ([], [])
    taking.take([1, 2], [-0.5, -1.0])
    assert (taking.tokens, taking.logprobs) == ([1, 2], [-0.5, -1.0])


def make(*sequences: Sequence) -> tuple[Lease, list[int]]:
    given_up: list[int] = []
    lease = Lease(request([1], n=len(sequences)), list(sequences), lambda _, one: given_up.append(one.number))
    return lease, given_up


def test_close_gives_up_once_what_still_runs() -> None:
    done, running = sequence(1), sequence(2)
    done.finish = "stop"
    lease, given_up = make(done, running)
    lease.close()
    lease.close()
    assert given_up == [2]
    assert running.done
    assert running.finish is None


async def test_news_before_the_wait_is_not_lost(autojump_clock: trio.testing.MockClock) -> None:
    lease, _ = make(sequence())
    lease.notify()
    lease.notify()
    with trio.fail_after(1):
        await lease.wait()
    with trio.move_on_after(1) as scope:
        await lease.wait()
    assert scope.cancelled_caught


async def test_a_waiting_reader_is_woken(autojump_clock: trio.testing.MockClock) -> None:
    lease, _ = make(sequence())
    woken = []

    async def read() -> None:
        await lease.wait()
        woken.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await trio.sleep(3)
        assert woken == []
        lease.notify()
        await trio.sleep(1)
        assert len(woken) == 1


class Script:
    """A sink that answers by a list, and remembers when it was asked."""

    def __init__(self, *answers: "bool | Exception") -> None:
        self.answers = list(answers)
        self.calls = 0

    def __call__(self) -> bool:
        self.calls += 1
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


async def test_a_sink_takes_the_news_of_a_sleeping_reader() -> None:
    lease, _ = make(sequence())
    sink = Script(True, True, False)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lease.wait, sink)
        await trio.testing.wait_all_tasks_blocked()
        for calls in (1, 2):
            lease.notify()
            await trio.testing.wait_all_tasks_blocked()
            assert sink.calls == calls
            assert len(nursery.child_tasks) == 1  # sleeps on
        lease.notify()
        lease.notify()  # the reader is awake already, though it has not run yet: what it lent is its own again
        assert sink.calls == 3


async def test_a_sink_is_lent_anew_by_each_wait() -> None:
    lease, _ = make(sequence())
    sink = Script(False, True, False)
    woken: list[int] = []
    busy = trio.Event()

    async def read() -> None:
        await lease.wait(sink)
        woken.append(sink.calls)
        await busy.wait()  # as for a client that does not read
        await lease.wait(sink)
        woken.append(sink.calls)
        await lease.wait(sink)
        woken.append(sink.calls)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        lease.notify()  # declined: the reader goes on by itself
        await trio.testing.wait_all_tasks_blocked()
        assert woken == [1]
        lease.notify()  # kept for its next wait, for it has not lent anything
        assert sink.calls == 1
        busy.set()
        await trio.testing.wait_all_tasks_blocked()
        assert woken == [1, 1]
        lease.notify()  # taken
        await trio.testing.wait_all_tasks_blocked()
        assert woken == [1, 1]
        lease.notify()  # declined
    assert woken == [1, 1, 3]


async def test_what_a_sink_raises_is_raised_in_its_reader_alone() -> None:
    lease, _ = make(sequence())
    broken = KeyError("the sink is broken")
    caught: list[Exception] = []

    async def read() -> None:
        try:
            await lease.wait(Script(broken))
        except KeyError as error:
            caught.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        lease.notify()
    assert caught == [broken]
    lease.notify()
    await lease.wait()  # told once


async def test_news_that_a_sink_makes_itself_wakes_the_reader() -> None:
    """A sink that gives a sequence up may be told of its end before it returns."""
    lease, _ = make(sequence())
    calls = 0

    def sink() -> bool:
        nonlocal calls
        calls += 1
        lease.notify()
        return True

    async with trio.open_nursery() as nursery:
        nursery.start_soon(lease.wait, sink)
        await trio.testing.wait_all_tasks_blocked()
        lease.notify()
    assert calls == 1


async def test_a_cancelled_reader_leaves_no_sink_behind() -> None:
    lease, _ = make(sequence())
    sink = Script()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lease.wait, sink)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    lease.notify()
    assert sink.calls == 0
