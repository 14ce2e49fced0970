"""Numbers within bounds, names that are not these, and what all grammars share."""

import json
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rustedvino.text.json_grammar import NEVER, Grammar, json_literal
from tests.support.ebnf import Texts

_numbers = st.decimals(-1500, 1500, places=3) | st.integers(-(10**14), 10**14).map(Decimal)


def texts(grammar: Grammar, root: str, seed: int = 1) -> Texts:
    """Drawn texts of an expression."""
    return Texts(grammar.text(root), seed)


@settings(max_examples=150, deadline=None)
@given(_numbers, _numbers, st.integers(0, 6), st.integers(0, 2**32))
def test_a_number_lies_within_its_bounds(one: Decimal, other: Decimal, digits: int, seed: int) -> None:
    low, high = sorted((one, other))
    grammar = Grammar()
    root = grammar.number_between(low, high, fraction_digits=digits)
    step = Decimal(1).scaleb(-digits)
    fits = (low / step).to_integral_value("ROUND_CEILING") <= (high / step).to_integral_value("ROUND_FLOOR")
    assert (root is not NEVER) == fits
    if root is NEVER:
        return
    drawn = texts(grammar, root, seed)
    for _ in range(20):
        text = drawn.draw()
        assert low <= Decimal(text) <= high
        assert isinstance(json.loads(text), int | float)


@settings(max_examples=150, deadline=None)
@given(st.integers(-5000, 5000), st.integers(0, 3000), st.integers(0, 2**32))
def test_an_integer_lies_within_its_bounds(low: int, width: int, seed: int) -> None:
    grammar = Grammar()
    drawn = texts(grammar, grammar.integer_between(low, low + width), seed)
    for _ in range(20):
        text = drawn.draw()
        assert low <= int(text) <= low + width
        assert str(int(text)) == text


@pytest.mark.parametrize(("low", "high"), [(None, 5), (-5, None), (None, None), (10**30, None), (3, 2)])
def test_open_and_empty_integer_ranges(low: int | None, high: int | None) -> None:
    grammar = Grammar()
    root = grammar.integer_between(low, high)
    if low is not None and low > (10**18 if high is None else high):
        assert root is NEVER
        return
    drawn = texts(grammar, root)
    values = [int(drawn.draw()) for _ in range(200)]
    assert all((low is None or low <= value) and (high is None or value <= high) for value in values)
    assert len(set(values)) > 10


@settings(max_examples=150, deadline=None)
@given(st.lists(st.text(st.sampled_from('abA9_é"\\\n '), max_size=4), min_size=1, max_size=5), st.integers(0, 2**32))
def test_other_names_are_none_of_the_names(names: list[str], seed: int) -> None:
    grammar = Grammar()
    drawn = texts(grammar, grammar.other_names(names), seed)
    for _ in range(30):
        assert json.loads(drawn.draw()) not in names


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32))
def test_strings_numbers_and_values_are_json(seed: int) -> None:
    grammar = Grammar()
    for root, kind in ((grammar.string, str), (grammar.number, int | float), (grammar.integer, int)):
        assert isinstance(json.loads(texts(grammar, root, seed).draw()), kind)
    json.loads(texts(grammar, grammar.value, seed).draw())
    # A text that can be sent on: no half of a surrogate pair, not even escaped.
    json.loads(texts(grammar, grammar.string_of(3, 9), seed).draw()).encode()


@settings(max_examples=100, deadline=None)
@given(st.recursive(st.text() | st.integers() | st.none(), lambda inner: st.lists(inner, max_size=3)))
def test_a_literal_is_its_value(value: object) -> None:
    grammar = Grammar()
    assert json.loads(texts(grammar, json_literal(value)).draw()) == value


def test_equal_rules_are_one() -> None:
    grammar = Grammar()
    assert grammar.rule('"a"') == grammar.rule('"a"') != grammar.rule('"b"')
    assert grammar.size_bytes == 6
