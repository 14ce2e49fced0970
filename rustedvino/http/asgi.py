"""How a request runs: its cancellation, its clean-up, its answer.

Set on the application: `app.asgi_http_class = HttpConnection`.
"""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Awaitable, Callable
from typing import Any, cast

import trio
from hypercorn.typing import ASGIReceiveCallable, ASGIReceiveEvent, ASGISendCallable, ASGISendEvent
from quart import Request
from quart.utils import encode_headers
from quart.wrappers import Response
from quart_trio import QuartTrio
from quart_trio.asgi import TrioASGIHTTPConnection
from quart_trio.wrappers import TrioResponse
from werkzeug.exceptions import RequestEntityTooLarge
from werkzeug.wrappers import Response as WerkzeugResponse

from rustedvino.http.exchange import EXCHANGE, Exchange
from rustedvino.http.request_ids import request_id
from rustedvino.observe.access import Access
from rustedvino.observe.logs import log_fields

CLEANUP = "rustedvino.cleanup"
ACCESS = "rustedvino.access"
"""Keys in the ASGI scope."""

LAST_SEND_BOUND_SECS = 60.0
"""For servers other than ours, whose sends may have no bound of their own."""

Send = Callable[[bytes], Awaitable[None]]


class PieceSender:
    """The `Send` of a reply on our own server: a piece can also be sent from where nobody may wait."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._now = trio.lowlevel.current_clock().current_time  # a token's time is asked without detours
        self.last_sent_at = self._now()

    async def __call__(self, data: bytes) -> None:
        """Send one piece; returns when the kernel has it."""
        self.last_sent_at = trio.current_time()
        await self._exchange.send_chunk(data)

    @property
    def is_clear(self) -> bool:
        """Whether `now` may be called: the client is there and nothing sent before waits for it."""
        return self._exchange.is_clear

    def now(self, data: bytes) -> bool:
        """Send one piece, not empty, without waiting. False: the kernel did not take all of it; `flush` waits for
        that, and what is sent next stays behind it."""
        self.last_sent_at = self._now()
        return self._exchange.send_chunk_now(data)

    async def flush(self) -> None:
        """Wait until the kernel has all that was sent by `now`."""
        await self._exchange.flush()


class BodyTooLarge(RequestEntityTooLarge):
    """A body over the limit of its route."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__(f"the request body is over {max_bytes} bytes")
        self.max_bytes = max_bytes


class StreamingReply(TrioResponse):
    """An answer whose body is sent piece by piece by a coroutine.

    `produce(send)` is awaited after the head has been sent, outside the request's context (take what you need
    of `request` before). Each `await send(piece)` sends one piece as one frame. When the client goes away, or
    the connection is aborted, it is cancelled at its next await, so that ordinary `try`/`finally` cleans up.
    What it raises is logged and leaves the body without its proper end; report faults by sending them.

    `keepalive` is sent whenever nothing was sent for `keepalive_secs` (0 = never). There is no limit on the
    duration. `produce` is not run for HEAD.
    """

    automatically_set_content_length = False

    def __init__(
        self,
        produce: Callable[[Send], Awaitable[None]],
        *,
        status: int | None = None,
        headers: dict[str, str] | None = None,
        content_type: str | None = None,
        keepalive_secs: float = 0.0,
        keepalive: bytes = b"",
    ) -> None:
        super().__init__(None, status=status, headers=cast("Any", headers), content_type=content_type)
        self.timeout = None
        self.produce = produce
        self.keepalive_secs = keepalive_secs if keepalive else 0.0
        self.keepalive = keepalive


def request_cleanup(request: Request) -> contextlib.ExitStack:
    """What runs when this request has ended, however it ends, also between its handler and its first byte.

    Register synchronous calls only: `request_cleanup(request).callback(lease.close)`.
    """
    scope = cast("dict[str, Any]", request.scope)
    stack: contextlib.ExitStack | None = scope.get(CLEANUP)
    if stack is None:
        raise RuntimeError("the application does not run requests by HttpConnection")
    return stack


def request_access(request: Request) -> Access:
    """The log line of this request, for a handler to say which model it was and how many tokens."""
    access: Access | None = cast("dict[str, Any]", request.scope).get(ACCESS)
    if access is None:
        raise RuntimeError("the application does not run requests by HttpConnection")
    return access


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The whole body of a request. Raises BodyTooLarge, from the declared length if there is one.

    A body that comes too slowly, and a client that goes away, end in cancellation.
    """
    declared = request.content_length
    if declared is not None and declared > max_bytes:
        raise BodyTooLarge(max_bytes)
    # Grows in place and hands its buffer out without a copy: joining a list of pieces would hold the body twice.
    whole = io.BytesIO()
    async for piece in request.body:
        if whole.tell() + len(piece) > max_bytes:
            raise BodyTooLarge(max_bytes)
        whole.write(piece)
    return whole.getvalue()


def prepare_app(app: QuartTrio) -> None:
    """Hand the bounds of requests to this layer: the framework's own would cut long streams and uploads."""
    app.asgi_http_class = HttpConnection
    app.config["RESPONSE_TIMEOUT"] = None
    app.config["BODY_TIMEOUT"] = None
    app.config["MAX_CONTENT_LENGTH"] = None


class HttpConnection(TrioASGIHTTPConnection):
    """One request: a watcher for its body and its disconnect beside the task that answers it."""

    _sender: PieceSender | None = None
    _keepalive_secs = 0.0
    _keepalive = b""
    _watch_scope: trio.CancelScope | None = None

    async def __call__(self, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        request = self._create_request_from_scope(send)
        extensions = cast("dict[str, Any]", self.scope.get("extensions") or {})
        self._exchange: Exchange | None = extensions.get(EXCHANGE)
        number = request_id(request)
        self._access = Access(str(self.scope["method"]), str(self.scope["path"]), number, complete=False)
        with contextlib.ExitStack() as cleanup, log_fields(request_id=number):
            cleanup.callback(self._access.end)
            scope = cast("dict[str, Any]", self.scope)
            scope[CLEANUP], scope[ACCESS] = cleanup, self._access
            async with trio.open_nursery() as nursery:
                if self._take_what_came(request):
                    nursery.start_soon(self._watch, nursery.cancel_scope, request, receive)
                else:
                    nursery.cancel_scope.cancel()
                await self._answer(request, send)
                nursery.cancel_scope.cancel()

    def _take_what_came(self, request: Request) -> bool:
        """Feed the part of the body that has come with the head, mostly all of it: its handler then need not wait
        for it. False when the client is gone."""
        if self._exchange is not None:
            while (message := self._exchange.received()) is not None:
                if not _feed(request, message):
                    return False
        return True

    async def _watch(self, whole: trio.CancelScope, request: Request, receive: ASGIReceiveCallable) -> None:
        """Feed the body, send keep-alive pieces, and cancel the request when its client is gone."""
        while True:
            with trio.CancelScope(deadline=self._keepalive_at()) as self._watch_scope:
                if not _feed(request, await receive()):
                    whole.cancel()
                    return
            if self._watch_scope.cancelled_caught and trio.current_time() >= self._keepalive_at():
                await self._send_keepalive()

    def _keepalive_at(self) -> float:
        if self._sender is None or not self._keepalive_secs:
            return math.inf
        return self._sender.last_sent_at + self._keepalive_secs

    async def _send_keepalive(self) -> None:
        assert self._sender is not None
        assert self._exchange is not None
        if self._exchange.send_is_blocked:
            self._sender.last_sent_at = trio.current_time()
        else:
            await self._sender(self._keepalive)

    async def _answer(self, request: Request, send: ASGISendCallable) -> None:
        response = await self.app.handle_request(request)
        await send(
            cast(
                "ASGISendEvent",
                {
                    "type": "http.response.start",
                    "status": response.status_code,
                    "headers": encode_headers(response.headers),
                },
            )
        )
        self._access.status = response.status_code
        if not isinstance(response, StreamingReply):
            await self._send_body(send, response)
        elif self.scope["method"] != "HEAD":
            await self._stream(send, response)
        # The answer's end also closes the connection where that was asked for. The disconnect that this
        # reports must not cancel it half-way.
        bound_secs = LAST_SEND_BOUND_SECS if self._exchange is None else self._exchange.last_send_bound_secs
        with trio.move_on_after(bound_secs, shield=True):
            await send(_body(b"", more=False))
            self._access.complete = True

    async def _stream(self, send: ASGISendCallable, reply: StreamingReply) -> None:
        if self._exchange is None:

            async def send_piece(data: bytes) -> None:
                await send(_body(data, more=True))

            await reply.produce(send_piece)
            return
        self._sender = PieceSender(self._exchange)
        self._keepalive, self._keepalive_secs = reply.keepalive, reply.keepalive_secs
        if self._watch_scope is not None:
            self._watch_scope.deadline = self._keepalive_at()
        try:
            await reply.produce(self._sender)
        finally:
            self._keepalive_secs = 0.0

    async def _send_body(self, send: ASGISendCallable, response: Response | WerkzeugResponse) -> None:
        if isinstance(response, WerkzeugResponse):
            for piece in response.response:
                await send(_body(piece.encode() if isinstance(piece, str) else piece, more=True))
            return
        async with response.response as pieces:
            async for piece in pieces:
                await send(_body(piece.encode() if isinstance(piece, str) else piece, more=True))


def _feed(request: Request, message: ASGIReceiveEvent) -> bool:
    """Give a request what came from its client; False when that is gone."""
    if message["type"] == "http.request":
        request.body.append(message.get("body", b""))
        if not message.get("more_body", False):
            request.body.set_complete()
    return message["type"] != "http.disconnect"


def _body(data: bytes, *, more: bool) -> ASGISendEvent:
    return cast("ASGISendEvent", {"type": "http.response.body", "body": data, "more_body": more})
