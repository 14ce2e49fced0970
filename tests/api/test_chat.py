"""The chat request as a whole: valid ones are taken, one wrong value is named by its exact path."""

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rustedvino.api.body import parse_json
from rustedvino.api.chat import ChatRequest, ToolChoice
from rustedvino.api.converter import render_path, structure
from rustedvino.api.errors import ApiError

HELLO = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "description": "d"}}
OTHER_TOOL = {"type": "function", "function": {"name": "g"}}

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
WORD = st.text("abcdef_", min_size=1, max_size=8)
PARTS = st.fixed_dictionaries({"type": st.just("text"), "text": TEXT}) | st.fixed_dictionaries(
    {
        "type": st.just("image_url"),
        "image_url": st.fixed_dictionaries({"url": WORD}, optional={"detail": st.just("low")}),
    }
)
CALLS = st.fixed_dictionaries(
    {
        "id": WORD,
        "type": st.just("function"),
        "function": st.fixed_dictionaries({"name": WORD, "arguments": TEXT}),
    }
)
MESSAGES = st.one_of(
    st.fixed_dictionaries(
        {"role": st.just("user"), "content": TEXT | st.lists(PARTS, min_size=1, max_size=3)}, optional={"name": WORD}
    ),
    st.fixed_dictionaries({"role": st.sampled_from(["system", "developer"]), "content": TEXT}),
    st.fixed_dictionaries(
        {"role": st.just("assistant"), "content": TEXT | st.none()},
        optional={"tool_calls": st.lists(CALLS, max_size=2), "reasoning_content": TEXT},
    ),
    st.fixed_dictionaries({"role": st.just("tool"), "content": TEXT, "tool_call_id": WORD}),
)
REQUESTS = st.fixed_dictionaries(
    {"model": WORD, "messages": st.lists(MESSAGES, min_size=1, max_size=4)},
    optional={
        "n": st.integers(1, 8),
        "stop": st.lists(WORD, max_size=4) | WORD,
        "seed": st.integers(0, 2**63),
        "max_tokens": st.integers(1, 100),
        "max_completion_tokens": st.integers(1, 100),
        "temperature": st.floats(0, 2),
        "top_p": st.floats(0.1, 1),
        "logprobs": st.just(True),
        "tools": st.just([TOOL, OTHER_TOOL]),
        "parallel_tool_calls": st.booleans(),
        "reasoning_effort": st.sampled_from(["none", "low", "max"]),
        "enable_thinking": st.booleans(),
        "chat_template_kwargs": st.fixed_dictionaries({"x": TEXT}),
        "response_format": st.sampled_from(
            [
                {"type": "text"},
                {"type": "json_object"},
                {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}}},
            ]
        ),
        "stream": st.booleans(),
        "metadata": st.fixed_dictionaries({"a": TEXT}),
        "unknown_field": TEXT,
    },
)
#: Below these the client may write anything.
OPAQUE = {"parameters", "schema", "chat_template_kwargs", "metadata", "unknown_field"}


def request(**fields):
    return structure({"model": "m", "messages": [HELLO], **fields}, ChatRequest)


def refused(**fields):
    with pytest.raises(ApiError) as caught:
        request(**fields)
    assert caught.value.status == 400
    return caught.value


def places(value, path=()):
    """Every path whose type is fixed; those of objects a wrong number or array can replace."""
    if path:
        yield path
    if path and path[-1] in OPAQUE:
        return
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in items:
        if key not in ("metadata", "unknown_field"):
            yield from places(child, (*path, key))


@given(REQUESTS)
def test_any_valid_request_is_taken(data):
    result = structure(parse_json(json.dumps(data).encode()), ChatRequest)
    assert result.model == data["model"]
    assert [m.role for m in result.messages] == [m["role"] for m in data["messages"]]
    assert result.max_new_tokens == data.get("max_completion_tokens", data.get("max_tokens"))
    rendered = result.to_template_messages()
    assert len(rendered) == len(data["messages"])
    for shown, given_message in zip(rendered, data["messages"], strict=True):
        if isinstance(given_message["content"], str):
            assert shown["content"] == given_message["content"]


@given(REQUESTS, st.data())
def test_one_wrong_value_is_named_by_its_path(data, draw):
    path = draw.draw(st.sampled_from(list(places(data))))
    wrong_data = copy.deepcopy(data)
    target = wrong_data
    for key in path[:-1]:
        target = target[key]
    is_number = isinstance(target[path[-1]], int | float) and not isinstance(target[path[-1]], bool)
    target[path[-1]] = draw.draw(st.sampled_from(["5", True, [5], {"x": 5}] if is_number else [5, -0.5]))
    with pytest.raises(ApiError) as caught:
        structure(wrong_data, ChatRequest)
    assert (caught.value.status, caught.value.param) == (400, render_path(path))


@pytest.mark.parametrize("field", ["model", "messages"])
def test_required_fields(field):
    data = {"model": "m", "messages": [HELLO]}
    del data[field]
    with pytest.raises(ApiError) as caught:
        structure(data, ChatRequest)
    assert caught.value.param == field
    assert f"you must provide a {field} parameter" in caught.value.message


def test_errors_deep_in_messages_name_the_message():
    assert refused(messages=[]).param == "messages"
    error = refused(messages=[HELLO, HELLO, {"role": "robot", "content": "x"}])
    assert error.param == "messages[2].role"
    assert "'developer', 'system', 'user', 'assistant', 'tool', 'function'" in error.message
    assert refused(messages=[HELLO, {"role": "user"}]).param == "messages[1].content"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("audio", {"voice": "x"}),
        ("web_search_options", {}),
        ("functions", []),
        ("function_call", "auto"),
        ("prediction", {"type": "content", "content": "x"}),
    ],
)
def test_what_would_change_the_meaning_is_refused(field, value):
    error = refused(**{field: value})
    assert (error.param, error.code) == (field, "unsupported_parameter")
    assert request(**{field: None}) == request()


def test_text_is_the_only_modality():
    assert request(modalities=["text"]).modalities == ("text",)
    assert refused(modalities=["text", "audio"]).param == "modalities[1]"


@pytest.mark.parametrize(
    "fields",
    [
        {"user": "u"},
        {"store": True},
        {"metadata": {"a": "b"}},
        {"service_tier": "auto"},
        {"verbosity": "low"},
        {"safety_identifier": "x"},
        {"prompt_cache_key": "k"},
        {"anything": {"else": [1]}},
    ],
)
def test_the_harmless_and_the_unknown_are_ignored(fields):
    assert request(**fields) == request()


def test_the_newer_token_limit_wins():
    assert request(max_tokens=5).max_new_tokens == 5
    assert request(max_tokens=5, max_completion_tokens=9).max_new_tokens == 9
    assert request(max_tokens=5, max_completion_tokens=None).max_new_tokens == 5
    assert request().max_new_tokens is None


def test_top_logprobs_need_logprobs():
    assert request(logprobs=True, top_logprobs=20).top_logprobs == 20
    assert refused(top_logprobs=2).param == "top_logprobs"
    assert refused(logprobs=False, top_logprobs=0).param == "top_logprobs"
    assert refused(logprobs=True, top_logprobs=21).param == "top_logprobs"
    assert refused(logprobs=3).param == "logprobs"


@pytest.mark.parametrize(
    ("value", "param"),
    [
        ("json", "response_format"),
        ({}, "response_format.type"),
        ({"type": "xml"}, "response_format.type"),
        ({"type": "json_schema"}, "response_format.json_schema"),
        ({"type": "json_schema", "json_schema": {"schema": {}}}, "response_format.json_schema.name"),
        ({"type": "json_schema", "json_schema": {"name": "s"}}, "response_format.json_schema.schema"),
        (
            {"type": "json_schema", "json_schema": {"name": "s", "schema": "{}"}},
            "response_format.json_schema.schema",
        ),
    ],
)
def test_a_wrong_response_format_is_named(value, param):
    assert refused(response_format=value).param == param


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ({}, "tools"),
        ([5], "tools[0]"),
        ([TOOL, {"type": "custom", "custom": {"name": "x"}}], "tools[1].type"),
        ([{"type": "function"}], "tools[0].function"),
        ([{"type": "function", "function": {}}], "tools[0].function.name"),
        ([{"type": "function", "function": {"name": "f", "parameters": []}}], "tools[0].function.parameters"),
    ],
)
def test_wrong_tools_are_named(tools, param):
    assert refused(tools=tools).param == param


def test_templates_get_the_tools_as_they_were_written():
    assert request().template_tools() is None
    assert request(tools=[]).template_tools() is None
    assert request(tools=[TOOL], tool_choice="none").template_tools() is None
    (shown,) = request(tools=[TOOL]).template_tools()
    assert json.dumps(shown) == json.dumps(TOOL)
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [OTHER_TOOL]}}
    assert request(tools=[TOOL, OTHER_TOOL], tool_choice=allowed).template_tools() == [OTHER_TOOL]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, ToolChoice(mode="auto")),
        ("none", ToolChoice(mode="none")),
        ("auto", ToolChoice(mode="auto")),
        ("required", ToolChoice(mode="required")),
        ({"type": "function", "function": {"name": "f"}}, ToolChoice(mode="required", names=("f",))),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "required", "tools": [TOOL, OTHER_TOOL]},
            },
            ToolChoice(mode="required", names=("f", "g")),
        ),
    ],
)
def test_tool_choices(choice, expected):
    assert request(tools=[TOOL, OTHER_TOOL], tool_choice=choice).effective_tool_choice == expected


def test_without_tools_none_can_be_chosen():
    assert request(tool_choice="auto").effective_tool_choice == ToolChoice(mode="none")
    assert refused(tool_choice="required").param == "tool_choice"
    assert refused(tools=[], tool_choice={"type": "function", "function": {"name": "f"}}).param == "tool_choice"


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        ("sometimes", "tool_choice"),
        (True, "tool_choice"),
        ({}, "tool_choice.type"),
        ({"type": "custom"}, "tool_choice.type"),
        ({"type": "function"}, "tool_choice.function"),
        ({"type": "function", "function": {"name": "x"}}, "tool_choice.function.name"),
        ({"type": "allowed_tools"}, "tool_choice.allowed_tools"),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}},
            "tool_choice.allowed_tools.tools",
        ),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [TOOL, {"type": "function", "function": {"name": "x"}}]},
            },
            "tool_choice.allowed_tools.tools[1].function.name",
        ),
    ],
)
def test_wrong_tool_choices_are_named(choice, param):
    assert refused(tools=[TOOL], tool_choice=choice).param == param


@pytest.mark.parametrize(
    ("fields", "thinking"),
    [
        ({}, None),
        ({"reasoning_effort": "low"}, None),
        ({"reasoning_effort": "none"}, False),
        ({"enable_thinking": False}, False),
        ({"enable_thinking": True, "reasoning_effort": "none"}, True),
        ({"chat_template_kwargs": {"enable_thinking": False}}, False),
        ({"chat_template_kwargs": {"enable_thinking": True}, "reasoning_effort": "none"}, True),
        ({"chat_template_kwargs": {"enable_thinking": False}, "enable_thinking": True}, True),
    ],
)
def test_thinking(fields, thinking):
    assert request(**fields).thinking is thinking


def test_template_kwargs_cannot_replace_what_the_server_gives():
    assert request(chat_template_kwargs={"x": [1]}).chat_template_kwargs == {"x": [1]}
    assert refused(chat_template_kwargs={"messages": []}).param == "chat_template_kwargs.messages"
    error = refused(chat_template_kwargs={"enable_thinking": "no"})
    assert error.param == "chat_template_kwargs.enable_thinking"


def test_media_parts_come_with_their_path():
    image = {"type": "image_url", "image_url": {"url": "u"}}
    messages = [HELLO, {"role": "user", "content": [{"type": "text", "text": "a"}, image, image]}]
    found = list(request(messages=messages).media_parts())
    assert [path for path, _ in found] == ["messages[1].content[1]", "messages[1].content[2]"]
    assert found[0][1].image_url.url == "u"
