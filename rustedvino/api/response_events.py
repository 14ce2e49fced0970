"""The answer of `POST /v1/responses`: the response object, its output items, and the events that build it.

One writer makes both: a stream is the events it returns, a whole answer the response it has at the end.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal

from attrs import define, field

from rustedvino.api.errors import ApiError
from rustedvino.api.results import FinishReason, TokenLogprob, Usage, to_json

__all__ = ["ResponseWriter", "new_item_id", "response_usage"]

ItemKind = Literal["reasoning", "message", "function_call"]
Status = Literal["in_progress", "completed", "incomplete", "failed"]

_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode

_PREFIXES: Final[dict[ItemKind, str]] = {"reasoning": "rs", "message": "msg", "function_call": "fc"}
_DELTAS: Final[dict[ItemKind, str]] = {
    "reasoning": "response.reasoning_text",
    "message": "response.output_text",
    "function_call": "response.function_call_arguments",
}


def new_item_id(prefix: str) -> str:
    """A fresh id such as `msg_1f0c…`."""
    return f"{prefix}_{secrets.token_hex(24)}"


def response_usage(usage: Usage) -> dict[str, Any]:
    """The counts under the names of this API; clients add up the details, so both are always there."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens or 0, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens or 0},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


@define(eq=False)
class _Item:
    """An output item that is being written: its fields so far, and its text in pieces."""

    kind: ItemKind
    index: int
    fields: dict[str, Any]
    place: dict[str, Any]
    """The fields by which its events name it."""
    pieces: list[str] = field(factory=list)
    logprobs: list[dict[str, Any]] = field(factory=list)
    head: bytes = b""
    """A delta event up to its text."""

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def part(self, text: str) -> dict[str, Any]:
        if self.kind == "reasoning":
            return {"type": "reasoning_text", "text": text}
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": self.logprobs}

    def close(self, status: Status) -> None:
        self.fields["status"] = status
        if self.kind == "function_call":
            self.fields["arguments"] = self.text
        else:
            self.fields["content"] = [self.part(self.text)]


class ResponseWriter:
    """Writes one response in the order in which the model does.

    `fields` are those that do not change, `streaming` False leaves out the events: every method then returns b"".
    Call `start` first; `finish` or `fail` is the end.
    """

    def __init__(
        self, fields: Mapping[str, Any], *, streaming: bool = True, clock: Callable[[], float] = time.time
    ) -> None:
        self.id = new_item_id("resp")
        self._fields = fields
        self._streaming = streaming
        self._clock = clock
        self._created_at = clock()
        self._number = 0
        self._output: list[dict[str, Any]] = []
        self._open: _Item | None = None
        self._answered = False
        self._final: dict[str, Any] | None = None

    @property
    def response(self) -> dict[str, Any]:
        """The response object: as it ended, or in progress."""
        return self._response("in_progress") if self._final is None else self._final

    @property
    def in_text(self) -> bool:
        """Whether a piece of text would continue the item that is being written."""
        return self._is_open("message")

    def start(self) -> bytes:
        """The events before the first item."""
        if not self._streaming:
            return b""
        response = to_json(self._response("in_progress"))
        return b"".join(
            b'event: %b\ndata: {"type":"%b","sequence_number":%d,"response":%b}\n\n'
            % (name, name, self._next(), response)
            for name in (b"response.created", b"response.in_progress")
        )

    def reasoning(self, text: str) -> bytes:
        """A further piece of the model's thinking."""
        opening = b"" if self._is_open("reasoning") else self._begin("reasoning", {"summary": [], "content": []})
        return opening + self._delta(text)

    def text(self, text: str, logprobs: Iterable[TokenLogprob] = ()) -> bytes:
        """A further piece of the answer's text, with the log-probabilities of its tokens when those are wanted."""
        opening = b""
        if not self._is_open("message"):
            self._answered = True
            opening = self._begin("message", {"role": "assistant", "content": []})
        return opening + self._delta(text, [token.to_dict() for token in logprobs])

    def call(self, call_id: str, name: str) -> bytes:
        """A function call begins."""
        self._answered = True
        return self._begin("function_call", {"call_id": call_id, "name": name, "arguments": ""})

    def arguments(self, fragment: str) -> bytes:
        """A further piece of the arguments of the call that has begun."""
        assert self._is_open("function_call")
        return self._delta(fragment)

    def end_call(self, *, complete: bool) -> bytes:
        """The call is over; `complete` says whether its arguments are."""
        assert self._is_open("function_call")
        return self._end("completed" if complete else "incomplete")

    def finish(self, reason: FinishReason, usage: Usage) -> bytes:
        """The answer has ended as it should, or at its limit of tokens."""
        cut = reason in ("length", "content_filter")
        events = b""
        if not self._answered and not cut:  # clients take the last message for the answer
            events = self.text("")
        status: Status = "incomplete" if cut else "completed"
        events += self._end(status)
        more: dict[str, Any] = {"usage": response_usage(usage)}
        if cut:
            more["incomplete_details"] = {"reason": "max_output_tokens" if reason == "length" else reason}
        else:
            more["completed_at"] = self._clock()
        self._final = self._response(status, **more)
        return events + self._event(f"response.{status}", {"response": self._final})

    def fail(self, error: ApiError) -> bytes:
        """The answer has failed: what there is of it stays, its last item incomplete."""
        if self._open is not None:
            self._open.close("incomplete")
            self._open = None
        code = "rate_limit_exceeded" if error.status == 429 else "server_error"
        told = {"code": code, "message": error.message, "type": error.type, "param": error.param}
        self._final = self._response("failed", error=told)
        event = {"code": error.code, "message": error.message, "param": error.param}
        return self._event("error", event) + self._event("response.failed", {"response": self._final})

    # Items.

    def _is_open(self, kind: ItemKind) -> bool:
        return self._open is not None and self._open.kind == kind

    def _begin(self, kind: ItemKind, fields: dict[str, Any]) -> bytes:
        """Open an item; one still open ends here."""
        events = self._end("completed")
        index = len(self._output)
        item_id = new_item_id(_PREFIXES[kind])
        place: dict[str, Any] = {"item_id": item_id, "output_index": index}
        if kind != "function_call":
            place["content_index"] = 0
        item = _Item(kind, index, {"id": item_id, "type": kind, "status": "in_progress", **fields}, place)
        self._output.append(item.fields)
        self._open = item
        if not self._streaming:
            return b""
        name = f"{_DELTAS[kind]}.delta"
        plain: dict[str, Any] = {"logprobs": []} if kind == "message" else {}
        item.head = _record_head(name, {**place, **plain})[:-1] + b',"delta":'
        events += self._event("response.output_item.added", {"output_index": index, "item": item.fields})
        if kind != "function_call":
            events += self._event("response.content_part.added", {**place, "part": item.part("")})
        return events

    def _delta(self, text: str, logprobs: list[dict[str, Any]] | None = None) -> bytes:
        item = self._open
        assert item is not None
        item.pieces.append(text)
        if logprobs:
            item.logprobs += logprobs
        if not self._streaming or not (text or logprobs):
            return b""
        if logprobs:
            return self._event(f"{_DELTAS[item.kind]}.delta", {**item.place, "delta": text, "logprobs": logprobs})
        encoded = _json(text).encode("utf-8", "backslashreplace")
        return item.head + encoded + b',"sequence_number":%d}\n\n' % self._next()

    def _end(self, status: Status) -> bytes:
        """Close the open item, if there is one."""
        item = self._open
        if item is None:
            return b""
        self._open = None
        item.close(status)
        if not self._streaming:
            return b""
        done = f"{_DELTAS[item.kind]}.done"
        if item.kind == "function_call":
            events = self._event(done, {**item.place, "name": item.fields["name"], "arguments": item.text})
        else:
            extra = {"logprobs": item.logprobs} if item.kind == "message" else {}
            events = self._event(done, {**item.place, "text": item.text, **extra})
            events += self._event("response.content_part.done", {**item.place, "part": item.part(item.text)})
        return events + self._event("response.output_item.done", {"output_index": item.index, "item": item.fields})

    # Events.

    def _response(self, status: Status, **more: Any) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "response",
            "created_at": self._created_at,
            "status": status,
            "completed_at": None,
            "error": None,
            "incomplete_details": None,
            "output": list(self._output),
            "usage": None,
            **self._fields,
            **more,
        }

    def _next(self) -> int:
        number = self._number
        self._number += 1
        return number

    def _event(self, name: str, fields: Mapping[str, Any]) -> bytes:
        if not self._streaming:
            return b""
        return _record_head(name, fields)[:-1] + b',"sequence_number":%d}\n\n' % self._next()


def _record_head(name: str, fields: Mapping[str, Any]) -> bytes:
    """An event up to the end of its JSON object."""
    return b"event: %b\ndata: %b" % (name.encode(), to_json({"type": name, **fields}))
