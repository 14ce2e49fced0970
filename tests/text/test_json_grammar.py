"""Names that are not these, values of any kind, and what all grammars share."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from rustedvino.text.automata import literal
from rustedvino.text.json_grammar import NEVER, Grammar, json_text
from tests.support.ebnf import Texts


def texts(grammar: Grammar, root: str, seed: int = 1) -> Texts:
    """Drawn texts of an expression."""
    return Texts(grammar.text(root), seed)


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
    assert json.loads(texts(grammar, literal(json_text(value))).draw()) == value


def test_equal_rules_are_one() -> None:
    grammar = Grammar()
    assert grammar.rule('"a"') == grammar.rule('"a"') != grammar.rule('"b"')
    assert grammar.size_bytes == 6


def test_what_never_matches_is_left_out() -> None:
    grammar = Grammar()
    assert grammar.either([NEVER, NEVER]) is NEVER
    assert grammar.either([NEVER, '"a"']) == '"a"'
    drawn = texts(grammar, grammar.either(['"a"', NEVER, '"ab"', '"a"']))
    assert {drawn.draw() for _ in range(50)} == {"a", "ab"}
