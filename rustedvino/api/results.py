"""What is answered: whole responses as dicts, streams as ready server-sent events.

A stream repeats the same id, time, model and choice in every chunk, so `ChunkEncoder` and `TextChunkEncoder`
build the bytes around the text once and encode only the text per token.
"""

from __future__ import annotations

import json
import math
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

from attrs import frozen

from rustedvino.api.errors import ApiError

__all__ = [
    "DONE",
    "ChatChoice",
    "ChunkEncoder",
    "FinishReason",
    "TextChoice",
    "TextChunkEncoder",
    "TokenLogprob",
    "ToolCallResult",
    "Usage",
    "chat_completion",
    "error_event",
    "finite_logprob",
    "model_card",
    "model_list",
    "new_id",
    "now_secs",
    "sse_event",
    "text_completion",
    "text_logprobs",
    "to_json",
]

FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]
#: Ends every stream.
DONE: Final = b"data: [DONE]\n\n"
#: Stands for a log-probability of minus infinity, which JSON cannot say.
LOWEST_LOGPROB: Final = -9999.0

_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def to_json(value: object) -> bytes:
    """`value` as compact JSON on one line, UTF-8; a lone surrogate becomes an escape (`\\ud800`).

    Raises ValueError for NaN and infinities.
    """
    # A character that cannot be encoded stands inside a JSON string, where its escape means the same.
    return _json(value).encode("utf-8", "backslashreplace")


def sse_event(value: object) -> bytes:
    """One `data:` event."""
    return b"data: " + to_json(value) + b"\n\n"


def error_event(error: ApiError) -> bytes:
    """The event that ends a stream which has failed."""
    return sse_event(error.envelope())


def new_id(prefix: str) -> str:
    """A fresh id such as `chatcmpl-1f0c…` (128 random bits)."""
    return f"{prefix}-{secrets.token_hex(16)}"


def now_secs() -> int:
    """The `created` of a response: seconds since 1970."""
    return int(time.time())


# -- parts of a response -----------------------------------------------------------------------------------


@frozen(kw_only=True)
class Usage:
    """Token counts: `cached_tokens` are among the prompt's, `reasoning_tokens` among the completion's."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None

    def to_dict(self) -> dict[str, Any]:
        usage: dict[str, Any] = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
        }
        if self.cached_tokens is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": self.cached_tokens}
        if self.reasoning_tokens is not None:
            usage["completion_tokens_details"] = {"reasoning_tokens": self.reasoning_tokens}
        return usage


@frozen
class TokenLogprob:
    """A token with its log-probability; `raw` are its bytes, which need not be whole characters."""

    token: str
    logprob: float
    raw: bytes
    top: tuple[TokenLogprob, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {**_logprob_entry(self), "top_logprobs": [_logprob_entry(other) for other in self.top]}


def _logprob_entry(token: TokenLogprob) -> dict[str, Any]:
    return {"token": token.token, "logprob": finite_logprob(token.logprob), "bytes": list(token.raw)}


def finite_logprob(logprob: float) -> float:
    """`logprob` as JSON can say it."""
    return LOWEST_LOGPROB if math.isnan(logprob) else max(logprob, LOWEST_LOGPROB)


@frozen(kw_only=True)
class ToolCallResult:
    """A call the model made; `arguments` is JSON text."""

    id: str
    name: str
    arguments: str

    def to_dict(self) -> dict[str, Any]:
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


@frozen(kw_only=True)
class ChatChoice:
    """One answer. Content None is written as null, which is right when only tools are called."""

    index: int
    content: str | None
    finish_reason: FinishReason
    reasoning_content: str | None = None
    tool_calls: tuple[ToolCallResult, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None

    def to_dict(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": self.content, "refusal": None}
        if self.reasoning_content is not None:
            message["reasoning_content"] = self.reasoning_content
        if self.tool_calls:
            message["tool_calls"] = [call.to_dict() for call in self.tool_calls]
        return {
            "index": self.index,
            "message": message,
            "logprobs": _chat_logprobs(self.logprobs),
            "finish_reason": self.finish_reason,
        }


@frozen(kw_only=True)
class TextChoice:
    """One completion of one prompt; `index` counts prompt by prompt, `n` choices each."""

    index: int
    text: str
    finish_reason: FinishReason
    logprobs: Mapping[str, Any] | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            "index": self.index,
            "text": self.text,
            "logprobs": self.logprobs,
            "finish_reason": self.finish_reason,
        }


def _chat_logprobs(logprobs: Iterable[TokenLogprob] | None) -> dict[str, Any] | None:
    return None if logprobs is None else {"content": [token.to_dict() for token in logprobs], "refusal": None}


def text_logprobs(tokens: Sequence[TokenLogprob], offset: int = 0) -> dict[str, Any]:
    """The `logprobs` of a raw completion; `offset` is where its first token begins, in characters."""
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token.token)
    return {
        "tokens": [token.token for token in tokens],
        "token_logprobs": [finite_logprob(token.logprob) for token in tokens],
        "top_logprobs": [{other.token: finite_logprob(other.logprob) for other in token.top} for token in tokens],
        "text_offset": offsets,
    }


# -- whole responses ---------------------------------------------------------------------------------------


def chat_completion(
    id: str,  # noqa: A002 - the wire's name
    created: int,
    model: str,
    choices: Iterable[ChatChoice],
    usage: Usage,
    extra: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """A `chat.completion`; `extra` are further fields of the top level (`model_family`, `sampling`)."""
    return _whole("chat.completion", id, created, model, [c.to_dict() for c in choices], usage, extra)


def text_completion(
    id: str,  # noqa: A002 - the wire's name
    created: int,
    model: str,
    choices: Iterable[TextChoice],
    usage: Usage,
    extra: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """A `text_completion`."""
    return _whole("text_completion", id, created, model, [c.to_dict() for c in choices], usage, extra)


def _whole(
    kind: str,
    id: str,  # noqa: A002
    created: int,
    model: str,
    choices: list[dict[str, Any]],
    usage: Usage,
    extra: Mapping[str, Any] | None,
) -> dict[str, Any]:
    head = {"id": id, "object": kind, "created": created, "model": model}
    return {**head, "choices": choices, "usage": usage.to_dict(), "system_fingerprint": None, **(extra or {})}


def model_card(
    id: str,  # noqa: A002 - the wire's name
    created: int,
    extra: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """One model of `/v1/models`."""
    return {"id": id, "object": "model", "created": created, "owned_by": "rustedvino", **(extra or {})}


def model_list(cards: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    return {"object": "list", "data": list(cards)}


# -- streams -----------------------------------------------------------------------------------------------


class _Chunks:
    """The bytes before and after the changing part of a choice's chunks."""

    def __init__(
        self,
        kind: str,
        id: str,  # noqa: A002
        created: int,
        model: str,
        index: int,
        *,
        include_usage: bool,
    ) -> None:
        head = {"id": id, "object": kind, "created": created, "model": model}
        self._top = b"data: " + to_json(head)[:-1] + b',"choices":['
        self._open = self._top + b'{"index":%d,' % index
        self._usage = b',"usage":null' if include_usage else b""
        self._close = b"]" + self._usage + b"}\n\n"

    def usage(self, usage: Usage) -> bytes:
        """The chunk without choices that tells the counts; sent once, last, when the client asked for it."""
        return self._top + b'],"usage":' + to_json(usage.to_dict()) + b"}\n\n"

    def _event(self, body: bytes, logprobs: object, finish: FinishReason | None, extra: object) -> bytes:
        end = b',"logprobs":%b,"finish_reason":%b}]' % (to_json(logprobs), to_json(finish))
        more = b"," + to_json(extra)[1:-1] if extra else b""
        return self._open + body + end + self._usage + more + b"}\n\n"


class ChunkEncoder(_Chunks):
    """The `chat.completion.chunk` events of one choice: `role`, the deltas, `finish`; at the end `usage`."""

    def __init__(
        self,
        id: str,  # noqa: A002 - the wire's name
        created: int,
        model: str,
        index: int = 0,
        *,
        include_usage: bool = False,
    ) -> None:
        super().__init__("chat.completion.chunk", id, created, model, index, include_usage=include_usage)
        tail = b'},"logprobs":null,"finish_reason":null}' + self._close
        self._content = self._open + b'"delta":{"content":'
        self._reasoning = self._open + b'"delta":{"reasoning_content":'
        self._tail = tail

    def role(self, extra: Mapping[str, Any] | None = None) -> bytes:
        """The first chunk; `extra` are further fields of its top level."""
        return self._event(b'"delta":{"role":"assistant","content":""}', None, None, extra)

    def content(self, text: str) -> bytes:
        return self._content + _json(text).encode("utf-8", "backslashreplace") + self._tail

    def reasoning(self, text: str) -> bytes:
        return self._reasoning + _json(text).encode("utf-8", "backslashreplace") + self._tail

    def delta(self, delta: Mapping[str, Any], logprobs: Iterable[TokenLogprob] | None = None) -> bytes:
        """A chunk with any delta, and the log-probabilities of its tokens."""
        return self._event(b'"delta":' + to_json(delta), _chat_logprobs(logprobs), None, None)

    def tool_call(self, call_index: int, id: str, name: str) -> bytes:  # noqa: A002 - the wire's name
        """Opens a tool call; its id and name are told here and never again."""
        function = {"name": name, "arguments": ""}
        call = {"index": call_index, "id": id, "type": "function", "function": function}
        return self.delta({"tool_calls": [call]})

    def tool_arguments(self, call_index: int, text: str) -> bytes:
        """A further piece of the arguments of an open call."""
        return self.delta({"tool_calls": [{"index": call_index, "function": {"arguments": text}}]})

    def finish(self, reason: FinishReason, extra: Mapping[str, Any] | None = None) -> bytes:
        """The last chunk of the choice."""
        return self._event(b'"delta":{}', None, reason, extra)


class TextChunkEncoder(_Chunks):
    """The `text_completion` events of one choice: `text` per piece, then `finish`; at the end `usage`."""

    def __init__(
        self,
        id: str,  # noqa: A002 - the wire's name
        created: int,
        model: str,
        index: int = 0,
        *,
        include_usage: bool = False,
    ) -> None:
        super().__init__("text_completion", id, created, model, index, include_usage=include_usage)
        self._text = self._open + b'"text":'
        self._tail = b',"logprobs":null,"finish_reason":null}' + self._close

    def text(self, text: str, logprobs: Mapping[str, Any] | None = None) -> bytes:
        if logprobs is not None:
            return self._event(b'"text":' + to_json(text), logprobs, None, None)
        return self._text + _json(text).encode("utf-8", "backslashreplace") + self._tail

    def finish(self, reason: FinishReason, extra: Mapping[str, Any] | None = None) -> bytes:
        """The last chunk of the choice; its text is empty."""
        return self._event(b'"text":""', None, reason, extra)
