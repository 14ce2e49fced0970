"""The table of states: its shape, its print, and random walks through it."""

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rustedvino.hub.states import TRANSITIONS, WITH_WORKER, Event, State, next_state, table_markdown

DOCS = Path(__file__).parents[2] / "docs" / "RELIABILITY.md"


@settings(deadline=None)
@given(events=st.lists(st.sampled_from(Event), max_size=60))
def test_random_walks(events: list[Event]) -> None:
    states = [State.NOT_LOADED]
    for event in events:
        states.append(next_state(states[-1], event))
    for (before, after), event in zip(pairwise(states), events, strict=True):
        if before is State.GONE:
            assert after is State.GONE
        if before is State.DRAINING:
            assert after in (State.DRAINING, State.NOT_LOADED, State.GONE)
        if after is State.READY and before is not State.READY:
            assert (before, event) == (State.LOADING, Event.READY)
        if after is not before and after is State.LOADING:
            assert before not in WITH_WORKER  # a load always starts with a worker of its own
        if event is Event.DEREGISTER:
            assert after is State.GONE
        if event in (Event.CRASH, Event.STALL, Event.EXHAUSTED):
            assert after not in (State.LOADING, State.READY)
        if event is Event.REQUEST and before is not State.NOT_LOADED:
            assert after is before  # a request alone never retries a failure


def reachable(start: State) -> set[State]:
    seen = {start}
    while new := {next_state(state, event) for state in seen for event in Event} - seen:
        seen |= new
    return seen


def test_every_state_can_be_reached_and_every_but_gone_can_become_ready_again() -> None:
    assert reachable(State.NOT_LOADED) == set(State)
    for state in set(State) - {State.GONE}:
        assert State.READY in reachable(state)
    assert reachable(State.GONE) == {State.GONE}


def test_every_event_means_something_somewhere_and_changes_the_state_there() -> None:
    assert {event for _, event in TRANSITIONS} == set(Event)
    assert all(after is not state for (state, _), after in TRANSITIONS.items())


@pytest.mark.parametrize("state", sorted(WITH_WORKER))
def test_a_worker_that_ends_always_means_something(state: State) -> None:
    for event in (Event.CRASH, Event.STALL):
        assert next_state(state, event) not in WITH_WORKER


def test_the_documentation_has_the_table() -> None:
    text = DOCS.read_text(encoding="utf-8")
    _, _, rest = text.partition("<!-- state table -->\n")
    assert rest.partition("\n<!-- end -->")[0] == table_markdown()
    for heading in ("States", "Restarts and culprits", "Stalls", "What a client sees", "No orphans"):
        assert f"\n## {heading}\n" in text


def test_the_module_prints_the_table() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rustedvino.hub.states"], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == table_markdown() + "\n"
    assert len(done.stdout.splitlines()) == len(State) + 2
