"""A small application on a real loopback socket, and clients that are nothing but sockets."""

from __future__ import annotations

import json
import socket
import struct
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

import pytest
import trio
from attrs import define, field
from quart import request
from quart_trio import QuartTrio

from rustedvino.http.asgi import Send, StreamingReply, read_body, request_cleanup
from rustedvino.http.listener import open_listener
from rustedvino.http.options import ServeOptions
from rustedvino.http.serve import HttpServer, serve
from rustedvino.http.sse import DONE, data_event, sse_reply


class Journal:
    """What handlers did, for tests to wait for and to count."""

    def __init__(self) -> None:
        self.entries: list[str] = []
        self._changed = trio.Event()

    def note(self, entry: str) -> None:
        self.entries.append(entry)
        self._changed.set()
        self._changed = trio.Event()

    async def wait_for(self, entry: str, count: int = 1) -> None:
        with trio.fail_after(20):
            while self.entries.count(entry) < count:
                await self._changed.wait()


def make_app(journal: Journal) -> QuartTrio:
    app = QuartTrio("layer")

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.post("/size")
    async def size() -> dict[str, int]:
        body = await read_body(request, int(request.args.get("max", 50 * 2**20)))
        return {"size": len(body)}

    @app.post("/unread")
    async def unread() -> tuple[dict[str, str], int]:
        return {"error": "no key"}, 401

    @app.get("/fail")
    async def fail() -> None:
        raise RuntimeError("the handler is broken")

    @app.route("/wait", methods=["GET", "POST"])
    async def wait() -> None:
        request_cleanup(request).callback(journal.note, "released")
        journal.note("waiting")
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            journal.note("cancelled")
            raise

    @app.get("/stream")
    async def stream() -> StreamingReply:
        count = int(request.args.get("n", 3))

        async def produce(send: Send) -> None:
            for i in range(count):
                await send(data_event(b"%d" % i))
            await send(DONE)

        return sse_reply(produce, keepalive_secs=0)

    @app.get("/endless")
    async def endless() -> StreamingReply:
        request_cleanup(request).callback(journal.note, "released")
        pause_secs = float(request.args.get("pause", 0.001))

        async def produce(send: Send) -> None:
            journal.note("producing")
            try:
                while True:
                    await send(data_event(b"x" * 512))
                    await trio.sleep(pause_secs)
            except trio.Cancelled:
                journal.note("cancelled")
                raise

        return sse_reply(produce, keepalive_secs=0)

    @app.get("/silent")
    async def silent() -> StreamingReply:
        request_cleanup(request).callback(journal.note, "released")

        async def produce(send: Send) -> None:
            journal.note("producing")
            try:
                await trio.sleep_forever()
            finally:
                journal.note("cancelled")

        return sse_reply(produce, keepalive_secs=float(request.args.get("keepalive", 0)))

    @app.get("/broken-stream")
    async def broken_stream() -> StreamingReply:
        async def produce(send: Send) -> None:
            await send(data_event(b"1"))
            raise RuntimeError("the producer is broken")

        return sse_reply(produce, keepalive_secs=0)

    return app


@define
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes
    raw: bytes = field(repr=False)

    @property
    def error(self) -> dict[str, object]:
        assert self.headers["content-type"] == "application/json"
        error = json.loads(self.body)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return error


def dechunk(raw: bytes) -> bytes:
    """The body of a complete chunked message; raises ValueError when its end is missing."""
    body = b""
    while True:
        line, _, raw = raw.partition(b"\r\n")
        size = int(line, 16)
        if size == 0:
            if raw != b"\r\n":
                raise ValueError(f"bad end {raw[:40]!r}")
            return body
        body, raw = body + raw[:size], raw[size + 2 :]


def parse(raw: bytes) -> Answer:
    head, _, body = raw.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    if headers.get("transfer-encoding") == "chunked":
        body = dechunk(body)
    return Answer(int(first.split()[1]), headers, body, raw)


class Client:
    """A raw connection. Everything is bounded by 20 s, so that a hang is a failure."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.buffer = b""

    async def send(self, data: bytes | str) -> None:
        with trio.fail_after(20):
            await self.stream.send_all(data.encode() if isinstance(data, str) else data)

    async def get(self, path: str, *headers: str, version: str = "1.1", method: str = "GET") -> None:
        lines = [f"{method} {path} HTTP/{version}", "host: test", *headers]
        await self.send("\r\n".join(lines) + "\r\n\r\n")

    async def read_until(self, mark: bytes) -> bytes:
        with trio.fail_after(20):
            while mark not in self.buffer:
                data = await self.stream.receive_some(65536)
                assert data, f"closed before {mark!r}: {self.buffer[:200]!r}"
                self.buffer += data
        found, _, self.buffer = self.buffer.partition(mark)
        return found + mark

    async def read_all(self) -> bytes:
        """Everything to the end of the connection."""
        with trio.fail_after(20):
            while data := await self.stream.receive_some(65536):
                self.buffer += data
        data, self.buffer = self.buffer, b""
        return data

    async def answer_to_end(self) -> Answer:
        return parse(await self.read_all())

    async def answer(self) -> Answer:
        """One answer with a content-length, or a chunked one."""
        head = await self.read_until(b"\r\n\r\n")
        if b"transfer-encoding: chunked" in head.lower():
            return parse(head + await self.read_until(b"\r\n0\r\n\r\n"))
        size = next(int(line[15:]) for line in head.split(b"\r\n") if line.startswith(b"content-length"))
        with trio.fail_after(20):
            while len(self.buffer) < size:
                data = await self.stream.receive_some(65536)
                assert data
                self.buffer += data
        body, self.buffer = self.buffer[:size], self.buffer[size:]
        return parse(head + body)

    async def close(self) -> None:
        await self.stream.aclose()

    def reset(self) -> None:
        linger = struct.pack("hh" if sys.platform == "win32" else "ii", 1, 0)
        self.stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.stream.socket.close()

    def half_close(self) -> None:
        self.stream.socket.shutdown(socket.SHUT_WR)


@define
class Running:
    server: HttpServer
    journal: Journal
    port: int
    nursery: trio.Nursery
    clients: list[Client] = field(factory=list)

    async def connect(self, receive_buffer_bytes: int | None = None) -> Client:
        sock = trio.socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        if receive_buffer_bytes is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        try:
            await sock.connect(("127.0.0.1", self.port))
        except OSError:
            sock.close()
            raise
        self.clients.append(Client(trio.SocketStream(sock)))
        return self.clients[-1]

    async def until_empty(self) -> None:
        """Wait until the server holds nothing: no connection, request or byte."""
        with trio.fail_after(20):
            await self.server.wait_closed()
        stats = self.server.statistics()
        assert (stats.open_connections, stats.requests_in_flight, stats.buffered_bytes) == (0, 0, 0)


@asynccontextmanager
async def running(
    options: ServeOptions | None = None, app: Callable[[Journal], QuartTrio] = make_app
) -> AsyncIterator[Running]:
    options = options or ServeOptions()
    journal = Journal()
    listener = open_listener("127.0.0.1", 0, client_stall_secs=options.client_stall_secs)
    port = listener.getsockname()[1]
    async with trio.open_nursery() as nursery:
        server = await nursery.start(partial(serve, app(journal), [listener], options=options))
        layer = Running(server, journal, port, nursery)
        try:
            yield layer
        finally:
            for client in layer.clients:
                client.stream.socket.close()
            server.abort_all()
        with trio.fail_after(10):
            await server.wait_closed()


@pytest.fixture
def run_layer() -> Callable[..., AbstractAsyncContextManager[Running]]:
    return running


@pytest.fixture
async def layer() -> AsyncIterator[Running]:
    async with running() as server:
        yield server
