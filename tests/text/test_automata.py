"""Languages made deterministic: the same texts, and no two branches that begin alike."""

import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rustedvino.text.automata import Chars, Either, Joined, Node, Repeated, TooManyStates, language, word, words
from rustedvino.text.json_grammar import Grammar
from tests.support.ebnf import Texts

LETTERS = "abc"


def _nodes() -> st.SearchStrategy[tuple[Node, str]]:
    """Languages with a pattern for the same."""
    letters = st.sampled_from(["a", "b", "c", "ab", "bc", "abc"])
    leaf = letters.map(lambda some: (Chars(tuple((ord(letter), ord(letter)) for letter in some)), f"[{some}]"))

    def joined(parts: list[tuple[Node, str]]) -> tuple[Node, str]:
        return Joined([node for node, _ in parts]), "".join(pattern for _, pattern in parts)

    def either(parts: list[tuple[Node, str]]) -> tuple[Node, str]:
        return Either([node for node, _ in parts]), f"(?:{'|'.join(pattern for _, pattern in parts)})"

    def nested(inner: st.SearchStrategy[tuple[Node, str]]) -> st.SearchStrategy[tuple[Node, str]]:
        some = st.lists(inner, min_size=1, max_size=3)
        counts = st.tuples(st.integers(0, 2), st.none() | st.integers(0, 2))
        return st.one_of(
            some.map(joined),
            some.map(either),
            st.builds(
                lambda part, count: (
                    Repeated(part[0], count[0], None if count[1] is None else sum(count)),
                    f"(?:{part[1]}){{{count[0]},{'' if count[1] is None else sum(count)}}}",
                ),
                inner,
                counts,
            ),
        )

    return st.recursive(leaf, nested, max_leaves=8)


class Recogniser:
    """Follows a grammar of ``language`` or ``words``, which offers one branch at most."""

    def __init__(self, grammar: Grammar, root: str) -> None:
        self.branches = {name: rule[1] for name, rule in self._parsed(grammar).items()}
        self.root = root

    @staticmethod
    def _parsed(grammar: Grammar) -> dict[str, tuple[str, list[tuple[str, list[tuple[str, ...]]]]]]:
        return dict(Texts(grammar.text('"x"'), 0)._rules)

    def accepts(self, text: str) -> bool:
        """Whether the text is of the language. Fails where two branches would do."""
        return self._rest(self.root, text)

    def _rest(self, name: str, text: str) -> bool:
        if [[kind for kind, *_ in parts] for _, parts in self.branches[name]] == [["name"]]:
            return self._rest(self.branches[name][0][1][0][1], text)  # an alias, which keeps the runtime from merging
        fitting = []
        for _, parts in self.branches[name]:
            head, *tail = parts
            length = self._begins(head, text)
            if length is not None:
                fitting.append((length, tail))
        lengths = [length for length, _ in fitting if length]
        assert len(lengths) <= 1, f"{name} leaves a choice at {text!r}"
        return any(self._rest(tail[0][1], text[length:]) if tail else length == len(text) for length, tail in fitting)

    def _begins(self, head: tuple[str, ...], text: str) -> int | None:
        kind, *rest = head
        if kind == "text":
            return len(rest[0]) if text.startswith(rest[0]) else None
        ranges, negated = rest
        return 1 if text and any(low <= ord(text[0]) <= high for low, high in ranges) != negated else None


@settings(max_examples=150, deadline=None)
@given(_nodes())
def test_the_texts_are_those_of_the_language(described: tuple[Node, str]) -> None:
    node, pattern = described
    grammar = Grammar()
    recogniser = Recogniser(grammar, language(grammar, node))
    for length in range(6):
        for letters in itertools.product(LETTERS, repeat=length):
            text = "".join(letters)
            assert recogniser.accepts(text) == bool(re.fullmatch(pattern, text)), text


@settings(max_examples=150, deadline=None)
@given(st.lists(st.text(st.sampled_from('ab"\\'), min_size=1, max_size=4), min_size=1, max_size=8, unique=True))
def test_words_are_exactly_the_words(some: list[str]) -> None:
    grammar = Grammar()
    recogniser = Recogniser(grammar, words(grammar, some))
    for text in some:
        assert recogniser.accepts(text)
        for other in (text[:-1], text + "a", text[::-1], text[1:]):
            assert recogniser.accepts(other) == (other in some)


def test_a_word_inside_another_and_letters_beyond_ascii() -> None:
    some = ["é", "à", "éà", "中", "丰", "中丰", "a", "中中中"]
    for make in (words, lambda grammar, texts: language(grammar, Either([word(text) for text in texts]))):
        grammar = Grammar()
        drawn = Texts(grammar.text(make(grammar, some)), 1)
        assert {drawn.draw() for _ in range(400)} == set(some)


@pytest.mark.parametrize(
    "node",
    [
        Repeated(Chars(((97, 122),)), 5000, 5000),
        Joined([Repeated(Chars(((97, 98),)), 0, None), word("a"), Repeated(Chars(((97, 98),)), 40, 40)]),
        Repeated(Repeated(Repeated(word("ab"), 0, 100), 0, 100), 0, 100),
    ],
)
def test_a_language_of_too_many_states_is_refused(node: Node) -> None:
    with pytest.raises(TooManyStates):
        language(Grammar(), node)
