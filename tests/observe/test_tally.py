"""Counts on the path of every token."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rustedvino.observe.families import INTER_TOKEN_BUCKETS, TTFT_BUCKETS
from rustedvino.observe.tally import (
    RATE_WINDOW_SECS,
    Histogram,
    KeyTally,
    ModelTally,
    TokenClock,
    key_suffix,
    restart_reason,
)


@given(st.lists(st.floats(0, 20) | st.sampled_from(TTFT_BUCKETS), max_size=50))
@settings(max_examples=100, deadline=None)
def test_histogram_counts_each_value_under_the_bounds_it_does_not_exceed(values: list[float]) -> None:
    histogram = Histogram(TTFT_BUCKETS)
    for value in values:
        histogram.observe(value)
    for index, bound in enumerate(TTFT_BUCKETS):
        assert sum(histogram.counts[: index + 1]) == sum(value <= bound for value in values)
    assert sum(histogram.counts) == len(values)
    assert math.isclose(histogram.sum, sum(values), abs_tol=1e-9)


@given(steps=st.lists(st.tuples(st.integers(1, 5), st.floats(0.001, 3)), min_size=1, max_size=30))
@settings(max_examples=100, deadline=None)
def test_tokens_of_a_sequence(steps: list[tuple[int, float]]) -> None:
    tally = ModelTally()
    clock = TokenClock(requested_at=100.0)
    now = 100.0
    for count, pause in steps:
        now += pause
        tally.tokens(clock, count, now)
    assert tally.tokens_generated == sum(count for count, _ in steps)
    assert sum(tally.ttft.counts) == 1
    assert math.isclose(tally.ttft.sum, steps[0][1], abs_tol=1e-6)
    later = steps[1:]
    assert sum(tally.inter_token.counts) == sum(count for count, _ in later)
    assert math.isclose(tally.inter_token.sum, sum(pause for _, pause in later), abs_tol=1e-6)
    assert len(tally.inter_token.counts) == len(INTER_TOKEN_BUCKETS) + 1


def test_rate_is_of_the_last_window_and_falls_to_zero() -> None:
    tally = ModelTally()
    clock = TokenClock(1000.0)
    tally.tokens(clock, 1, 1000.0)  # begins a window
    for step in range(1, 51):
        tally.tokens(clock, 2, 1000.0 + step / 10)
    assert tally.rate(1000.0 + RATE_WINDOW_SECS + 0.1) == pytest.approx(20.0, rel=0.05)
    assert tally.rate(1000.0 + RATE_WINDOW_SECS + 0.2) == pytest.approx(20.0, rel=0.05)  # a second scraper
    assert tally.rate(1000.0 + 3 * RATE_WINDOW_SECS) == 0.0


def test_rate_of_an_idle_model_is_zero() -> None:
    assert ModelTally().rate(5.0) == 0.0


def test_keys_are_shown_from_zero_and_forgotten_with_the_key() -> None:
    keys = KeyTally()
    keys.set_keys(["admin-key-number-1", "short-key", "other-key-000002"])
    assert keys.uses == {"mber-1": 0, "000002": 0}
    keys.used("admin-key-number-1", 5.0)
    keys.used("admin-key-number-1", 6.0)
    keys.used("short-key", 7.0)
    keys.used("never-given-out-key", 8.0)
    assert keys.uses == {"mber-1": 2, "000002": 0}
    assert keys.last_seen == {"mber-1": 6.0}
    keys.set_keys(["other-key-000002", "new-key-0000003"])
    assert keys.uses == {"000002": 0, "000003": 0}
    assert keys.last_seen == {}


@pytest.mark.parametrize(("key", "suffix"), [("a" * 11, None), ("a" * 6 + "bcdefg", "bcdefg"), ("", None)])
def test_short_keys_show_nothing(key: str, suffix: str | None) -> None:
    assert key_suffix(key) == suffix


@pytest.mark.parametrize(
    ("end", "fault", "reason"),
    [
        ("exit", None, "crash"),
        ("killed", None, "crash"),
        ("stall", None, "stall"),
        ("protocol", None, "protocol"),
        ("exit", "engine", "engine_fault"),
        ("exit", "gpu_poisoned", "gpu_poisoned"),
        ("exit", "out_of_memory", "oom"),
        (None, "out_of_memory", "oom"),
        (None, None, "start_failed"),
    ],
)
def test_restart_reasons(end: str | None, fault: str | None, reason: str) -> None:
    tally = ModelTally()
    tally.restarted(restart_reason(end, fault))
    assert {name for name, count in tally.restarts.items() if count} == {reason}
