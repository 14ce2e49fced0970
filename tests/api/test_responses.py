"""The Responses request as a whole: what is taken, what is refused by name, what is told back."""

import copy
from typing import Any

import pytest

from rustedvino.api.converter import structure
from rustedvino.api.errors import ApiError
from rustedvino.api.responses import ResponsesRequest

HELLO: dict[str, Any] = {"model": "m", "input": "hi"}
TOOL: dict[str, Any] = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}
SCHEMA: dict[str, Any] = {"type": "json_schema", "name": "n", "schema": {"type": "object"}}


def take(**fields: Any) -> ResponsesRequest:
    return structure({**HELLO, **fields}, ResponsesRequest)


def refused(**fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        take(**fields)
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize(
    "name",
    [
        "previous_response_id",
        "conversation",
        "prompt",
        "context_management",
        "max_tool_calls",
        "moderation",
        "messages",
        "n",
        "max_tokens",
        "max_completion_tokens",
        "response_format",
        "reasoning_effort",
        "logprobs",
    ],
)
def test_what_cannot_be_done_is_refused_by_name(name: str) -> None:
    error = refused(**{name: 1})
    assert (error.param, error.code) == (name, "unsupported_parameter")
    assert take(**{name: None}) == take()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"background": True}, "background"),
        ({"truncation": "auto"}, "truncation"),
        ({"truncation": "x"}, "truncation"),
        ({"model": ""}, "model"),
        ({"input": None}, "input"),
        ({"input": 1}, "input"),
        ({"instructions": ["x"]}, "instructions"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": "5"}, "max_output_tokens"),
        ({"temperature": 2.5}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"logit_bias": {"1": 1}}, "logit_bias"),
        ({"stream_options": {"include_obfuscation": False}}, "stream_options"),
        ({"stream": 1}, "stream"),
        ({"include": ["x"]}, "include[0]"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"reasoning": {"summary": "long"}}, "reasoning.summary"),
        ({"text": {"verbosity": "x"}}, "text.verbosity"),
        ({"text": {"format": "text"}}, "text.format"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format.name"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
        ({"text": {"format": {**SCHEMA, "schema": []}}}, "text.format.schema"),
        ({"tools": [TOOL, {**TOOL, "name": ""}]}, "tools[1].name"),
        ({"tools": [{**TOOL, "parameters": []}]}, "tools[0].parameters"),
        ({"tools": ["f"]}, "tools[0]"),
        ({"tools": [{"name": "f"}]}, "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools[0].function"),
        ({"tools": [TOOL, {"type": "web_search"}]}, "tools[1].type"),
        ({"tools": [{"type": "mcp", "server_label": "x"}]}, "tools[0].type"),
        ({"tool_choice": "always"}, "tool_choice"),
        ({"tool_choice": {"type": "file_search"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "allowed_tools", "mode": "none", "tools": [TOOL]}}, "tool_choice.mode"),
        ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}}, "tool_choice.tools"),
        (
            {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp"}]}},
            "tool_choice.tools[0].type",
        ),
        ({"metadata": {"a": 1}}, "metadata.a"),
        ({"metadata": {"a": "x" * 513}}, "metadata.a"),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
    ],
)
def test_one_wrong_value_is_named(fields: dict[str, Any], param: str) -> None:
    error = refused(**fields)
    assert error.param == param
    assert f"'{param}'" in error.message


def test_the_tool_that_is_refused_is_named_by_its_type() -> None:
    assert "web_search" in refused(tools=[{"type": "web_search"}]).message


@pytest.mark.parametrize(
    "fields",
    [
        {"background": False},
        {"truncation": "disabled"},
        {"store": True},
        {"include": ["reasoning.encrypted_content", "file_search_call.results"]},
        {"reasoning": {"effort": None, "summary": "auto"}},
        {"reasoning": None},
        {"text": {"format": {"type": "text"}, "verbosity": "low"}},
        {"text": {"verbosity": "high"}},
        {"text": None},
        {"metadata": {"a" * 64: "b" * 512}},
        {"stream": True, "stream_options": {"include_obfuscation": True}},
        {"service_tier": "flex", "user": "u", "safety_identifier": "s", "prompt_cache_key": "k"},
        {"prompt_cache_retention": "24h", "tools": [], "parallel_tool_calls": None},
        {"top_k": 5, "seed": 1, "stop": "x", "min_p": 0.1, "enable_thinking": False},
    ],
)
def test_what_is_harmless_is_taken(fields: dict[str, Any]) -> None:
    take(**fields)


def test_a_body_is_left_as_it_is() -> None:
    body = {**HELLO, "tools": [TOOL], "text": {"format": SCHEMA}, "metadata": {"a": "b"}}
    before = copy.deepcopy(body)
    structure(body, ResponsesRequest)
    assert body == before


class TestEcho:
    def test_defaults(self) -> None:
        echo = take().echo()
        assert echo["text"] == {"format": {"type": "text"}, "verbosity": "medium"}
        assert echo["reasoning"] == {"effort": None, "summary": None}
        assert (echo["tool_choice"], echo["tools"]) == ("auto", [])
        assert (echo["store"], echo["background"], echo["truncation"]) == (False, False, "disabled")
        assert (echo["instructions"], echo["max_output_tokens"], echo["metadata"]) == (None, None, {})
        assert echo["parallel_tool_calls"] is True

    def test_what_was_said(self) -> None:
        echo = take(
            tools=[TOOL],
            tool_choice={"type": "function", "name": "f"},
            text={"format": SCHEMA},
            metadata={"a": "b"},
            instructions="i",
            max_output_tokens=7,
            user="u",
            store=True,
        ).echo()
        assert echo["tools"] == [{**TOOL, "description": None}]
        assert echo["tool_choice"] == {"type": "function", "name": "f"}
        assert echo["text"]["format"] == {**SCHEMA, "description": None, "strict": False}
        assert echo["store"] is False
        picked = (echo["metadata"], echo["instructions"], echo["max_output_tokens"], echo["user"])
        assert picked == ({"a": "b"}, "i", 7, "u")


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({}, False),
        ({"top_logprobs": 0}, False),
        ({"top_logprobs": 2}, True),
        ({"include": ["message.output_text.logprobs"]}, True),
        ({"include": ["reasoning.encrypted_content"]}, False),
    ],
)
def test_logprobs_come_when_they_are_included(fields: dict[str, Any], wanted: bool) -> None:
    assert take(**fields).wants_logprobs is wanted
