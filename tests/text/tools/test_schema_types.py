from __future__ import annotations

import json
from typing import Any

import pytest

from rustedvino.text.tools.schema_types import allowed_types, json_of


@pytest.mark.parametrize(
    ("schema", "types"),
    [
        ({"type": "string"}, {"string"}),
        ({"type": ["integer", "null"]}, {"integer", "null"}),
        ({"enum": ["a", 1, None]}, {"string", "number", "null"}),
        ({"const": {"a": 1}}, {"object"}),
        ({"anyOf": [{"type": "array"}, {"oneOf": [{"const": True}]}]}, {"array", "boolean"}),
        ({}, set()),
        ({"type": 5}, set()),
        ({"type": "text"}, set()),
        ("nonsense", set()),
        (None, set()),
    ],
)
def test_types_a_schema_allows(schema: Any, types: set[str]) -> None:
    assert allowed_types(schema) == types


def test_a_schema_that_nests_without_end_is_bounded() -> None:
    schema: dict[str, Any] = {}
    schema["anyOf"] = [schema]
    assert allowed_types(schema) == frozenset()


@pytest.mark.parametrize(
    ("text", "types", "value"),
    [
        ("5", {"string"}, "5"),
        ("5", {"integer"}, 5),
        ("5", {"number", "string"}, 5),
        ("5", set(), 5),
        ("5 apples", {"integer"}, "5 apples"),
        ("[1,", {"array"}, "[1,"),
        ("[1] x", {"array"}, "[1] x"),
        ("True", {"boolean"}, True),
        ('"x"', {"integer", "string"}, "x"),
        ("", {"object"}, ""),
        ("é\n", set(), "é\n"),
    ],
)
def test_bare_text_becomes_json(text: str, types: set[str], value: Any) -> None:
    got = json.loads(json_of(text, frozenset(types)))
    assert got == value
    assert type(got) is type(value)
