"""JSON schemas: what is accepted is enforced, the rest is refused by name and at once."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from rustedvino.text.json_schema import (
    MAX_NESTING,
    MAX_SCHEMA_BYTES,
    SchemaError,
    check_schema,
    normalise,
    object_grammar,
    schema_grammar,
    schema_key,
)
from tests.support.ebnf import Texts
from tests.support.schemas import judge, schemas


def nested(levels: int) -> Any:
    """Arrays of arrays."""
    schema: Any = {"type": "boolean"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(schemas, st.integers(0, 2**32))
def test_every_text_of_the_grammar_satisfies_the_schema(schema: Any, seed: int) -> None:
    texts = Texts(schema_grammar(schema), seed)
    validator = judge(schema)
    for _ in range(12):
        text = texts.draw()
        validator.validate(json.loads(text))


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32))
def test_a_json_object_is_an_object(seed: int) -> None:
    assert isinstance(json.loads(Texts(object_grammar(), seed).draw()), dict)


@pytest.mark.parametrize("schema", [True, {}, {"description": "anything"}, {"title": "t", "x-order": 1}])
def test_a_schema_that_asks_for_nothing_is_any_value(schema: Any) -> None:
    texts = Texts(schema_grammar(schema), 1)
    kinds = {type(json.loads(texts.draw())) for _ in range(200)}
    assert kinds >= {dict, list, str, bool, type(None)}


def test_everything_allowed_can_be_said() -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}, "b": {"type": "boolean"}}, "required": ["b"]}
    texts = Texts(schema_grammar(schema), 1)
    seen = {json.dumps(json.loads(texts.draw())) for _ in range(300)}
    bodies = [{"b": True}, {"b": False}]
    bodies += [{"a": number, "b": flag} for number in (1, 2) for flag in (True, False)]
    assert seen == set(map(json.dumps, bodies))


@pytest.mark.parametrize(("low", "high"), [(0, 0), (-3, 4), (7, 120), (-120, -7), (99, 1001), (-1, 1)])
def test_an_integer_range_is_met_exactly(low: int, high: int) -> None:
    texts = Texts(schema_grammar({"type": "integer", "minimum": low, "maximum": high}), 1)
    seen = {int(texts.draw()) for _ in range(60 * (high - low + 1))}
    assert seen <= set(range(low, high + 1))
    assert {low, high} <= seen


REFUSED: list[tuple[Any, str]] = [
    (False, ""),
    (17, ""),
    ({"not": {"type": "string"}}, ".not"),
    ({"type": "integer", "multipleOf": 2}, ".multipleOf"),
    ({"if": {}, "then": {}}, ".if"),
    ({"type": "array", "uniqueItems": True}, ".uniqueItems"),
    ({"type": "array", "contains": {}}, ".contains"),
    ({"type": "object", "patternProperties": {}}, ".patternProperties"),
    ({"type": "object", "propertyNames": {}}, ".propertyNames"),
    ({"type": "object", "dependentRequired": {}}, ".dependentRequired"),
    ({"type": "object", "unevaluatedProperties": False}, ".unevaluatedProperties"),
    ({"madeUp": 1}, ".madeUp"),
    ({"type": "object", "properties": {"a": {"type": "strin"}}}, ".properties.a.type"),
    ({"type": []}, ".type"),
    ({"type": {"a": 1}}, ".type"),
    ({"allOf": [{}, {}]}, ".allOf"),
    ({"anyOf": []}, ".anyOf"),
    ({"anyOf": {"type": "string"}}, ".anyOf"),
    ({"enum": []}, ".enum"),
    ({"enum": "abc"}, ".enum"),
    ({"enum": ["a"], "minLength": 2}, ".minLength"),
    ({"anyOf": [{"type": "string"}], "type": "string"}, ".type"),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, ".oneOf[1]"),
    ({"oneOf": [{"enum": [1, 2]}, {"enum": [2.0]}]}, ".oneOf[1]"),
    ({"$ref": "#"}, ".$ref"),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, ".$ref.$ref"),
    ({"$ref": "https://example.org/schema.json"}, ".$ref"),
    ({"$ref": "#/nowhere"}, ".$ref"),
    ({"$ref": "#anchor"}, ".$ref"),
    ({"$ref": 5}, ".$ref"),
    ({"$dynamicRef": "#a"}, ".$dynamicRef"),
    ({"properties": {"a": {"$id": "http://a.org"}}}, ".properties.a.$id"),
    ({"properties": []}, ".properties"),
    ({"required": "a"}, ".required"),
    ({"required": [1]}, ".required"),
    ({"properties": {"a": False}, "required": ["a"]}, ".required"),
    ({"required": ["a"], "additionalProperties": False}, ".required"),
    ({"properties": {"a": True, "b": True}, "minProperties": 1}, ".minProperties"),
    ({"properties": {"a": True, "b": True}, "maxProperties": 1}, ".maxProperties"),
    ({"type": "object", "minProperties": 2}, ".minProperties"),
    ({"type": "array", "items": [True]}, ".items"),
    ({"type": "array", "items": False, "minItems": 1}, ".minItems"),
    ({"type": "array", "minItems": 3, "maxItems": 2}, ".minItems"),
    ({"type": "array", "minItems": 10**9}, ".minItems"),
    ({"type": "array", "prefixItems": {}}, ".prefixItems"),
    ({"type": "string", "minLength": 10**9}, ".minLength"),
    ({"type": "string", "maxLength": 10**9}, ".maxLength"),
    ({"type": "string", "maxLength": -1}, ".maxLength"),
    ({"type": "string", "maxLength": True}, ".maxLength"),
    ({"type": "string", "maxLength": 1.5}, ".maxLength"),
    ({"type": "string", "minLength": 3, "maxLength": 2}, ".minLength"),
    ({"type": "string", "pattern": "^a{1,6}$", "maxLength": 3}, ".maxLength"),
    ({"type": "string", "pattern": "(a"}, ".pattern"),
    ({"type": "string", "pattern": "(?=a)b"}, ".pattern"),
    ({"type": "string", "pattern": ["a"]}, ".pattern"),
    ({"type": "string", "format": 3}, ".format"),
    ({"type": "string", "format": "regex"}, ".format"),
    ({"type": "string", "format": "uuid", "maxLength": 20}, ".maxLength"),
    ({"type": "integer", "minimum": 3, "maximum": 2}, ""),
    ({"type": "integer", "minimum": 0.25, "maximum": 0.75}, ""),
    ({"type": "integer", "exclusiveMinimum": 1, "exclusiveMaximum": 2}, ""),
    ({"type": "number", "minimum": 1e300}, ".minimum"),
    ({"type": "number", "exclusiveMinimum": 0, "maximum": 1e-30}, ""),
    ({"type": "number", "minimum": "1"}, ".minimum"),
    ({"type": "number", "minimum": True}, ".minimum"),
    ({"properties": {"a": {"type": "number", "minimum": float("nan")}}}, ""),
    ({"enum": [float("inf")]}, ""),
    ({"const": "\ud800"}, ""),
    ({"enum": ["x" * 100] * 10_000}, ""),
    ({"enum": list(range(2000))}, ".enum"),
    ({"properties": {f"p{index}": True for index in range(1000)}}, ""),
    ({"properties": {"x" * 5000: True}, "additionalProperties": True}, ".additionalProperties"),
    ({"prefixItems": [True] * 5000, "type": "array"}, None),
    ({"anyOf": [True] * 100}, ".anyOf"),
    (nested(MAX_NESTING), ""),
]


@pytest.mark.parametrize(("schema", "path"), REFUSED, ids=lambda value: repr(value)[:40])
def test_what_cannot_be_enforced_is_refused_by_name(schema: Any, path: str | None) -> None:
    with pytest.raises(SchemaError) as found:
        check_schema(schema)
    if path is not None:
        assert str(found.value).partition(":")[0] == f"schema{path}"
    assert found.value.message


def test_deep_nesting_is_refused_without_recursion() -> None:
    with pytest.raises(SchemaError, match="nested deeper"):
        check_schema(nested(10_000))


def test_references_that_double_do_not_explode() -> None:
    definitions: dict[str, Any] = {"d0": {"type": "boolean"}}
    for level in range(1, 60):
        part = {"$ref": f"#/$defs/d{level - 1}"}
        definitions[f"d{level}"] = {"type": "object", "properties": {"a": part, "b": part}}
    assert len(schema_grammar({"$ref": "#/$defs/d59", "$defs": definitions})) < 20_000


def test_an_unused_definition_may_be_anything() -> None:
    check_schema({"type": "null", "$defs": {"unused": {"not": {}}}})


@pytest.mark.parametrize(
    "schema",
    [
        {"oneOf": [{"type": "integer"}, {"type": "string"}]},
        {"oneOf": [{"const": 1}, {"const": "1"}, {"type": "null"}]},
        {"oneOf": [{"$ref": "#/$defs/a"}, {"type": "array"}], "$defs": {"a": {"type": "object"}}},
    ],
)
def test_branches_that_exclude_each_other_may_be_one_of(schema: Any) -> None:
    check_schema(schema)


@given(schemas)
@settings(max_examples=50, deadline=None)
@example({"b": 1, "a": [1.5, "é"]})
def test_the_normal_form_says_the_same(schema: Any) -> None:
    text = normalise(schema)
    assert json.loads(text) == schema
    assert normalise(json.loads(json.dumps(schema, indent=3))) == text
    assert schema_key(text) == schema_key(normalise(json.loads(text)))


def test_schemas_differ_by_their_order_and_content() -> None:
    keys = {schema_key(normalise(schema)) for schema in ({"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1}, {"a": "1"})}
    assert len(keys) == 4


def test_a_schema_is_bounded_in_bytes_before_it_is_written() -> None:
    with pytest.raises(SchemaError):
        normalise({"description": "é" * (MAX_SCHEMA_BYTES // 2 + 1)})
    normalise({"description": "e" * (MAX_SCHEMA_BYTES - 100)})
