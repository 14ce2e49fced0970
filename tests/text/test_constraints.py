"""Constraints as plain data."""

import json
from typing import Any

import pytest

from rustedvino.text.constraints import (
    JSON_OBJECT,
    MAX_TREE_NESTING,
    after_thinking,
    compiled,
    constraint_key,
    schema_constraint,
    tools_constraint,
)
from rustedvino.text.json_schema import object_grammar, schema_grammar
from rustedvino.text.schema_facts import SchemaError

BOOLEAN = {"type": "boolean"}


def tag(schema: Any) -> dict[str, Any]:
    """A structural tag around the arguments of one tool."""
    leaf = {"type": "json_schema", "json_schema": schema}
    return {"type": "structural_tag", "format": {"type": "tag", "begin": "<", "content": leaf, "end": ">"}}


def test_schemas_become_grammars() -> None:
    text = json.dumps(BOOLEAN)
    assert compiled({"type": "json_schema", "schema": text}) == schema_constraint(BOOLEAN)
    assert compiled(schema_constraint(BOOLEAN)) == {"type": "grammar", "grammar": schema_grammar(BOOLEAN)}
    assert compiled(JSON_OBJECT) == {"type": "grammar", "grammar": object_grammar()}
    content = compiled(tag(BOOLEAN))["format"]["content"]
    assert content == {"type": "grammar", "grammar": schema_grammar(BOOLEAN)}
    assert compiled(compiled(tag(BOOLEAN))) == compiled(tag(BOOLEAN))


@pytest.mark.parametrize("plain", [{"type": "regex", "pattern": "a"}, {"type": "grammar", "grammar": 'root ::= "a"'}])
def test_what_the_runtime_takes_stays(plain: dict[str, Any]) -> None:
    assert compiled(plain) == plain


def test_keys_tell_constraints_apart() -> None:
    constraints = [JSON_OBJECT, schema_constraint({}), schema_constraint(BOOLEAN), tag(BOOLEAN), tag({})]
    assert len({constraint_key(constraint) for constraint in constraints}) == len(constraints)
    spaced = schema_constraint(json.loads('{ "type" : "boolean" }'))
    assert constraint_key(spaced) == constraint_key(schema_constraint(BOOLEAN))


def test_arguments_are_enforced_where_it_can_be_done() -> None:
    for strict in (True, False):
        assert tools_constraint(tag(BOOLEAN), strict=strict) == compiled(tag(BOOLEAN))
    odd = {"properties": {"a": {"not": {}}}}
    with pytest.raises(SchemaError) as found:
        tools_constraint(tag(odd), strict=True)
    assert found.value.path == ("content", "json_schema", "properties", "a", "not")
    loose = tools_constraint(tag(odd), strict=False)
    assert loose["format"]["content"]["grammar"] == schema_grammar({"type": "object"})


def test_thinking_comes_first() -> None:
    answer = compiled(schema_constraint(BOOLEAN))
    opened = after_thinking(schema_constraint(BOOLEAN), "", "</think>")["format"]
    assert opened["elements"][0] == {"type": "tag", "begin": "", "content": {"type": "any_text"}, "end": "</think>"}
    assert opened["elements"][1] == answer
    optional = after_thinking(tag(BOOLEAN), "<think>", "</think>")["format"]
    assert optional["type"] == "or"
    assert optional["elements"][1] == compiled(tag(BOOLEAN))["format"]


def test_no_tree_recurses_without_bound() -> None:
    tree: Any = {}
    for _ in range(MAX_TREE_NESTING + 1):
        tree = {"elements": tree}
    with pytest.raises(SchemaError, match="nested"):
        compiled({"type": "structural_tag", "format": tree})


@pytest.mark.parametrize("nothing", [{}, {"type": "other"}, {"type": None}])
def test_an_unknown_type_is_refused(nothing: dict[str, Any]) -> None:
    with pytest.raises(SchemaError):
        compiled(nothing)
