"""What every answer must look like, and short ways to ask for one."""

from types import EllipsisType
from typing import Any

import httpx

from tests.support.server import ServerProcess, sse_chunks

ERROR_FIELDS = {"message", "type", "param", "code"}


def chat_body(model: str, content: Any, **fields: Any) -> dict[str, Any]:
    """A chat request of one user message."""
    return {"model": model, "messages": [{"role": "user", "content": content}], **fields}


def echo_body(text: str, **fields: Any) -> dict[str, Any]:
    """A request that the demo model answers with ``text`` and nothing else."""
    return chat_body("rv-demo", f"Repeat after me: {text}", temperature=0, enable_thinking=False, **fields)


def completion_body(model: str, prompt: Any, **fields: Any) -> dict[str, Any]:
    """A raw completion request."""
    return {"model": model, "prompt": prompt, **fields}


def expect_ok(reply: httpx.Response) -> dict[str, Any]:
    """The JSON of a 200."""
    assert reply.status_code == 200, reply.text[:500]
    assert reply.headers["content-type"] == "application/json"
    check_headers(reply)
    return reply.json()


def expect_error(
    reply: httpx.Response,
    status: int,
    code: str | EllipsisType | None = ...,
    param: str | EllipsisType | None = ...,
) -> dict[str, Any]:
    """The ``error`` object of a complete error answer; ``...`` is any value."""
    assert reply.status_code == status, (reply.status_code, reply.text[:500])
    assert reply.headers["content-type"] == "application/json"
    check_headers(reply)
    body = reply.json()
    assert set(body) == {"error"}
    error = body["error"]
    assert set(error) == ERROR_FIELDS
    assert isinstance(error["message"], str)
    assert error["message"]
    assert isinstance(error["type"], str)
    if code is not ...:
        assert error["code"] == code, error
    if param is not ...:
        assert error["param"] == param, error
    if status in (429, 503):
        assert int(reply.headers["retry-after"]) >= 1
    return error


def check_headers(reply: httpx.Response) -> None:
    """The headers that every answer has."""
    assert reply.headers["x-server"] == "rustedvino"
    assert reply.headers["x-api-version"] == "1"
    assert reply.headers["x-request-id"]
    for name in ("x-server", "x-api-version", "x-request-id", "content-type"):
        assert len(reply.headers.get_list(name)) == 1, name


def whole_text(answer: dict[str, Any], index: int = 0) -> str:
    """The text of one choice of an unstreamed answer."""
    choice = answer["choices"][index]
    assert choice["index"] == index
    return choice["message"]["content"] if "message" in choice else choice["text"]


def stream_chunks(server: ServerProcess, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The chunks of a complete stream, checked for what holds of every stream."""
    reply = server.post(path, {**body, "stream": True})
    assert reply.status_code == 200, reply.text[:500]
    check_headers(reply)
    return check_chunks(sse_chunks(reply.text), n_choices(body), wants_usage=wants_usage(body))


def n_choices(body: dict[str, Any]) -> int:
    """How many choices the answer to ``body`` has."""
    prompts = body.get("prompt")
    several = isinstance(prompts, list) and not isinstance(prompts[0], int)
    return (body.get("n") or 1) * (len(prompts) if several and isinstance(prompts, list) else 1)


def wants_usage(body: dict[str, Any]) -> bool:
    """Whether ``body`` asks for usage in its stream."""
    return bool((body.get("stream_options") or {}).get("include_usage"))


def check_chunks(chunks: list[dict[str, Any]], choices: int, *, wants_usage: bool) -> list[dict[str, Any]]:
    """Check the shape of a stream's chunks and return them."""
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert len({chunk["created"] for chunk in chunks}) == 1
    assert len({chunk["model"] for chunk in chunks}) == 1
    chat = chunks[0]["object"] == "chat.completion.chunk"
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk" if chat else "text_completion"}
    if wants_usage:
        *chunks_with_choices, last = chunks
        assert last["choices"] == []
        assert last["usage"]["total_tokens"] == last["usage"]["prompt_tokens"] + last["usage"]["completion_tokens"]
        assert all(chunk["usage"] is None for chunk in chunks_with_choices)
    else:
        chunks_with_choices = chunks
        assert all("usage" not in chunk for chunk in chunks)
    seen: dict[int, list[dict[str, Any]]] = {}
    for chunk in chunks_with_choices:
        (choice,) = chunk["choices"]
        seen.setdefault(choice["index"], []).append(choice)
    assert sorted(seen) == list(range(choices))
    for parts in seen.values():
        assert [part["finish_reason"] for part in parts[:-1]] == [None] * (len(parts) - 1)
        assert parts[-1]["finish_reason"] in ("stop", "length", "tool_calls")
        if chat:
            first, *middle, last = parts
            assert first["delta"] == {"role": "assistant", "content": ""}
            assert last["delta"] == {}
            assert all("role" not in part["delta"] for part in middle)
            assert all(any(part["delta"].values()) for part in middle), "an empty delta"
        else:
            assert all(part["text"] for part in parts[:-1]), "an empty text"
    return chunks


def streamed_text(chunks: list[dict[str, Any]], index: int = 0) -> str:
    """The text of one choice of a stream."""
    text = ""
    for chunk in chunks:
        for choice in chunk["choices"]:
            if choice["index"] == index:
                text += choice["delta"].get("content", "") if "delta" in choice else choice["text"]
    return text


def streamed_finish(chunks: list[dict[str, Any]], index: int = 0) -> str:
    """The finish reason of one choice of a stream."""
    reasons = [
        choice["finish_reason"]
        for chunk in chunks
        for choice in chunk["choices"]
        if choice["index"] == index and choice["finish_reason"] is not None
    ]
    assert len(reasons) == 1
    return str(reasons[0])
