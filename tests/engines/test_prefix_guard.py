"""Which prompts must not share the batch."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rustedvino.engines.prefix_guard import ENDS_PER_BLOCK, LEAST_ENDS, PrefixGuard, common_tokens

BLOCK = 4
contents = st.lists(st.integers(0, 2), max_size=14)


def raw(ids: list[int]) -> bytes:
    return np.array(ids, "<i4").tobytes()


@given(contents, contents)
@settings(deadline=None)
def test_common_tokens(first: list[int], second: list[int]) -> None:
    pairs = list(zip(first, second, strict=False))
    expected = next((at for at, (one, other) in enumerate(pairs) if one != other), len(pairs))
    assert common_tokens(raw(first), raw(second)) == expected


@given(st.lists(contents.filter(bool), max_size=6), contents.filter(bool), contents.filter(bool))
@settings(deadline=None)
def test_a_prompt_waits_when_both_begin_with_all_that_an_ended_sequence_had(
    ended: list[list[int]], prompt: list[int], other: list[int]
) -> None:
    guard = PrefixGuard(BLOCK, 8)
    for content in ended:
        guard.remember(raw(content), len(content))
    common = common_tokens(raw(prompt), raw(other))
    ends = {tuple(content[:count]) for content in ended for count in (len(content) - 1, len(content))}
    shared = any(len(end) % BLOCK and tuple(prompt[: len(end)]) == end for end in ends if 0 < len(end) <= common)
    assert guard.must_wait(raw(prompt), [], [raw(other)]) is shared
    own = common % BLOCK != 0 and common >= len(other) - 1
    assert guard.must_wait(raw(prompt), [raw(other)], []) is (shared or own)


def test_the_prompt_of_an_ended_sequence_counts_too() -> None:
    guard = PrefixGuard(BLOCK, 8)
    guard.remember(raw([1, 2, 3, 4, 5, 6, 7]), 2)
    assert guard.must_wait(raw([1, 2, 9]), [], [raw([1, 2, 8])])
    assert not guard.must_wait(raw([1, 9]), [], [raw([1, 8])])


def test_what_is_remembered_is_bounded_and_the_oldest_goes_first() -> None:
    guard = PrefixGuard(BLOCK, 1)
    capacity = LEAST_ENDS + ENDS_PER_BLOCK
    for number in range(capacity + 1):
        guard.remember(raw([number]), 1)
    assert not guard.must_wait(raw([0, 1]), [], [raw([0, 2])])
    assert guard.must_wait(raw([1, 1]), [], [raw([1, 2])])


def test_long_contents() -> None:
    guard = PrefixGuard(BLOCK, 8)
    long = [number % 7 for number in range(5000)]
    guard.remember(raw(long[:4999]), 4999)
    assert guard.must_wait(raw(long), [], [raw([*long[:4999], 9])])
    assert not guard.must_wait(raw(long), [], [raw([*long[:4990], 9])])
