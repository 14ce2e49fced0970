"""Formats: every text is valid by an independent judge, and as long as is said."""

import pytest

from rustedvino.text.automata import language
from rustedvino.text.json_grammar import Grammar
from rustedvino.text.string_formats import FORMATS, REFUSED_FORMATS
from tests.support.ebnf import Texts
from tests.support.schemas import judge


@pytest.mark.parametrize("name", FORMATS)
def test_texts_of_a_format_are_valid(name: str) -> None:
    form, grammar = FORMATS[name], Grammar()
    texts = Texts(grammar.text(language(grammar, form.node)), 1)
    validator = judge({"type": "string", "format": name})
    for _ in range(300):
        text = texts.draw()
        validator.validate(text)
        assert form.least <= len(text) <= form.most


def test_a_format_is_either_enforced_or_refused() -> None:
    assert not REFUSED_FORMATS & set(FORMATS)
