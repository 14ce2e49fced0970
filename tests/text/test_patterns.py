"""Patterns as languages of what stands inside a JSON string."""

import json
import re

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from rustedvino.text.automata import TooManyStates, language
from rustedvino.text.json_grammar import Grammar
from rustedvino.text.patterns import MAX_PATTERN_CHARS, MAX_PATTERN_NESTING, PatternError, parse_pattern
from tests.support.ebnf import Texts

_ATOMS = r"a b - é 🙂 . \d \w \s \D \W \S \. \\ \" \n \t [a-c] [^a-c] [^\w_] [\"\\] [à-ö]"
_MORE = r"[-a] [\d.] \x41 \u00e9 / ' [^\u0000-~]"
_atoms = st.sampled_from([*_ATOMS.split(" "), *_MORE.split(" "), " "])
_counts = st.sampled_from(["", "", "", "?", "*", "+", "{2}", "{1,}", "{0,3}", "{2,3}?", "+?"])


def _repeat(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    sequence = st.lists(inner, min_size=1, max_size=3).map("".join)
    choice = st.lists(sequence, min_size=1, max_size=3).map("|".join)
    # Behind a letter that is always there, so that the group is not empty.
    return st.builds(lambda body, count: f"(?:x(?:{body})){count}", choice, _counts)


_parts = st.recursive(st.builds(lambda atom, count: atom + count, _atoms, _counts), _repeat, max_leaves=5)
patterns = st.builds(
    lambda start, parts, end: start + "".join(parts) + end,
    st.sampled_from(["", "^"]),
    st.lists(_parts, min_size=1, max_size=3),
    st.sampled_from(["", "$"]),
)


def texts_of(pattern: str, seed: int = 1) -> tuple[Texts, int, int | None]:
    """Drawn texts of a pattern, with their bounds."""
    grammar = Grammar()
    body = parse_pattern(pattern)
    return Texts(grammar.text(language(grammar, body.node)), seed), body.least, body.most


@settings(max_examples=200, deadline=None)
@given(patterns, st.integers(0, 2**32))
def test_every_text_has_the_pattern_and_a_length_within_its_bounds(pattern: str, seed: int) -> None:
    try:
        texts, least, most = texts_of(pattern, seed)
    except TooManyStates:
        reject()
    for _ in range(10):
        value = json.loads(f'"{texts.draw()}"')
        assert re.search(pattern, value), (pattern, value)
        assert len(value) >= least
        assert most is None or len(value) <= most


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("^[ab]c?$", {"a", "b", "ac", "bc"}),
        ("^(a|bc|)d{1,2}$", {"ad", "add", "bcd", "bcdd", "d", "dd"}),
        ("^a$|^b$", {"a", "b"}),
        ("^(?<name>a)(?P<other>b)$", {"ab"}),
        (r"^[\b\f]$", {"\b", "\f"}),
        (r"^\x01$", {"\x01"}),
        (r"^\{\}$", {"{}"}),
        ("^$", {""}),
        ("^(?:(a*)*|(b?)+){0,1}c$|^d$", {"c", "d", "ac", "aac", "aaac", "bc", "bbc", "bbbc"}),
    ],
)
def test_the_texts_are_all_those_of_the_pattern(pattern: str, expected: set[str]) -> None:
    texts, _, _ = texts_of(pattern)
    assert {json.loads(f'"{texts.draw()}"') for _ in range(300)} >= expected


_SYNTAX = r"(a a) [a a{2 a{,2} *a a** a{2}{3} a{3,2} \ [b-a] (?i)a (?=a) (?!a) (?<=a)b (?<!a)b (a)\1 \bword \p{L} \k<a>"
_PLACES = r"[]a] a^b a$b (^a) (a$) \x1 \u12 [a-\d] [^\D] (?<1>a) a{1000000} (a{1000}){1000} ^^a"
_NESTED = "(" * (MAX_PATTERN_NESTING + 1) + "a" + ")" * (MAX_PATTERN_NESTING + 1)


@pytest.mark.parametrize("pattern", [*_SYNTAX.split(), *_PLACES.split(), _NESTED, "a" * (MAX_PATTERN_CHARS + 1)])
def test_what_cannot_be_held_in_a_grammar_is_refused(pattern: str) -> None:
    with pytest.raises(PatternError):
        texts_of(pattern)
