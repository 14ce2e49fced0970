"""Random JSON schemas of the supported part, and an independent judge of what satisfies them."""

from typing import Any

import jsonschema
from hypothesis import strategies as st

PATTERNS = (
    "^[A-Z][a-z]{2,4}$",
    "^a|b$",
    "x[0-9]+",
    r"^\w{1,3}-\d{2}$",
    r"^(?:ab|cd){1,3}[^\"a-f]$",
    r"^.{2,4}$",
    r"^[\\\"/]{1,3}$",
    r"^\s?\S{2}\D$",
    "^[à-ö中]{2}🙂?$",
    "^$",
)
FORMATS = ("date", "date-time", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri")

_names = st.text(st.sampled_from('abck "\\\né中{}<'), max_size=4)
_texts = st.text(st.sampled_from('ab "\\\n\té🙂/\x00'), max_size=5)
_integers = st.integers(-2000, 2000) | st.integers(-(10**12), 10**12)
_decimals = st.decimals(-999, 999, places=2).map(float) | st.integers(-99, 99)
_values = st.recursive(
    st.none() | st.booleans() | _integers | _decimals | _texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_names, inner, max_size=2),
    max_leaves=4,
)


@st.composite
def _bounded(draw: Any, kind: str, numbers: Any) -> dict[str, Any]:
    low, high = sorted((draw(numbers), draw(numbers)))
    schema: dict[str, Any] = {"type": kind}
    lower = draw(st.sampled_from(["", "minimum", "exclusiveMinimum"]))
    upper = draw(st.sampled_from(["", "maximum", "exclusiveMaximum"]))
    if lower:
        schema[lower] = low
    if upper:
        schema[upper] = high if high - low > 2 else round(low + 3, 2)
    return schema


@st.composite
def _strings(draw: Any) -> dict[str, Any]:
    least = draw(st.integers(0, 4))
    return {"type": "string", "minLength": least, "maxLength": least + draw(st.integers(0, 4))}


_leaves = st.one_of(
    st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"type": ["boolean", "null"]}, {"type": "integer"}]),
    _bounded("integer", _integers),
    _bounded("number", _decimals),
    _strings(),
    st.sampled_from([{"type": "string", "pattern": pattern} for pattern in PATTERNS]),
    st.sampled_from([{"type": "string", "format": form} for form in FORMATS]),
    st.builds(lambda value: {"const": value}, _values),
    st.builds(lambda values: {"enum": values}, st.lists(_values, min_size=1, max_size=4)),
)


@st.composite
def _arrays(draw: Any, inner: Any) -> dict[str, Any]:
    least = draw(st.integers(0, 2))
    schema: dict[str, Any] = {"type": "array", "items": draw(inner), "minItems": least}
    schema["maxItems"] = least + draw(st.integers(0, 2))
    if draw(st.booleans()):
        schema["prefixItems"] = draw(st.lists(inner, max_size=2))
    return schema


@st.composite
def _objects(draw: Any, inner: Any) -> dict[str, Any]:
    properties = draw(st.dictionaries(_names, inner, max_size=4))
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    schema["required"] = [name for name in properties if draw(st.booleans())]
    others = draw(st.sampled_from(["unsaid", "none", "some"]))
    if others == "none":
        schema["additionalProperties"] = False
    elif others == "some":
        schema["additionalProperties"] = draw(inner)
        if draw(st.booleans()):
            schema["required"].append("extra")
    return schema


@st.composite
def _maps(draw: Any, inner: Any) -> dict[str, Any]:
    schema = {"type": "object", "additionalProperties": draw(inner), "maxProperties": draw(st.integers(1, 3))}
    if draw(st.booleans()):
        schema["minProperties"] = 1
    return schema


@st.composite
def _tagged(draw: Any, inner: Any) -> dict[str, Any]:
    kinds = draw(st.lists(st.sampled_from(["a", "b", 1, None]), min_size=2, max_size=3, unique=True))
    return {
        "oneOf": [
            {"type": "object", "properties": {"kind": {"const": kind}, "value": draw(inner)}, "required": ["kind"]}
            for kind in kinds
        ]
    }


def _nested(inner: Any) -> Any:
    return st.one_of(
        _arrays(inner),
        _objects(inner),
        _maps(inner),
        _tagged(inner),
        st.builds(lambda branches: {"anyOf": branches}, st.lists(inner, min_size=1, max_size=3)),
        st.builds(lambda branch: {"allOf": [branch], "description": "one"}, inner),
    )


@st.composite
def _referring(draw: Any, inner: Any) -> dict[str, Any]:
    """A schema with definitions at its top, used more than once."""
    part = {"$ref": "#/$defs/part~1one"}
    return {
        "$defs": {"part/one": draw(inner), "list": {"type": "array", "items": part, "maxItems": 2}},
        "type": "object",
        "properties": {"one": part, "two": {"$ref": "#/$defs/list"}, "three": draw(inner)},
        "required": ["two"],
    }


inner_schemas = st.recursive(_leaves, _nested, max_leaves=6)
schemas = inner_schemas | _referring(inner_schemas)


def judge(schema: Any) -> Any:
    """A validator of the standard, formats included where it knows them."""
    kind = jsonschema.Draft202012Validator
    return kind(schema, format_checker=kind.FORMAT_CHECKER)
