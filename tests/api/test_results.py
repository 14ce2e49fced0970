"""Answers: shapes of whole responses, and streams whose every event is one line of JSON."""

import json
import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from rustedvino.api import results
from rustedvino.api.errors import bad_request
from rustedvino.api.results import (
    ChatChoice,
    ChunkEncoder,
    TextChoice,
    TextChunkEncoder,
    TokenLogprob,
    ToolCallResult,
    Usage,
)

ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=40)
USAGE = Usage(prompt_tokens=3, completion_tokens=4, cached_tokens=2, reasoning_tokens=1)


def event(raw: bytes) -> dict:
    assert raw.startswith(b"data: ")
    assert raw.endswith(b"\n\n")
    line = raw[6:-2]
    assert b"\n" not in line
    assert b"\r" not in line
    return json.loads(line.decode("utf-8"))


@given(ANY_TEXT, ANY_TEXT, st.integers(0, 127), st.booleans())
@example("\ud800\u2028\n", "\udfff", 0, True)
def test_chat_chunks_carry_any_text_on_one_line(text, model, index, include_usage):
    chunks = ChunkEncoder("chatcmpl-1", 7, model, index, include_usage=include_usage)
    deltas = [
        (chunks.role(), {"role": "assistant", "content": ""}),
        (chunks.content(text), {"content": text}),
        (chunks.reasoning(text), {"reasoning_content": text}),
        (chunks.delta({"content": text}), {"content": text}),
        (chunks.tool_arguments(1, text), {"tool_calls": [{"index": 1, "function": {"arguments": text}}]}),
        (chunks.finish("stop"), {}),
    ]
    for raw, delta in deltas:
        finish = "stop" if delta == {} else None
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
        expected = {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 7,
            "model": model,
            "choices": [choice],
        }
        if include_usage:
            expected["usage"] = None
        assert event(raw) == expected


@given(ANY_TEXT, st.booleans())
@example("\ud800\u2028\n", False)
def test_text_chunks_carry_any_text_on_one_line(text, include_usage):
    chunks = TextChunkEncoder("cmpl-1", 7, "m", 2, include_usage=include_usage)
    for raw, body in [
        (chunks.text(text), {"text": text, "finish_reason": None, "logprobs": None}),
        (chunks.text(text, {"tokens": [text]}), {"text": text, "finish_reason": None, "logprobs": {"tokens": [text]}}),
        (chunks.finish("length"), {"text": "", "finish_reason": "length", "logprobs": None}),
    ]:
        value = event(raw)
        assert value["choices"] == [{"index": 2, **body}]
        assert value["object"] == "text_completion"
        assert ("usage" in value) == include_usage


def test_a_stream_reads_back_through_the_client_types():
    chunks = ChunkEncoder("chatcmpl-1", 7, "m", include_usage=True)
    logprob = TokenLogprob("é", -0.5, "é".encode(), (TokenLogprob("x", -math.inf, b"x"),))
    stream = [
        chunks.role({"model_family": "qwen3"}),
        chunks.delta({"content": "é"}, [logprob]),
        chunks.tool_call(0, "call_1", "f"),
        chunks.tool_arguments(0, "{}"),
        chunks.finish("tool_calls", {"sampling": {"temperature": 0}}),
        chunks.usage(USAGE),
    ]
    parsed = [ChatCompletionChunk.model_validate(event(raw)) for raw in stream]
    assert parsed[0].model_extra == {"model_family": "qwen3"}
    assert parsed[1].choices[0].logprobs.content[0].bytes == [0xC3, 0xA9]
    assert parsed[1].choices[0].logprobs.content[0].top_logprobs[0].logprob == -9999
    assert parsed[2].choices[0].delta.tool_calls[0].function.name == "f"
    assert parsed[3].choices[0].delta.tool_calls[0].id is None
    assert parsed[4].choices[0].finish_reason == "tool_calls"
    assert [p.usage for p in parsed[:-1]] == [None] * 5
    assert parsed[5].choices == []
    assert parsed[5].usage.total_tokens == 7
    for raw in stream[:-1]:
        assert event(raw)["usage"] is None


def test_a_whole_chat_reads_back_through_the_client_types():
    choices = [
        ChatChoice(index=0, content="hi", finish_reason="stop", reasoning_content="hm"),
        ChatChoice(
            index=1,
            content=None,
            finish_reason="tool_calls",
            tool_calls=(ToolCallResult(id="c", name="f", arguments="{}"),),
            logprobs=(TokenLogprob("a", math.nan, b"a"),),
        ),
    ]
    body = results.chat_completion("chatcmpl-1", 7, "m", choices, USAGE, {"model_family": "x"})
    parsed = ChatCompletion.model_validate(json.loads(results.to_json(body)))
    assert parsed.object == "chat.completion"
    assert parsed.choices[0].message.content == "hi"
    assert parsed.choices[0].message.model_extra == {"reasoning_content": "hm"}
    assert "tool_calls" not in body["choices"][0]["message"]
    assert parsed.choices[1].message.content is None
    assert parsed.choices[1].message.tool_calls[0].function.name == "f"
    assert "index" not in body["choices"][1]["message"]["tool_calls"][0]
    assert parsed.choices[1].logprobs.content[0].logprob == -9999
    assert parsed.usage.prompt_tokens_details.cached_tokens == 2
    assert parsed.usage.completion_tokens_details.reasoning_tokens == 1
    assert parsed.model_extra == {"model_family": "x"}


def test_a_whole_completion_reads_back_through_the_client_types():
    tokens = [TokenLogprob("ab", -1.0, b"ab", (TokenLogprob("ab", -1.0, b"ab"),)), TokenLogprob("c", -2.0, b"c")]
    logprobs = results.text_logprobs(tokens, offset=5)
    choice = TextChoice(index=0, text="abc", finish_reason="length", logprobs=logprobs)
    parsed = Completion.model_validate(results.text_completion("cmpl-1", 7, "m", [choice], USAGE))
    assert parsed.object == "text_completion"
    assert parsed.choices[0].text == "abc"
    assert parsed.choices[0].logprobs.text_offset == [5, 7]
    assert parsed.choices[0].logprobs.token_logprobs == [-1.0, -2.0]
    assert parsed.choices[0].logprobs.top_logprobs == [{"ab": -1.0}, {}]


def test_models():
    listed = results.model_list([results.model_card("a", 1, {"kind": "text_gen"})])
    assert listed["object"] == "list"
    parsed = Model.model_validate(listed["data"][0])
    assert (parsed.id, parsed.object, parsed.created, parsed.owned_by) == ("a", "model", 1, "rustedvino")


def test_usage_tells_only_what_is_known():
    assert Usage(prompt_tokens=1, completion_tokens=2).to_dict() == {
        "prompt_tokens": 1,
        "completion_tokens": 2,
        "total_tokens": 3,
    }


def test_an_error_ends_a_stream_as_an_event():
    error = bad_request("no\nway", "x")
    assert event(results.error_event(error)) == error.envelope()
    assert results.DONE == b"data: [DONE]\n\n"


def test_numbers_json_does_not_have_are_an_error():
    with pytest.raises(ValueError, match="JSON"):
        results.to_json({"x": math.nan})


def test_ids_are_fresh():
    assert len({results.new_id("chatcmpl") for _ in range(100)}) == 100
    assert results.new_id("cmpl").startswith("cmpl-")
