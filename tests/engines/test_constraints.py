"""Constraints on the real runtime: what a model writes under them, whatever it would rather write."""

import json
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rustedvino.engines.constraints import structured_output
from rustedvino.engines.faults import EngineFault
from rustedvino.engines.text import generation_config
from rustedvino.text.automata import literal
from rustedvino.text.constraints import JSON_OBJECT, after_thinking, schema_constraint, tools_constraint
from tests.support.engine import TinyModel, options, tiny_model
from tests.support.schemas import FORMATS, PATTERNS, judge, schemas

__all__ = ["tiny_model"]

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
CALL = {
    "type": "structural_tag",
    "format": {
        "type": "tag",
        "begin": "<call>",
        "content": {"type": "json_schema", "json_schema": {"type": "object", "properties": {"x": {"type": "boolean"}}}},
        "end": "</call>",
    },
}


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(batch=st.lists(schemas, min_size=4, max_size=4))
def test_answers_satisfy_their_schemas(tiny_model: TinyModel, batch: list[Any]) -> None:
    answers = tiny_model.answers([schema_constraint(schema) for schema in batch], max_new_tokens=250)
    for schema, (text, ended) in zip(batch, answers, strict=True):
        if ended:
            judge(schema).validate(json.loads(text))


@pytest.mark.parametrize("temperature", [0.0, 1.0, 2.0])
def test_every_answer_comes_to_its_end(tiny_model: TinyModel, temperature: float) -> None:
    constraint = schema_constraint(PERSON)
    for text, ended in tiny_model.answers([constraint] * 8, temperature=temperature):
        assert ended, text
        judge(PERSON).validate(json.loads(text))


@pytest.mark.parametrize("form", FORMATS)
def test_formats_as_the_runtime_writes_them(tiny_model: TinyModel, form: str) -> None:
    schema = {"type": "string", "format": form}
    for text, ended in tiny_model.answers([schema_constraint(schema)] * 6, max_new_tokens=600):
        assert ended, text
        judge(schema).validate(json.loads(text))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_as_the_runtime_writes_them(tiny_model: TinyModel, pattern: str) -> None:
    schema = {"type": "string", "pattern": pattern}
    answers = tiny_model.answers([schema_constraint(schema)] * 8)
    for text, ended in answers:
        if ended:
            judge(schema).validate(json.loads(text))


@pytest.mark.parametrize(("least", "most"), [(0, 3), (130, 140), (127, 129), (128, 128), (200, 210)])
def test_lengths_beyond_what_the_runtime_writes_out(tiny_model: TinyModel, least: int, most: int) -> None:
    text_schema = {"type": "string", "minLength": least, "maxLength": most}
    list_schema = {"type": "array", "items": {"type": "boolean"}, "minItems": least, "maxItems": most}
    for schema in (text_schema, list_schema):
        answers = tiny_model.answers([schema_constraint(schema)] * 2, max_new_tokens=1500)
        assert any(ended for _, ended in answers)
        for text, ended in answers:
            if ended:
                judge(schema).validate(json.loads(text))


def test_a_json_object(tiny_model: TinyModel) -> None:
    answers = tiny_model.answers([JSON_OBJECT] * 12)
    assert all(text.startswith("{") for text, _ in answers)
    assert all(isinstance(json.loads(text), dict) for text, ended in answers if ended)


def test_other_kinds(tiny_model: TinyModel) -> None:
    regex, grammar, tag = tiny_model.answers(
        [{"type": "regex", "pattern": "[0-9]{3}-x"}, {"type": "grammar", "grammar": 'root ::= "yes" | "no"'}, CALL]
    )
    assert re.fullmatch("[0-9]{3}-x", regex[0])
    assert grammar[0] in ("yes", "no")
    found = re.fullmatch(r"<call>(.*)</call>", tag[0], re.DOTALL)
    assert found
    assert set(json.loads(found[1])) <= {"x"}


@pytest.mark.parametrize("behind", ["a", "F", "0", "g"])
def test_letters_behind_any_character(tiny_model: TinyModel, behind: str) -> None:
    texts = [chr(code) + behind for code in (*range(1, 0x180), 0x7FF, 0x800, 0xFFFD, 0x10000, 0x10FFFF)]
    grammars = [{"type": "grammar", "grammar": f"root ::= {literal(text)}"} for text in texts]
    assert tiny_model.answers(grammars, max_new_tokens=40) == [(text, True) for text in texts]


def test_an_answer_behind_thinking(tiny_model: TinyModel) -> None:
    constraint = after_thinking(schema_constraint({"type": "boolean"}), "", "</think>\n\n")
    for text, ended in tiny_model.answers([constraint] * 4, max_new_tokens=300):
        if ended:
            assert re.search(r"</think>\n\n(true|false)$", text)


def test_arguments_that_cannot_be_enforced_are_an_object_unless_strict(tiny_model: TinyModel) -> None:
    loose = {"type": "json_schema", "json_schema": {"not": {"type": "string"}}}
    tag = {"type": "structural_tag", "format": {"type": "tag", "begin": "<a>", "content": loose, "end": "</a>"}}
    ((text, ended),) = tiny_model.answers([tools_constraint(tag, strict=False)], temperature=0.5)
    assert text.startswith("<a>{")
    assert not ended or isinstance(json.loads(text[3:-4]), dict)


def test_constrained_and_free_requests_share_a_batch(tiny_model: TinyModel) -> None:
    free, held = tiny_model.answers([None, schema_constraint({"enum": ["only this"]})], max_new_tokens=12)
    assert held == ('"only this"', True)
    assert free[0] != held[0]


@pytest.mark.parametrize(
    "constraint",
    [
        {"type": "made up"},
        {},
        {"type": "json_schema"},
        {"type": "json_schema", "schema": "{"},
        {"type": "json_schema", "schema": '{"not": {}}'},
        {"type": "structural_tag"},
        {"type": "structural_tag", "format": {"type": "tag", "content": {"type": "json_schema", "json_schema": False}}},
    ],
)
def test_what_is_no_constraint_is_a_fault_before_the_runtime_sees_it(constraint: dict[str, Any]) -> None:
    with pytest.raises(EngineFault) as found:
        structured_output(constraint)
    assert found.value.kind == "bad_input"


@pytest.mark.parametrize("change", [{"ignore_eos": True}, {"eos_token_ids": []}])
def test_no_answer_may_go_on_behind_the_end_of_its_grammar(change: dict[str, Any]) -> None:
    with pytest.raises(EngineFault, match="constrained output"):
        generation_config(options(JSON_OBJECT, 10, 0.0, 0) | change)
    generation_config(options(None, 10, 0.0, 0) | change)
