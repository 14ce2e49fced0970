import copy

import pytest

from rustedvino.text.history import arguments_as_object, split_reasoning, template_messages


@pytest.mark.parametrize(
    ("content", "reasoning", "rest"),
    [
        ("plain answer", None, "plain answer"),
        ("", None, ""),
        ("<think>\nwhy\n</think>\n\nanswer", "why", "answer"),
        ("why</think>answer", "why", "answer"),
        ("\n<think></think>\n\nanswer", "", "answer"),
        ("<think>cut in the middle", "cut in the middle", ""),
        ("[THINK]why[/THINK]answer", "why", "answer"),
        ("Write <think>x</think> around it", None, "Write <think>x</think> around it"),
        ("<think>a</think>b</think>c", "a", "b</think>c"),
    ],
)
def test_reasoning_is_split_off(content, reasoning, rest):
    assert split_reasoning(content) == (reasoning, rest)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"a": [1, 2.5, null]}', {"a": [1, 2.5, None]}),
        ("{}", {}),
        ("[1]", "[1]"),
        ('"text"', '"text"'),
        ('{"cut": ', '{"cut": '),
        ("", {}),
        (" \n", {}),
        ("[" * 100_000, "[" * 100_000),
        ({"a": 1}, {"a": 1}),
        (None, {}),
    ],
)
def test_arguments_become_an_object_if_they_are_one(arguments, expected):
    assert arguments_as_object(arguments) == expected


def test_messages_are_prepared_and_the_originals_kept():
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "system", "content": ""},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "<think>hm</think>ok", "tool_calls": [call]},
        {"role": "tool", "content": "</think>", "tool_call_id": "1"},
        {"role": "user", "content": "</think> is what?"},
    ]
    before = copy.deepcopy(messages)
    prepared = template_messages(messages)
    assert messages == before
    assert prepared[0] == {"role": "system", "content": ""}
    assert prepared[1]["content"] == "a\nb"
    assert prepared[2]["content"] == "ok"
    assert prepared[2]["reasoning_content"] == "hm"
    assert prepared[2]["tool_calls"][0]["function"]["arguments"] == {"a": 1}
    assert prepared[3] == messages[3]
    assert prepared[4] == messages[4]


def test_reasoning_the_client_names_leaves_the_content_alone():
    message = {"role": "assistant", "content": "x</think>y", "reasoning_content": "z"}
    assert template_messages([message])[0]["content"] == "x</think>y"
    assert template_messages([message])[0]["reasoning_content"] == "z"


def test_thinking_is_not_given_beside_content_and_a_call():
    call = {"function": {"name": "f", "arguments": "{}"}}
    both = {"role": "assistant", "content": "a", "reasoning_content": "r", "tool_calls": [call]}
    assert "thinking" not in template_messages([both])[0]
    assert template_messages([{**both, "content": ""}])[0]["thinking"] == "r"
    assert template_messages([{**both, "tool_calls": None}])[0]["thinking"] == "r"


def test_arguments_as_text():
    def arguments(value):
        call = {"function": {"name": "f", "arguments": value}}
        messages = [{"role": "assistant", "content": None, "tool_calls": [call]}]
        return template_messages(messages, arguments="string")[0]["tool_calls"][0]["function"]["arguments"]

    assert arguments('{"a":1}') == '{"a":1}'
    assert arguments({"a": "é"}) == '{"a": "é"}'
    assert arguments("not json") == "not json"
    assert arguments("") == arguments(None) == arguments({}) == "{}"


@pytest.mark.parametrize("value", ["not json", "[1]", '{"cut": '])
def test_arguments_that_are_no_object(value):
    """A template that walks through arguments would fail on text."""

    def arguments(form):
        messages = [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": value}}]}]
        return template_messages(messages, arguments=form)[0]["tool_calls"][0]["function"]["arguments"]

    assert arguments("object") == {"arguments": value}
    assert arguments("either") == arguments("string") == value


@pytest.mark.parametrize("form", ["string", "parts"])
def test_a_call_known_by_its_null_content(form):
    call = {"function": {"name": "f", "arguments": "{}"}}
    answers = [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "assistant", "content": "<think>hm</think>", "tool_calls": [call]},
        {"role": "assistant", "content": "text", "tool_calls": [call]},
        {"role": "assistant", "content": ""},
    ]
    nulls = [m["content"] is None for m in template_messages(answers, content=form, null_call_content=True)]
    assert nulls == [True, True, False, False]
    assert not any(m["content"] is None for m in template_messages(answers, content=form))


def test_content_as_parts():
    image = [{"type": "image_url", "image_url": {"url": "x"}}, {"type": "text", "text": "what?"}]
    prepared = template_messages(
        [{"role": "user", "content": "hi"}, {"role": "user", "content": image}], content="parts"
    )
    assert prepared[0]["content"] == [{"type": "text", "text": "hi"}]
    assert prepared[1]["content"] == image
    assert template_messages([{"role": "user", "content": image}])[0]["content"] == image
