"""The waiting line: budgets, order, bounded overtaking, nobody lost."""

import pytest
from attrs import define, field
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rustedvino.hub.admission import MAX_OVERTAKEN, DeviceQueue, Waiter


@define(eq=False)
class Model:
    """A target with so many blocks."""

    blocks: int = 8
    open: bool = True
    used: int = 0
    needs: dict[int, int] = field(factory=dict)

    def fits(self, waiter: Waiter) -> bool:
        return self.used + self.needs[id(waiter)] <= self.blocks


@define(eq=False)
class Entry:
    """A request of the tests."""

    model: Model
    blocks: int
    number: int
    waiter: Waiter | None = None
    overtakers: int = 0


class Line(RuleBasedStateMachine):
    """Random arrivals, ends, give-ups, closings and openings."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = DeviceQueue()
        self.models = [Model(), Model()]
        self.waiting: list[Entry] = []
        self.running: list[Entry] = []
        self.numbers = 0
        self.give_up_at_once = False

    @rule(budget=st.none() | st.integers(1, 6))
    @precondition(lambda self: not self.waiting and not self.running)
    def start(self, budget: int | None) -> None:
        self.queue = DeviceQueue(budget)

    def admitted(self, entry: Entry) -> None:
        assert entry in self.waiting
        assert entry.model.open
        assert entry.model.used + entry.blocks <= entry.model.blocks
        self.waiting.remove(entry)
        entry.model.used += entry.blocks
        self.running.append(entry)
        for other in self.waiting:
            if other.model is entry.model and other.number < entry.number:
                other.overtakers += 1
        if self.give_up_at_once:
            self.end(entry)

    def end(self, entry: Entry) -> None:
        self.running.remove(entry)
        entry.model.used -= entry.blocks
        self.queue.release()

    @rule(model=st.integers(0, 1), blocks=st.integers(1, 8), at_once=st.booleans())
    def arrive(self, model: int, blocks: int, at_once: bool) -> None:
        self.give_up_at_once = at_once
        entry = Entry(self.models[model], blocks, self.numbers)
        self.numbers += 1
        entry.waiter = Waiter(entry.model, lambda: self.admitted(entry))
        entry.model.needs[id(entry.waiter)] = blocks
        self.waiting.append(entry)
        self.queue.enter(entry.waiter)
        self.give_up_at_once = False

    @rule(data=st.data())
    @precondition(lambda self: self.running)
    def finish(self, data: st.DataObject) -> None:
        self.end(data.draw(st.sampled_from(self.running)))

    @rule(data=st.data())
    @precondition(lambda self: self.waiting)
    def give_up(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(self.waiting))
        assert entry.waiter is not None
        self.waiting.remove(entry)
        self.queue.discard(entry.waiter)
        self.queue.discard(entry.waiter)

    @rule(model=st.integers(0, 1))
    def close_or_open(self, model: int) -> None:
        self.models[model].open = not self.models[model].open
        self.queue.pump()

    @invariant()
    def budgets_hold(self) -> None:
        assert self.queue.in_flight == len(self.running)
        if self.queue.budget is not None:
            assert len(self.running) <= self.queue.budget
        for model in self.models:
            assert model.used == sum(entry.blocks for entry in self.running if entry.model is model)
            assert model.used <= model.blocks

    @invariant()
    def nobody_is_lost_or_passed_over(self) -> None:
        for model in self.models:
            line = [entry for entry in self.waiting if entry.model is model]
            assert self.queue.waiting(model) == len(line)
            assert all(entry.overtakers <= MAX_OVERTAKEN for entry in line)
            room = self.queue.budget is None or len(self.running) < self.queue.budget
            if line and model.open and room:
                assert line[0].blocks > model.blocks - model.used, "the first in line fits and was not admitted"

    def teardown(self) -> None:
        """When everything ends, everybody who waits for an open model runs."""
        for model in self.models:
            model.open = True
        self.give_up_at_once = False
        self.queue.pump()
        while self.running:
            self.end(self.running[0])
        assert self.waiting == []
        assert self.queue.in_flight == 0


Line.TestCase.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
TestLine = Line.TestCase


def enter(queue: DeviceQueue, model: Model, blocks: int, log: list[int], number: int) -> Waiter:
    def admit() -> None:
        model.used += blocks
        log.append(number)

    waiter = Waiter(model, admit)
    model.needs[id(waiter)] = blocks
    queue.enter(waiter)
    return waiter


def test_one_that_does_not_fit_is_overtaken_eight_times_at_most() -> None:
    queue, model, log = DeviceQueue(), Model(blocks=8), []
    enter(queue, model, 1, log, 0)
    big = enter(queue, model, 8, log, 1)
    small = [enter(queue, model, 1, log, number) for number in range(2, 20)]
    while 1 not in log:  # one ends at a time; a small one takes its place until the big one has been passed enough
        model.used -= 1
        queue.release()
    assert log == [0, *range(2, 2 + MAX_OVERTAKEN), 1]
    assert big.overtaken == MAX_OVERTAKEN
    assert small[-1].overtaken <= MAX_OVERTAKEN


def test_giving_up_the_big_one_lets_the_others_go() -> None:
    queue, model, log = DeviceQueue(), Model(blocks=2, used=1), []
    big = enter(queue, model, 2, log, 1)
    big.overtaken = MAX_OVERTAKEN
    enter(queue, model, 1, log, 2)
    assert log == []
    queue.discard(big)
    assert log == [2]


def test_a_closed_model_holds_up_nobody_else_and_keeps_its_line() -> None:
    queue, closed, other, log = DeviceQueue(budget=2), Model(open=False), Model(), []
    for number in range(3):
        enter(queue, closed, 1, log, number)
    enter(queue, other, 1, log, 10)
    assert log == [10]
    closed.open = True
    queue.pump()
    assert log == [10, 0]
    queue.release()
    assert log == [10, 0, 1]


def test_releasing_what_was_never_admitted_is_our_own_fault() -> None:
    with pytest.raises(AssertionError):
        DeviceQueue().release()
