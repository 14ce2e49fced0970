from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rustedvino.text.tools.json_scan import MAX_DEPTH
from rustedvino.text.tools.python_literal import PythonLiteral

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def translate(text: str, step: int = 1) -> str | None:
    """The JSON of a literal, None if it is none."""
    literal, out = PythonLiteral(), list[str]()
    text += ")"
    for at in range(0, len(text), step):
        chunk = text[at : at + step]
        if literal.feed(chunk, 0, out) < len(chunk):
            break
    return "".join(out) if literal.done else None


@given(value=VALUES, step=st.integers(1, 30))
@settings(max_examples=200, deadline=None)
def test_what_python_writes_comes_out_as_json(value: Any, step: int) -> None:
    translated = translate(repr(value), step)
    assert translated is not None
    assert json.loads(translated) == value


@given(value=VALUES, step=st.integers(1, 30))
@settings(max_examples=100, deadline=None)
def test_json_is_understood_too(value: Any, step: int) -> None:
    translated = translate(json.dumps(value), step)
    assert translated is not None
    assert json.loads(translated) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("(1, 'a',)", [1, "a"]),
        ("[1, 2,]", [1, 2]),
        ("{'a': 1,}", {"a": 1}),
        ('"""a "quoted" \'word\'\n"""', "a \"quoted\" 'word'\n"),
        ("''", ""),
        ("''''''", ""),
        ("1_000", 1000),
        ("0x1f", 31),
        (".5", 0.5),
        ("+2", 2),
        (r"'\x41\u00e9\U0001f642\d\/'", "Aé🙂\\d/"),
        ("'\\ud83d\\ude42'", "🙂"),
        ("true", True),
        ("-1e5", -1e5),
    ],
)
def test_forms_of_literals(text: str, value: Any) -> None:
    for step in (1, 100):
        translated = translate(text, step)
        assert translated is not None
        assert json.loads(translated) == value


@pytest.mark.parametrize(
    "text",
    ["{1}", "{1: 2}", "[1 2]", "f(1)", "name", "nan", "1+2", "[,]", "{'a'}", "{'a':}", "__import__", "['a' 'b']", "*"],
)
def test_what_is_no_literal_is_refused(text: str) -> None:
    assert translate(text) is None


def test_hostile_sizes_are_no_trouble() -> None:
    assert translate("[" * 100_000, 1000) is None
    assert translate("9" * 5000, 100) is None
    assert translate("[" * MAX_DEPTH + "]" * MAX_DEPTH) is not None
