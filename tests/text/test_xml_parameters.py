"""Arguments as elements: read back by the parser of the dialect, they satisfy the schema."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rustedvino.text.json_grammar import Grammar
from rustedvino.text.schema_facts import SchemaError
from rustedvino.text.tools.events import ToolCallArguments
from rustedvino.text.tools.qwen3_coder import Qwen3CoderParser
from rustedvino.text.xml_parameters import bare_text, parameters_grammar
from tests.support.ebnf import Texts
from tests.support.schemas import judge

SCHEMA = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "lines": {"type": "array", "items": {"type": "integer"}, "maxItems": 2},
        "mode": {"type": "string", "enum": ["read", "write"]},
        "force": {"type": "boolean"},
    },
    "required": ["mode", "path"],
}


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32))
def test_elements_are_read_back_as_arguments_of_the_schema(seed: int) -> None:
    elements = Texts(parameters_grammar(SCHEMA), seed).draw()
    text = f"<tool_call>\n<function=edit>{elements}\n</function>\n</tool_call>"
    parser = Qwen3CoderParser({"edit": SCHEMA})
    events = [*parser.push(text), *parser.finish()]
    arguments = json.loads("".join(event.fragment for event in events if isinstance(event, ToolCallArguments)))
    judge(SCHEMA).validate(arguments)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(["<", "/", "</parameter", "</function", "p", ">", "a", "</par", "\n"]), max_size=6))
def test_bare_text_is_all_but_the_end_tags(parts: list[str]) -> None:
    grammar = Grammar()
    root = bare_text(grammar)
    states = {name: body.split(" | ") for name, body in ((f"r{i}", grammar._rules[f"r{i}"]) for i in range(20))}
    text = "".join(parts)
    state: str | None = root
    for character in text:
        branches = [branch.split(" ") for branch in states[state][1:]]
        named = [target for label, target in branches if label == f'"{character}"']
        special = character in "</parmetfuncio>"
        state = named[0] if named else None if special else branches[0][1]
        if state is None:
            break
    assert (state is None) == ("</parameter>" in text or "</function>" in text)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array"},
        {"type": "object", "properties": []},
        {"type": "object", "required": "a"},
        {"type": "object", "properties": {"a>b": {}}},
        {"type": "object", "properties": {"a": {"not": {}}}},
        {"type": "object", "properties": {"a": False}, "required": ["a"]},
        {"type": "object", "patternProperties": {}},
    ],
)
def test_what_cannot_be_written_is_refused(schema: Any) -> None:
    with pytest.raises(SchemaError):
        parameters_grammar(schema)


@pytest.mark.parametrize("schema", [True, {}, {"type": "object"}, {"properties": {}, "additionalProperties": False}])
def test_nothing_said_of_parameters(schema: Any) -> None:
    Texts(parameters_grammar(schema), 1).draw()
