"""Tool calls of a real model, whole and streamed, and cut at every length."""

import json
from typing import Any

import pytest

from tests.support.answers import chat_body, expect_ok, stream_chunks, streamed_finish, streamed_text
from tests.support.server import ServerProcess

CHAT = "/v1/chat/completions"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Get the current weather for a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
TAGS = ("<tool_call>", "</tool_call>", "<think>", "</think>", "<|im_end|>")


def body(text: str, **fields: Any) -> dict[str, Any]:
    return chat_body("rv-demo", text, **{"temperature": 0, "tools": TOOLS, "enable_thinking": False, **fields})


ONE, TWO = body("What is the weather in Paris?"), body("What is the weather in Paris and in Rome?")


def streamed_calls(chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The calls of a stream, put together as the usual clients do: every string is appended."""
    calls: list[dict[str, Any]] = []
    for chunk in chunks:
        for choice in chunk["choices"]:
            for delta in choice["delta"].get("tool_calls", []):
                if delta["index"] == len(calls):
                    assert set(delta) == {"index", "id", "type", "function"}
                    assert isinstance(delta["function"]["name"], str)
                    calls.append({"id": delta["id"], "name": delta["function"]["name"], "arguments": ""})
                else:
                    assert delta["index"] == len(calls) - 1, "a call goes on after the next one began"
                    assert set(delta) == {"index", "function"}
                    assert set(delta["function"]) == {"arguments"}
                calls[delta["index"]]["arguments"] += delta["function"]["arguments"]
    return calls


def whole_calls(answer: dict[str, Any]) -> list[dict[str, Any]]:
    return answer["choices"][0]["message"].get("tool_calls") or []


@pytest.mark.parametrize(("request_body", "cities"), [(ONE, ["Paris"]), (TWO, ["Paris", "Rome"])])
def test_a_call_is_the_same_whole_and_streamed(
    server: ServerProcess, request_body: dict[str, Any], cities: list[str]
) -> None:
    answer = expect_ok(server.post(CHAT, request_body))
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] is None
    for call in whole_calls(answer):
        assert set(call) == {"id", "type", "function"}
        assert type(call["function"]["arguments"]) is str
    assert [json.loads(call["function"]["arguments"]) for call in whole_calls(answer)] == [{"city": c} for c in cities]
    chunks = stream_chunks(server, CHAT, request_body)
    assert streamed_finish(chunks) == "tool_calls"
    assert streamed_text(chunks) == ""
    calls = streamed_calls(chunks)
    assert [{"name": call["name"], "arguments": call["arguments"]} for call in calls] == [
        call["function"] for call in whole_calls(answer)
    ]
    ids = [call["id"] for call in [*calls, *whole_calls(answer)]]
    assert all(ids)
    assert len(set(ids)) == len(ids)
    if len(cities) == 1:
        assert sum("tool_calls" in chunk["choices"][0]["delta"] for chunk in chunks) > 2, "not in pieces"


def test_cut_at_every_length(server: ServerProcess) -> None:
    """What there is of the arguments is delivered, with the reason. A call cut before its arguments is content."""
    full = expect_ok(server.post(CHAT, ONE))
    (call,) = whole_calls(full)
    tokens = full["usage"]["completion_tokens"]
    partial = set()
    for limit in range(1, tokens + 1):
        answer = expect_ok(server.post(CHAT, {**ONE, "max_tokens": limit}))
        chunks = stream_chunks(server, CHAT, {**ONE, "max_tokens": limit})
        (choice,) = answer["choices"]
        assert choice["finish_reason"] == streamed_finish(chunks)
        assert choice["finish_reason"] == ("tool_calls" if limit == tokens else "length")
        assert (choice["message"]["content"] or "") == streamed_text(chunks)
        assert not any(tag in streamed_text(chunks).removeprefix("<tool_call>") for tag in TAGS)
        assert bool(streamed_text(chunks)) != bool(whole_calls(answer))
        functions = [call["function"] for call in whole_calls(answer)]
        assert functions == [{"name": c["name"], "arguments": c["arguments"]} for c in streamed_calls(chunks)]
        for function in functions:
            assert function["name"] == "get_weather"
            assert call["function"]["arguments"].startswith(function["arguments"])
            partial.add(function["arguments"])
    assert len(partial) > 3


def test_tools_do_not_switch_streaming_off(server: ServerProcess) -> None:
    request = body("Repeat after me: one two three four")
    chunks = stream_chunks(server, CHAT, request)
    assert streamed_text(chunks) == "one two three four"
    assert streamed_finish(chunks) == "stop"
    assert sum(bool(chunk["choices"][0]["delta"].get("content")) for chunk in chunks) > 3


@pytest.mark.parametrize(
    "text", ['{"name": 1}', '{"name": "f", "arguments": {}}', "<tool_call>", "[TOOL_CALLS] [", "{"]
)
def test_text_that_looks_like_a_call_is_text_without_tools(server: ServerProcess, text: str) -> None:
    request = body(f"Repeat after me: {text}", tools=None)
    answer = expect_ok(server.post(CHAT, request))
    assert "tool_calls" not in answer["choices"][0]["message"]
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert streamed_text(stream_chunks(server, CHAT, request)) == answer["choices"][0]["message"]["content"]


def test_tools_that_may_not_be_called(server: ServerProcess) -> None:
    for request in (ONE, TWO):
        answer = expect_ok(server.post(CHAT, {**request, "tool_choice": "none"}))
        assert "tool_calls" not in answer["choices"][0]["message"]
        assert answer["choices"][0]["finish_reason"] in ("stop", "length")


def test_the_second_turn_after_a_call(server: ServerProcess) -> None:
    """What the model said goes back to it as it came; twice, so that the model is still there."""
    for _ in range(2):
        messages: list[dict[str, Any]] = list(ONE["messages"])
        message = expect_ok(server.post(CHAT, {**ONE, "messages": messages}))["choices"][0]["message"]
        (call,) = message["tool_calls"]
        result = {"role": "tool", "tool_call_id": call["id"], "content": '{"temperature": 18, "sky": "sunny"}'}
        answer = expect_ok(server.post(CHAT, {**ONE, "messages": [*messages, message, result]}))
        assert "18" in answer["choices"][0]["message"]["content"]
        assert answer["choices"][0]["finish_reason"] == "stop"
