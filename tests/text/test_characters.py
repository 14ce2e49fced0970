"""Sets of characters against Python's own sets."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from rustedvino.text.characters import ALL, BARE, Ranges, char_class, holds, merged, without
from tests.support.ebnf import _set

_ranges = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)).map(lambda pair: (pair[0], sum(pair))), max_size=5)


def codes(ranges: Ranges) -> set[int]:
    """The members of a small set."""
    return {code for low, high in ranges for code in range(low, high + 1)}


@settings(max_examples=200, deadline=None)
@given(_ranges, _ranges)
def test_sets_behave_like_sets(one: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    left, right = merged(one), merged(other)
    assert codes(left) == codes(tuple(one))
    assert all(high < low - 1 for (_, high), (low, _) in pairwise(left))
    assert codes(without(left, right)) == codes(left) - codes(right)
    assert {code for code in range(80) if holds(left, code)} == codes(left)


@settings(max_examples=200, deadline=None)
@given(_ranges.filter(bool), st.booleans())
def test_a_class_holds_exactly_its_set(ranges: list[tuple[int, int]], complement: bool) -> None:
    chosen = without(ALL, merged(ranges)) if complement else merged(ranges)
    _, written, negated = _set(char_class(chosen)[1:-1])
    for code in (*range(0x80), 0xE9, 0xD7FF, 0x1F642):
        assert (holds(tuple(written), code) != negated) == holds(chosen, code)


def test_bare_characters_are_those_that_need_no_escape() -> None:
    assert not any(holds(BARE, ord(character)) for character in '"\\\n\t\x00\x1f')
    assert all(holds(BARE, ord(character)) for character in " a/\x7fé\u2028🙂")
    assert not holds(BARE, 0xD800)
