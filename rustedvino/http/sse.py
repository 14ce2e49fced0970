"""Server-sent events: framing without I/O, and the reply that carries them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from rustedvino.http.asgi import Send, StreamingReply

KEEP_ALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"

CONTENT_TYPE = "text/event-stream; charset=utf-8"

HEADERS = {
    "content-type": CONTENT_TYPE,
    "cache-control": "no-cache",
    # nginx would collect the events of a stream into blocks.
    "x-accel-buffering": "no",
}


def data_event(data: bytes) -> bytes:
    """One event. `data` is a line: JSON as our encoder writes it has no line break."""
    return b"data: %b\n\n" % data


def named_event(name: str, data: bytes) -> bytes:
    """One event with a name, for the APIs whose clients select on it."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data)


def text_event(text: str) -> bytes:
    """One event of a text of any lines, each its own `data:` field."""
    normal = text.replace("\r\n", "\n").replace("\r", "\n")
    return b"".join(b"data: %b\n" % line.encode() for line in normal.split("\n")) + b"\n"


def comment(text: str) -> bytes:
    """A line that clients skip."""
    return b": %b\n\n" % " ".join(text.splitlines()).encode()


def sse_reply(
    produce: Callable[[Send], Awaitable[None]],
    *,
    keepalive_secs: float,
    status: int = 200,
    headers: dict[str, str] | None = None,
    **more: Any,
) -> StreamingReply:
    """A streaming reply of events, with a comment after each `keepalive_secs` of silence (0 = none).

    Each `send` of `produce` must be of whole events, as comments go between two of them.
    """
    return StreamingReply(
        produce,
        status=status,
        headers={**HEADERS, **(headers or {})},
        keepalive_secs=keepalive_secs,
        keepalive=KEEP_ALIVE,
        **more,
    )
