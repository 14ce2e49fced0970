"""Numbers within bounds."""

import json
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rustedvino.text.automata import Node, language
from rustedvino.text.json_grammar import Grammar
from rustedvino.text.number_ranges import decimals, integers
from tests.support.ebnf import Texts

_numbers = st.decimals(-1500, 1500, places=3) | st.integers(-(10**14), 10**14).map(Decimal)


def texts(node: Node | None, seed: int) -> Texts:
    """Drawn texts of a language."""
    assert node is not None
    grammar = Grammar()
    return Texts(grammar.text(language(grammar, node)), seed)


@settings(max_examples=150, deadline=None)
@given(_numbers, _numbers, st.integers(0, 6), st.integers(0, 2**32))
def test_a_number_lies_within_its_bounds(one: Decimal, other: Decimal, digits: int, seed: int) -> None:
    low, high = sorted((one, other))
    node = decimals(low, high, fraction_digits=digits)
    step = Decimal(1).scaleb(-digits)
    fits = (low / step).to_integral_value("ROUND_CEILING") <= (high / step).to_integral_value("ROUND_FLOOR")
    assert (node is not None) == fits
    if node is None:
        return
    drawn = texts(node, seed)
    for _ in range(20):
        text = drawn.draw()
        assert low <= Decimal(text) <= high
        assert isinstance(json.loads(text), int | float)


@settings(max_examples=150, deadline=None)
@given(st.integers(-5000, 5000), st.integers(0, 3000), st.integers(0, 2**32))
def test_an_integer_lies_within_its_bounds(low: int, width: int, seed: int) -> None:
    drawn = texts(integers(low, low + width), seed)
    for _ in range(20):
        text = drawn.draw()
        assert low <= int(text) <= low + width
        assert str(int(text)) == text


@pytest.mark.parametrize(("low", "high"), [(None, 5), (-5, None), (None, None), (10**30, None), (3, 2)])
def test_open_and_empty_integer_ranges(low: int | None, high: int | None) -> None:
    node = integers(low, high)
    if low is not None and low > (10**18 if high is None else high):
        assert node is None
        return
    drawn = texts(node, 1)
    values = [int(drawn.draw()) for _ in range(200)]
    assert all((low is None or low <= value) and (high is None or value <= high) for value in values)
    assert len(set(values)) > 10
