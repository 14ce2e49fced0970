"""The accept loop and the life of the server: start, drain, hard end."""

from __future__ import annotations

import errno
import logging
import socket
import sys
from collections import Counter

import trio
from attrs import define, field, frozen
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import AppWrapper
from quart_trio import QuartTrio

from rustedvino.http.asgi import prepare_app
from rustedvino.http.connections import Connection
from rustedvino.http.options import ServeOptions
from rustedvino.http.refusal import refuse_connection

log = logging.getLogger(__name__)

ACCEPTS_PER_WAKEUP = 64
OUT_OF_FILES_PAUSE_SECS = 0.1
MAX_REFUSALS_AT_ONCE = 64
FILES_FOR_OTHERS = 128
"""Open files that connections leave to workers, logs and models."""

_EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


@frozen
class HttpStatistics:
    """A snapshot of the HTTP layer."""

    open_connections: int
    """Accepted and not closed yet, idle ones included."""
    idle_connections: int
    """Kept alive between two requests."""
    requests_in_flight: int
    """Requests whose handler or answer has not ended."""
    buffered_bytes: int
    """Request bodies received plus answers that a socket did not take yet."""
    accepted_total: int
    refused_total: int
    """Connections turned away for lack of room."""


def hypercorn_config(options: ServeOptions) -> Config:
    config = Config()
    config.errorlog = logging.getLogger("rustedvino.http.protocol")
    config.accesslog = None
    config.include_server_header = False
    config.h11_max_incomplete_size = options.max_head_bytes
    config.keep_alive_max_requests = options.max_requests_per_connection
    config.websocket_max_message_size = options.max_websocket_message_bytes
    config.websocket_ping_interval = options.websocket_ping_interval_secs
    return config


def _room_for_connections(options: ServeOptions) -> int:
    """`max_connections`, lowered to what the limit of open files leaves. 0 = no bound."""
    room = options.max_connections
    if sys.platform != "win32":
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft != resource.RLIM_INFINITY:
            files = max(16, soft - FILES_FOR_OTHERS)
            room = min(room, files) if room else files
    return room


@define(eq=False)
class HttpServer:
    """A running server. Obtained from `serve` by `await nursery.start(...)`."""

    app: AppWrapper
    options: ServeOptions
    listeners: list[socket.socket]
    config: Config = field(init=False)
    context: WorkerContext = field(init=False, factory=lambda: WorkerContext(None))
    _connections: dict[Connection, str] = field(init=False, factory=dict)
    _peers: Counter[str] = field(init=False, factory=Counter)
    _max_connections: int = field(init=False)
    _requests: int = field(init=False, default=0)
    _body_bytes: int = field(init=False, default=0)
    _refusals: int = field(init=False, default=0)
    _accepted_total: int = field(init=False, default=0)
    _refused_total: int = field(init=False, default=0)
    _changed: trio.Event = field(init=False, factory=trio.Event)

    def __attrs_post_init__(self) -> None:
        self.config = hypercorn_config(self.options)
        self._max_connections = _room_for_connections(self.options)

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Host and port of each open listener."""
        return [sock.getsockname()[:2] for sock in self.listeners if sock.fileno() >= 0]

    def statistics(self) -> HttpStatistics:
        return HttpStatistics(
            open_connections=len(self._connections),
            idle_connections=sum(connection.is_idle for connection in self._connections),
            requests_in_flight=self._requests,
            buffered_bytes=sum(connection.buffered_bytes for connection in self._connections),
            accepted_total=self._accepted_total,
            refused_total=self._refused_total,
        )

    # -- the end ------------------------------------------------------------------------------

    def stop_accepting(self) -> None:
        """Close the listeners. Connections go on. May be called twice."""
        for listener in self.listeners:
            if listener.fileno() >= 0:
                trio.lowlevel.notify_closing(listener)
                listener.close()

    async def drain(self, deadline: float) -> bool:
        """Let the requests in flight end until `deadline` (trio's clock); True when no connection is left.

        Idle connections are closed at once, busy ones after their request; answers that begin from now on say
        `connection: close`. Listeners are closed. When this returns False, or is cancelled, call `abort_all`.
        """
        self.stop_accepting()
        await self.context.terminated.set()
        for connection in list(self._connections):
            connection.retire()
        with trio.move_on_at(deadline):
            await self.wait_closed()
        return not self._connections

    async def wait_closed(self) -> None:
        """Wait until no connection is open."""
        while self._connections:
            await self._changed.wait()

    def abort_all(self) -> None:
        """Reset every connection now: no client can hold the server, whatever it does not read."""
        self.stop_accepting()
        for connection in list(self._connections):
            connection.abort()

    # -- for connections ----------------------------------------------------------------------

    def request_begins(self) -> None:
        self._requests += 1

    def request_ends(self) -> None:
        self._requests -= 1

    def reserve_body(self, size: int) -> bool:
        if self._body_bytes + size > self.options.max_buffered_body_bytes:
            return False
        self._body_bytes += size
        return True

    def release_body(self, size: int) -> None:
        self._body_bytes -= size

    # -- accepting ----------------------------------------------------------------------------

    async def accept_all(self, listener: socket.socket, nursery: trio.Nursery) -> None:
        """Accept until the listener is closed; handlers run in `nursery`."""
        while listener.fileno() >= 0:
            try:
                await trio.lowlevel.wait_readable(listener)
                for _ in range(ACCEPTS_PER_WAKEUP):
                    sock, address = listener.accept()
                    self._admit(sock, str(address[0]), nursery)
            except BlockingIOError:
                continue
            except trio.ClosedResourceError:
                return
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    log.warning("cannot accept a connection: %s", error.strerror)
                    self._retire_longest_idle()
                    await trio.sleep(OUT_OF_FILES_PAUSE_SECS)
                # Anything else is about one connection that died in the queue.

    def _admit(self, sock: socket.socket, address: str, nursery: trio.Nursery) -> None:
        self._accepted_total += 1
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:
            sock.close()
            return
        refusal = self._lack_of_room(address)
        if refusal is None:
            try:
                connection = Connection(self, sock)
            except OSError:
                sock.close()  # reset while it was queued
                return
            self._connections[connection] = address
            self._peers[address] += 1
            nursery.start_soon(self._run_connection, connection)
            return
        self._refused_total += 1
        if self._refusals >= MAX_REFUSALS_AT_ONCE:
            sock.close()
            return
        self._refusals += 1
        nursery.start_soon(self._run_refusal, sock, refusal)

    def _lack_of_room(self, address: str) -> str | None:
        per_peer = self.options.max_connections_per_peer
        if per_peer and self._peers[address] >= per_peer:
            return f"too many connections from {address}; the limit is {per_peer}"
        if self._max_connections and len(self._connections) >= self._max_connections:
            if self._retire_longest_idle():
                return None
            return f"too many connections; the limit is {self._max_connections}"
        return None

    def _retire_longest_idle(self) -> bool:
        idle = [connection for connection in self._connections if connection.is_retirable]
        if not idle:
            return False
        min(idle, key=lambda connection: connection.idle_since).retire()
        return True

    async def _run_connection(self, connection: Connection) -> None:
        try:
            await connection.run()
        except Exception:
            log.exception("a connection ended by an error of the server")
        finally:
            address = self._connections.pop(connection)
            self._peers[address] -= 1
            if not self._peers[address]:
                del self._peers[address]
            self._changed.set()
            self._changed = trio.Event()

    async def _run_refusal(self, sock: socket.socket, message: str) -> None:
        try:
            await refuse_connection(sock, self.options, message)
        finally:
            self._refusals -= 1


async def serve(
    app: QuartTrio,
    listeners: list[socket.socket],
    *,
    options: ServeOptions | None = None,
    task_status: trio.TaskStatus[HttpServer] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve `app` on `listeners` (from `open_listener`; closed here) until it is stopped.

    `task_status.started` gets the HttpServer once connections are accepted. Returns after `stop_accepting` or
    `drain`, when the last connection has ended. Cancelling it resets all connections and ends at once: no
    client can hold it. The app's start-up and shut-down functions run around it.
    """
    prepare_app(app)
    server = HttpServer(ASGIWrapper(app), options or ServeOptions(), listeners)
    try:
        async with trio.open_nursery() as app_nursery:
            app.nursery = app_nursery
            await app.startup()
            async with trio.open_nursery() as handlers:
                try:
                    async with trio.open_nursery() as acceptors:
                        for listener in listeners:
                            acceptors.start_soon(server.accept_all, listener, handlers)
                        task_status.started(server)
                    await server.wait_closed()
                finally:
                    server.abort_all()
            await app.shutdown()
    finally:
        server.stop_accepting()
