"""HTTP/1.1 on one connection: hypercorn's h11 protocol with the answers and bounds of this server.

What differs from the base class:

- every answer made here carries the JSON error envelope, never an empty body;
- sizes are checked as the bytes come, a declared length before the first byte of it;
- pipelined requests never stop the reader, so that a disconnect is seen while one of them is answered;
- head and body of a short answer leave in one write; the chunks of a stream are framed without h11;
- HTTP/2 is not spoken: an `Upgrade: h2c` is ignored, as RFC 9110 allows, a direct HTTP/2 preface is a 505.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Protocol
from urllib.parse import urlsplit

import h11
import trio
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.events import Body, Data, EndBody, Response, StreamClosed
from hypercorn.protocol.events import Event as StreamEvent
from hypercorn.protocol.h11 import STREAM_ID, H11Protocol
from hypercorn.protocol.http_stream import HTTPStream
from hypercorn.protocol.ws_stream import WSStream
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import AppWrapper, ConnectionState, H11SendableEvent, TaskGroup

from rustedvino.http.envelope import default_message, envelope
from rustedvino.http.options import ServeOptions

CLOSE = (b"connection", b"close")
EVENTS_PER_YIELD = 256
_SHOWN_BYTES = re.compile(r":? (?:bytearray\()?b['\"].*", re.DOTALL)
"""Where h11 shows the bytes it did not like: a broken header may be the one with the key."""
JOIN_BELOW_BYTES = 64 * 1024  # copying a body this small costs less than a second system call


class BodyBudget(Protocol):
    """Room for the request bodies of all connections together."""

    def reserve_body(self, size: int) -> bool: ...

    def release_body(self, size: int) -> None: ...


class HttpProtocol(H11Protocol):
    def __init__(
        self,
        app: AppWrapper,
        config: Config,
        context: WorkerContext,
        task_group: TaskGroup,
        client: tuple[str, int] | None,
        server: tuple[str, int] | None,
        send: Callable[[Event], Awaitable[None]],
        *,
        options: ServeOptions,
        budget: BodyBudget,
    ) -> None:
        super().__init__(app, config, context, task_group, ConnectionState({}), False, client, server, send)
        self._options = options
        self._budget = budget
        self._method = b""
        self._held = b""
        self._framing: str = "unknown"
        self._fault: tuple[str, str | None] | None = None
        self.finished = False
        """No byte of ours may follow: refused, failed or closed."""
        self.paused = False
        """A further request waits until the present one is answered."""
        self.read_ahead_bytes = 0
        self.body_bytes = 0

    @property
    def receiving_body(self) -> bool:
        return self.stream is not None and self.connection.their_state is h11.SEND_BODY

    @property
    def request_was_read(self) -> bool:
        """Whether nothing the client is known to be sending is left unread."""
        return self.connection.their_state not in (h11.SEND_BODY, h11.ERROR)

    async def handle(self, event: Event) -> None:
        if isinstance(event, RawData) and self.paused:
            self.read_ahead_bytes += len(event.data)
        await super().handle(event)

    async def resume(self) -> None:
        """Go on with a pipelined request after the one before it has been answered."""
        await self._handle_events()

    async def _handle_events(self) -> None:
        pieces: list[bytes] = []
        events = 0
        self.paused = False
        while not self.finished:
            try:
                if self.connection.they_are_waiting_for_100_continue:
                    await self._send_h11_event(h11.InformationalResponse(status_code=100, headers=[]))
                event = self.connection.next_event()
            except h11.RemoteProtocolError as error:
                await self.refuse(error.error_status_hint, _SHOWN_BYTES.sub("", str(error)))
                return
            events += 1
            if events % EVENTS_PER_YIELD == 0:
                await trio.lowlevel.checkpoint()  # one read may hold 20,000 chunks of a byte each
            if isinstance(event, h11.Data):
                pieces.append(bytes(event.data))
                if not await self._count_body(len(event.data)):
                    return
                continue
            if pieces and self.stream is not None:
                # One message for all that one read brought, however finely it is chunked.
                await self.stream.handle(Body(stream_id=STREAM_ID, data=b"".join(pieces)))
                pieces.clear()
            if isinstance(event, h11.Request):
                fault = self._fault_of(event)
                if fault is not None:
                    await self.refuse(*fault)
                    return
                self._begin_request(event)
                await self.send(Updated(idle=False))
                await self._create_stream(event)
            elif event is h11.PAUSED:
                self.paused = True
                return
            elif event is h11.NEED_DATA or isinstance(event, h11.ConnectionClosed) or self.stream is None:
                return
            elif isinstance(event, h11.EndOfMessage):
                await self.stream.handle(EndBody(stream_id=STREAM_ID))
            elif isinstance(event, Data):  # bytes of a WebSocket
                await self.stream.handle(event)

    def _begin_request(self, request: h11.Request) -> None:
        self._method = request.method
        self._framing = "unknown"
        self._fault = None
        self.read_ahead_bytes = 0

    async def _count_body(self, size: int) -> bool:
        if self.stream is None:
            return True  # answered already; what still comes is discarded
        if not self._budget.reserve_body(size):
            await self.refuse(503, "too many request bodies are being received; try again")
            return False
        self.body_bytes += size
        if self.body_bytes > self._options.max_body_bytes:
            await self.refuse(413, f"the request body is over {self._options.max_body_bytes} bytes")
            return False
        return True

    def _fault_of(self, request: h11.Request) -> tuple[int, str] | None:
        """Why this head cannot be served, as status and message."""
        if not request.http_version.startswith(b"1."):
            version = request.http_version.decode("ascii")
            return 505, f"HTTP/{version} is not spoken here; use HTTP/1.1"
        head_bytes = len(request.target) + sum(len(name) + len(value) + 4 for name, value in request.headers)
        if head_bytes > self._options.max_head_bytes:  # h11 only looks at heads that come in pieces
            return 431, f"the request line and headers are over {self._options.max_head_bytes} bytes"
        if len(request.headers) > self._options.max_headers:
            return 431, f"the request has {len(request.headers)} headers; the limit is {self._options.max_headers}"
        target = request.target.decode("ascii")
        if not target.startswith("/") and not (target == "*" and request.method == b"OPTIONS"):
            try:
                parts = urlsplit(target)
            except ValueError:
                return 400, "the request target is not a valid URL"
            if parts.scheme not in ("http", "https") or not parts.netloc or not parts.path:
                return 400, "the request target must be a path or an http URL with a path"
        names = [name for name, _ in request.headers]
        if b"content-length" in names:
            if b"transfer-encoding" in names:
                return 400, "a request has either a content-length or a transfer-encoding"
            # h11 has checked that it is one run of digits.
            length = int(next(value for name, value in request.headers if name == b"content-length"))
            if length > self._options.max_body_bytes:
                return 413, (f"the request body is {length} bytes; the limit is {self._options.max_body_bytes} bytes")
        expect = [value for name, value in request.headers if name == b"expect"]
        if any(value.strip().lower() != b"100-continue" for value in expect):
            return 417, "the only expectation that is met here is 100-continue"
        return None

    async def refuse(self, status: int, message: str, code: str | None = None) -> None:
        """Answer with an error if an answer can still begin, then end the connection."""
        if self.finished:
            return
        if self.connection.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._fault = (message, code)
            await self._send_error_response(status)
        self.finished = True
        await self._close_stream()
        await self.send(Closed())

    async def _send_error_response(self, status_code: int) -> None:
        message, code = self._fault or (default_message(status_code), None)
        body = envelope(status_code, message, code)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            CLOSE,
            *self._options.answer_headers(),
            *self.config.response_headers("h11"),
        ]
        data = self._h11_bytes(self._h11_response(status_code, headers))
        if self._method != b"HEAD":
            data += self._h11_bytes(h11.Data(data=body))
        data += self._h11_bytes(h11.EndOfMessage())
        self._held = b""
        self.finished = True
        await self.send(RawData(data=data))

    @staticmethod
    def _h11_response(status: int, headers: list[tuple[bytes, bytes]]) -> h11.Response:
        try:
            reason = HTTPStatus(status).phrase
        except ValueError:
            reason = ""
        return h11.Response(status_code=status, headers=headers, reason=reason)

    def _h11_bytes(self, event: H11SendableEvent) -> bytes:
        """What h11 sends for an event; nothing once the connection may not be written to any more."""
        if self.finished:
            return b""
        try:
            return self.connection.send(event)
        except h11.LocalProtocolError:
            if self.connection.their_state is not h11.ERROR:
                raise
            return b""

    async def _send_h11_event(self, event: H11SendableEvent) -> None:
        data = self._h11_bytes(event)
        if data:
            await self.send(RawData(data=data))

    async def stream_send(self, event: StreamEvent) -> None:
        if isinstance(event, Response) and event.status_code >= 200:
            await self._send_head(event)
        elif isinstance(event, Body):
            await self._send_joined(self._h11_bytes(h11.Data(data=event.data)))
        elif isinstance(event, EndBody):
            await self._send_joined(self._h11_bytes(h11.EndOfMessage()))
            if isinstance(self.stream, WSStream):
                # A refused handshake. The base class would leave the connection open, and nobody reads it.
                await self.send(Closed())
        elif isinstance(event, StreamClosed):
            await self._send_joined(b"")
            await super().stream_send(event)
        else:
            await super().stream_send(event)

    async def _send_head(self, event: Response) -> None:
        headers = [*event.headers, *self.config.response_headers("h11")]
        ends = self.keep_alive_requests >= self.config.keep_alive_max_requests
        refused_handshake = isinstance(self.stream, WSStream)
        # An answer that does not wait for the body is the last of its connection: the client must know that.
        ends = ends or refused_handshake or self.receiving_body or self.context.terminated.is_set()
        if ends and CLOSE not in headers:
            headers.append(CLOSE)
        body = b""
        if event.status_code >= 400 and (b"content-length", b"0") in headers and self._method != b"HEAD":
            # The base classes refuse with an empty body (handshakes of WebSockets among them).
            body = envelope(event.status_code, default_message(event.status_code))
            headers.remove((b"content-length", b"0"))
            headers += [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        has_length = any(name.lower() == b"content-length" for name, _ in headers)
        self._framing = "h11" if has_length else "unknown"
        data = self._h11_bytes(self._h11_response(event.status_code, headers))
        if body:
            data += self._h11_bytes(h11.Data(data=body))
        if has_length:
            self._held = data  # its body follows at once
        elif data:
            await self.send(RawData(data=data))

    async def _send_joined(self, data: bytes) -> None:
        held, self._held = self._held, b""
        if held and len(data) < JOIN_BELOW_BYTES:
            data, held = held + data, b""
        if held:
            await self.send(RawData(data=held))
        if data:
            await self.send(RawData(data=data))

    def frame_chunk(self, data: bytes) -> bytes:
        """The bytes on the wire for one piece of a streamed body (never empty).

        h11 keeps no state between the pieces of a body without a declared length, so it frames the first one
        and its way (chunked, or as is for HTTP/1.0) is kept up here for the rest.
        """
        if self._framing == "chunked":
            return b"%x\r\n%b\r\n" % (len(data), data)
        if self._framing == "plain":
            return data
        framed = self._h11_bytes(h11.Data(data=data))
        if self._framing == "unknown":
            if framed == b"%x\r\n%b\r\n" % (len(data), data):
                self._framing = "chunked"
            elif framed == data:
                self._framing = "plain"
        return framed

    async def _close_stream(self) -> None:
        self._budget.release_body(self.body_bytes)
        self.body_bytes = 0
        await super()._close_stream()

    @property
    def http_stream(self) -> HTTPStream | None:
        return self.stream if isinstance(self.stream, HTTPStream) else None
