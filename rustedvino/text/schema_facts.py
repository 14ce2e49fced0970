"""What single keywords of a JSON schema say: types, counts, bounds, listed values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

from rustedvino.text.json_grammar import INTEGER_DIGITS

MAX_COUNTED: Final = 100_000
"""Largest value of minLength, maxLength, minItems, maxItems, minProperties and maxProperties."""

Path = tuple[str | int, ...]
Types = frozenset[str]

ALL_TYPES: Final[Types] = frozenset({"string", "number", "integer", "boolean", "null", "array", "object"})

ANNOTATIONS: Final = frozenset(
    {"title", "description", "default", "examples", "example", "deprecated", "readOnly", "writeOnly"}
    | {"$comment", "$schema", "$anchor", "$defs", "definitions", "contentEncoding", "contentMediaType"}
    | {"contentSchema", "discriminator", "externalDocs", "nullable"}
)
BY_TYPE: Final[Mapping[str, frozenset[str]]] = {
    "string": frozenset({"minLength", "maxLength", "pattern", "format"}),
    "number": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}),
    "array": frozenset({"items", "prefixItems", "minItems", "maxItems", "uniqueItems"}),
    "object": frozenset({"properties", "required", "additionalProperties", "minProperties", "maxProperties"}),
}
COMPOSED: Final = ("$ref", "const", "enum", "anyOf", "oneOf", "allOf")
KNOWN: Final = ANNOTATIONS.union(COMPOSED, {"type", "$id"}, *BY_TYPE.values())


class SchemaError(Exception):
    """A schema that is wrong, too large, or asks for what cannot be enforced. ``path`` leads to the place."""

    def __init__(self, path: Path, message: str) -> None:
        super().__init__(message)
        self.path = path
        self.message = message

    def __str__(self) -> str:
        place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in self.path)
        return f"schema{place}: {self.message}"


def declared_types(schema: dict[str, Any], path: Path) -> Types | None:
    """The types that ``type`` names; None without it."""
    if "type" not in schema:
        return None
    named = schema["type"]
    names = named if isinstance(named, list) else [named]
    for name in names:
        if not isinstance(name, str) or name not in ALL_TYPES:
            raise SchemaError((*path, "type"), f"must be one of {', '.join(sorted(ALL_TYPES))}, or an array of them")
    if not names:
        raise SchemaError((*path, "type"), "must name a type")
    return frozenset(names)


def implied_types(schema: dict[str, Any]) -> Types | None:
    """The types that the keywords are about: of what a schema without ``type`` allows, these are made."""
    implied = frozenset(name for name, keywords in BY_TYPE.items() if keywords & schema.keys())
    return implied or None


def made_types(schema: dict[str, Any]) -> Types:
    """The types of the values made for a schema."""
    if "type" in schema or listed_values(schema) is not None or any(name in schema for name in COMPOSED):
        return allowed_types(schema)
    return implied_types(schema) or ALL_TYPES


def allowed_types(schema: dict[str, Any]) -> Types:
    """The types of the values that satisfy a schema; too many where it is composed."""
    listed = listed_values(schema)
    if listed is not None:
        return frozenset(name for value in listed for name in types_of(value))
    types = declared_types(schema, ())
    if types is None:
        return ALL_TYPES
    return types | {"integer"} if "number" in types else types


def listed_values(schema: dict[str, Any]) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    values = schema.get("enum")
    return values if isinstance(values, list) else None


def types_of(value: Any) -> Types:
    """The types a value has: an integer is a number too."""
    if value is None:
        return frozenset({"null"})
    if isinstance(value, bool):
        return frozenset({"boolean"})
    if isinstance(value, int) or (isinstance(value, float) and value.is_integer()):
        return frozenset({"integer", "number"})
    if isinstance(value, float):
        return frozenset({"number"})
    if isinstance(value, str):
        return frozenset({"string"})
    return frozenset({"array"}) if isinstance(value, list) else frozenset({"object"})


def identity(value: Any) -> str:
    """Text that is the same for equal JSON values."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, sort_keys=True)


def counts(schema: dict[str, Any], least: str, most: str, path: Path) -> tuple[int, int | None]:
    low = _count(schema, least, path) or 0
    high = _count(schema, most, path)
    if high is not None and low > high:
        raise SchemaError((*path, least), f"is larger than {most}")
    return low, high


def _count(schema: dict[str, Any], name: str, path: Path) -> int | None:
    if name not in schema:
        return None
    value = schema[name]
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise SchemaError((*path, name), "must be a whole number, not negative")
    if value > MAX_COUNTED:
        raise SchemaError((*path, name), f"is larger than {MAX_COUNTED}")
    return value


def lower_bound(schema: dict[str, Any], path: Path) -> tuple[Decimal | None, bool]:
    """The lower bound, and whether it is itself excluded."""
    closed, opened = _bound(schema, "minimum", path), _bound(schema, "exclusiveMinimum", path)
    if opened is not None and (closed is None or opened >= closed):
        return opened, True
    return closed, False


def upper_bound(schema: dict[str, Any], path: Path) -> tuple[Decimal | None, bool]:
    closed, opened = _bound(schema, "maximum", path), _bound(schema, "exclusiveMaximum", path)
    if opened is not None and (closed is None or opened <= closed):
        return opened, True
    return closed, False


def _bound(schema: dict[str, Any], name: str, path: Path) -> Decimal | None:
    if name not in schema:
        return None
    value = schema[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SchemaError((*path, name), "must be a number")
    if abs(value) >= 10**INTEGER_DIGITS:
        raise SchemaError((*path, name), f"numbers of more than {INTEGER_DIGITS} digits are not supported")
    return Decimal(repr(value))


def fraction_digits(value: Decimal) -> int:
    exponent = value.normalize().as_tuple().exponent
    return max(0, -exponent) if isinstance(exponent, int) else 0
