"""Giving a parameter written as bare text the type its JSON schema asks for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rustedvino.text.tools.json_scan import WHITESPACE, JsonScanner
from rustedvino.text.tools.python_literal import PythonLiteral

_MAX_NESTING = 20
_ALL_TYPES = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})


def allowed_types(schema: Any, depth: int = 0) -> frozenset[str]:
    """The JSON types a schema allows, as far as ``type``, ``enum``, ``const`` and unions tell; empty = unsaid."""
    if not isinstance(schema, Mapping) or depth > _MAX_NESTING:
        return frozenset()
    named = schema.get("type")
    if isinstance(named, str):
        return frozenset({named}) & _ALL_TYPES
    if isinstance(named, list):
        return frozenset(name for name in named if isinstance(name, str)) & _ALL_TYPES
    if "const" in schema:
        return frozenset({_type_of(schema["const"])})
    if isinstance(schema.get("enum"), list):
        return frozenset(_type_of(value) for value in schema["enum"])
    found: frozenset[str] = frozenset()
    for union in ("anyOf", "oneOf", "allOf"):
        branches = schema.get(union)
        for branch in branches if isinstance(branches, list) else ():
            found |= allowed_types(branch, depth + 1)
    return found


def is_text(types: frozenset[str]) -> bool:
    """Whether a value of these types is a string however it looks, so that it can be passed on as it comes."""
    return types == {"string"}


def json_of(text: str, types: frozenset[str]) -> str:
    """The JSON text of a bare value: itself or its Python form where the types allow it, else a string."""
    bare = text.strip(WHITESPACE)
    if not is_text(types):
        for candidate in (_as_json(bare), _as_python(bare)):
            if candidate is not None and _fits(candidate, types):
                return candidate
    return json.dumps(text, ensure_ascii=False)


def _fits(written: str, types: frozenset[str]) -> bool:
    kind = _KINDS.get(written[0], "number")
    if not types:
        return kind != "string"
    return kind in types or (kind == "number" and "integer" in types)


_KINDS = {'"': "string", "{": "object", "[": "array", "t": "boolean", "f": "boolean", "n": "null"}


def _as_json(text: str) -> str | None:
    scanner, out = JsonScanner(), list[str]()
    # a number is over at the first character behind it
    end = scanner.feed(text + "\n", 0, out)
    return "".join(out) if scanner.done and end >= len(text) else None


def _as_python(text: str) -> str | None:
    literal, out = PythonLiteral(), list[str]()
    end = literal.feed(text + "\n", 0, out)
    return "".join(out) if literal.done and end >= len(text) else None


def _type_of(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"
