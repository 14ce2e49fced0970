"""What chat and raw completions have in common, as far as it needs no model."""

from collections.abc import Callable
from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from rustedvino.api.results import FinishReason
from rustedvino.http.asgi import PieceSender
from rustedvino.http.exchange import Exchange
from rustedvino.http.generation import Choice, collect, stream, weight
from rustedvino.hub.errors import HubError, WorkerLost
from rustedvino.hub.lease import Lease, Sequence
from rustedvino.text.answer import AnswerReader
from rustedvino.text.tools.events import Content, Event
from tests.support.actors import request

LIMIT = 4096
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=5),
    max_leaves=20,
)


def text_of(value: Any) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(len(key) + text_of(item) for key, item in value.items())
    return sum(map(text_of, value)) if isinstance(value, list) else 0


@settings(max_examples=100, deadline=None)
@given(JSON)
def test_all_text_counts(value: Any) -> None:
    assert weight(value, 10**9) >= text_of(value)


@pytest.mark.parametrize(
    "value",
    [
        [{"role": "user", "content": ""}] * 100,
        ([], [{"function": {"description": "x" * 5000}}], {}),
        ([{"tool_calls": [{"function": {"arguments": {"a": ["x" * 5000]}}}]}], None, {}),
        ([], None, {"x" * 5000: 1}),
        [[]] * 100,
    ],
)
def test_much_is_much_wherever_it_is(value: Any) -> None:
    assert weight(value, LIMIT) > LIMIT


def test_counting_stops() -> None:
    endless: list[Any] = [["x"]]
    endless.append(endless)
    assert weight(endless, LIMIT) < 2 * LIMIT


def test_a_short_chat_is_light() -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    assert weight(([{"role": "user", "content": "Hello"}] * 9, [tool], {}), LIMIT) < LIMIT


# Streams: who sends what.


class Letters:
    """Token k is the k-th letter."""

    def push(self, token_id: int) -> str:
        return chr(ord("a") + token_id)

    def flush(self) -> str:
        return ""


class Client(Exchange):
    """A client that reads as ``takes`` says: what each send without waiting finds. It reads when it is waited for."""

    def __init__(self, takes: list[bool]) -> None:
        self.takes = takes
        self.received: list[bytes] = []
        self.left: bytes | None = None
        self.in_step = False
        self.sent_in_step = 0

    @property
    def is_clear(self) -> bool:
        return self.left is None

    def send_chunk_now(self, data: bytes) -> bool:
        assert self.in_step
        assert data
        assert self.left is None
        self.sent_in_step += 1
        if not self.takes or self.takes.pop(0):
            self.received.append(data)
            return True
        self.left = data
        return False

    async def send_chunk(self, data: bytes) -> None:
        assert not self.in_step
        await self.flush()
        await trio.lowlevel.checkpoint()
        self.received.append(data)

    async def flush(self) -> None:
        if self.left is not None:
            await trio.lowlevel.checkpoint()
            left, self.left = self.left, None
            self.received.append(left)


class Run:
    """A lease of ``n`` choices whose worker a test plays."""

    def __init__(self, client: Client, n: int = 1, stops: tuple[str, ...] = ()) -> None:
        self.client = client
        self.given_up: list[int] = []
        sequences = [Sequence(number, 100, 1) for number in range(n)]
        self.lease = Lease(request([1], n=n), sequences, lambda _, one: self.given_up.append(one.number))
        self.choices = [
            Choice(each.number, each, self.lease, AnswerReader(Letters(), {}, frozenset(), stops=stops))
            for each in sequences
        ]

    async def stream(self, write: "Callable[..., bytes] | None" = None) -> None:
        await stream(self.lease, self.choices, write or self.write, PieceSender(self.client))

    @staticmethod
    def write(choice: Choice, events: list[Event], finish: FinishReason | None) -> bytes:
        text = "".join(event.text for event in events if isinstance(event, Content))
        return f"{choice.index}{text}{'' if finish is None else '.'} ".encode()

    def step(self, tokens: dict[int, list[int]], finish: bool = False) -> None:
        """What a worker's step brings to some choices."""
        for number, ids in tokens.items():
            self.lease.sequences[number].take(ids, None)
            if finish:
                self.lease.sequences[number].finish = "length"
        self.client.in_step = True
        self.lease.notify()
        self.client.in_step = False


async def test_a_client_that_keeps_up_is_served_within_the_steps() -> None:
    run = Run(Client([]))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run.stream)
        await trio.testing.wait_all_tasks_blocked()
        for number in range(5):
            run.step({0: [number]})
            assert len(run.client.received) == number + 1
        run.step({0: [5]}, finish=True)
    assert b"".join(run.client.received) == b"0a 0b 0c 0d 0e 0f. "
    assert run.client.sent_in_step == 6


@settings(max_examples=60, deadline=None)
@given(
    takes=st.lists(st.booleans(), max_size=30),
    pauses=st.lists(st.booleans(), min_size=12, max_size=12),
    n=st.integers(1, 3),
)
def test_every_piece_arrives_once_and_in_order(takes: list[bool], pauses: list[bool], n: int) -> None:
    """Whoever sends it: the step, or the task that the step woke because the client was behind."""
    run = Run(Client(takes), n)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run.stream)
            await trio.testing.wait_all_tasks_blocked()
            for number, pause in enumerate(pauses):
                run.step({choice: [number] for choice in range(n)}, finish=number == len(pauses) - 1)
                if pause:
                    await trio.testing.wait_all_tasks_blocked()

    trio.run(main)
    words = b"".join(run.client.received).decode().split()
    for choice in range(n):
        text = "".join(word[1:] for word in words if word[0] == str(choice))
        assert text == "abcdefghijkl."


async def test_the_rest_of_a_piece_is_sent_though_nothing_new_comes() -> None:
    run = Run(Client([True, False]))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run.stream)
        await trio.testing.wait_all_tasks_blocked()
        run.step({0: [0]})
        run.step({0: [1]})
        assert run.client.received == [b"0a "]
        await trio.testing.wait_all_tasks_blocked()
        assert run.client.received == [b"0a ", b"0b "]
        run.step({0: [2]})
        assert run.client.received[2:] == [b"0c "]  # lent again
        run.step({0: [3]}, finish=True)
    assert b"".join(run.client.received) == b"0a 0b 0c 0d. "


async def test_a_stop_string_found_within_a_step_ends_the_stream() -> None:
    run = Run(Client([]), stops=("bc",))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run.stream)
        await trio.testing.wait_all_tasks_blocked()
        for token in range(3):
            run.step({0: [token]})
    assert b"".join(run.client.received).endswith(b". ")
    assert b"b" not in b"".join(run.client.received)
    assert run.given_up == [0]


@pytest.mark.parametrize("error", [WorkerLost("gone", retry_after_secs=1), KeyError("a fault of ours")])
async def test_what_goes_wrong_within_a_step_is_raised_in_the_stream(error: Exception) -> None:
    run = Run(Client([]))
    caught: list[Exception] = []

    def write(choice: Choice, events: list[Event], finish: FinishReason | None) -> bytes:
        raise error

    async def read() -> None:
        try:
            await run.stream(None if isinstance(error, HubError) else write)
        except (HubError, KeyError) as raised:
            caught.append(raised)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        if isinstance(error, HubError):
            run.lease.sequences[0].failure = error
            run.step({})
        else:
            run.step({0: [1]})
    assert caught == [error]


async def test_a_cancelled_stream_is_not_sent_to() -> None:
    run = Run(Client([]))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run.stream)
        await trio.testing.wait_all_tasks_blocked()
        run.step({0: [0]})
        nursery.cancel_scope.cancel()
    run.step({0: [1]})
    assert run.client.received == [b"0a "]


async def test_whole_answers_wake_their_reader_at_the_end() -> None:
    run = Run(Client([]), n=2)
    answers: list[Any] = []

    async def read() -> None:
        answers.extend(await collect(run.lease, run.choices))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        run.step({0: [0], 1: [1]})
        run.step({0: [2]}, finish=True)
        await trio.testing.wait_all_tasks_blocked()
        assert not answers
        run.step({1: [3]})
        run.step({1: [4]}, finish=True)
    texts = ["".join(event.text for event in events) for events, _ in answers]
    assert (texts, [finish for _, finish in answers]) == (["ac", "bde"], ["length", "length"])
