"""Thinking apart from answers: cut at every length, switched off, and models that never think."""

from typing import Any

import pytest

from tests.support.answers import chat_body, expect_ok, stream_chunks, streamed_finish, streamed_text
from tests.support.server import ServerProcess

CHAT = "/v1/chat/completions"
REQUEST = chat_body("rv-demo", "Repeat after me: 482913", temperature=0)


def streamed_thinking(chunks: list[dict[str, Any]]) -> str:
    return "".join(choice["delta"].get("reasoning_content") or "" for chunk in chunks for choice in chunk["choices"])


def thinking_of(answer: dict[str, Any]) -> str:
    return answer["choices"][0]["message"].get("reasoning_content") or ""


def test_cut_at_every_length(server: ServerProcess) -> None:
    """No tag shows, thinking is never content, and every token counts, thinking included."""
    full = expect_ok(server.post(CHAT, REQUEST))
    thought = thinking_of(full)
    assert thought
    assert full["choices"][0]["message"]["content"] == "482913"
    tokens = full["usage"]["completion_tokens"]
    inside = 0
    for limit in range(1, tokens):
        request = {**REQUEST, "max_completion_tokens": limit}
        answer = expect_ok(server.post(CHAT, request))
        (choice,) = answer["choices"]
        assert choice["finish_reason"] == "length"
        assert answer["usage"]["completion_tokens"] == limit
        content = choice["message"]["content"] or ""
        assert "482913".startswith(content)
        # The line end in front of the closing tag belongs to the tag, which a cut answer does not have.
        assert thought.startswith(thinking_of(answer).removesuffix("\n"))
        if thinking_of(answer).removesuffix("\n") != thought:
            assert content == ""
            inside += 1
        chunks = stream_chunks(server, CHAT, {**request, "stream_options": {"include_usage": True}})
        assert streamed_text(chunks) == content
        assert streamed_thinking(chunks) == thinking_of(answer)
        assert streamed_finish(chunks) == "length"
        assert chunks[-1]["usage"] == answer["usage"]
    assert inside > 3


@pytest.mark.parametrize(
    "fields",
    [
        {"reasoning_effort": "none"},
        {"enable_thinking": False},
        {"chat_template_kwargs": {"enable_thinking": False}},
    ],
)
def test_switched_off(server: ServerProcess, fields: dict[str, Any]) -> None:
    answer = expect_ok(server.post(CHAT, {**REQUEST, **fields}))
    assert thinking_of(answer) == ""
    assert answer["choices"][0]["message"]["content"] == "482913"
    chunks = stream_chunks(server, CHAT, {**REQUEST, **fields})
    assert streamed_thinking(chunks) == ""
    assert streamed_text(chunks) == "482913"


@pytest.mark.parametrize("effort", ["minimal", "low", "medium", "high"])
def test_an_effort_leaves_it_on(server: ServerProcess, effort: str) -> None:
    answer = expect_ok(server.post(CHAT, {**REQUEST, "reasoning_effort": effort}))
    assert thinking_of(answer)
    assert answer["choices"][0]["message"]["content"] == "482913"


@pytest.mark.parametrize("model", ["tiny-llama3", "tiny-qwen3"])
def test_a_model_that_never_thinks_is_not_held_back(server: ServerProcess, model: str) -> None:
    request = chat_body(model, "x", temperature=0, max_tokens=40, ignore_eos=True)
    chunks = stream_chunks(server, CHAT, request)
    assert streamed_text(chunks)
    if model == "tiny-llama3":
        assert streamed_thinking(chunks) == ""
    assert sum(bool(chunk["choices"][0]["delta"].get("content")) for chunk in chunks) > 10


def test_thinking_is_counted(server: ServerProcess) -> None:
    usage = expect_ok(server.post(CHAT, REQUEST))["usage"]
    counted = usage["completion_tokens_details"]["reasoning_tokens"]
    assert 4 <= counted < usage["completion_tokens"]
    chunks = stream_chunks(server, CHAT, {**REQUEST, "stream_options": {"include_usage": True}})
    assert chunks[-1]["usage"] == usage
    twice = expect_ok(server.post(CHAT, {**REQUEST, "n": 2}))["usage"]
    assert twice["completion_tokens_details"] == {"reasoning_tokens": 2 * counted}
    cut = expect_ok(server.post(CHAT, {**REQUEST, "max_tokens": counted}))["usage"]
    assert counted - 1 <= cut["completion_tokens_details"]["reasoning_tokens"] <= counted
    plain = expect_ok(server.post(CHAT, {**REQUEST, "enable_thinking": False}))["usage"]
    assert "completion_tokens_details" not in plain
