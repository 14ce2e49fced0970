"""One accepted connection: its socket, its reader, its bounds and its end.

The task that runs a connection is its reader. It alone ends the connection; everyone else marks it and wakes
the reader, so that no close is ever cancelled half-way by the request it belongs to.
"""

from __future__ import annotations

import logging
import math
import socket
import struct
import sys
from typing import Protocol

import h11
import trio
from attrs import define, field
from hypercorn.config import Config
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import AppWrapper
from hypercorn.utils import parse_socket_addr

from rustedvino.http import peer
from rustedvino.http.options import KIB, ServeOptions
from rustedvino.http.protocol import BodyBudget, HttpProtocol
from rustedvino.http.requests import RequestTasks

log = logging.getLogger(__name__)

RECEIVE_BYTES = 128 * KIB
PEER_POLL_SECS = 0.01  # a peer whose input has ended
NEW_CONNECTION_SECS = 1.0
SENDS_PER_YIELD = 32
READ_AHEAD_POLL_SECS = 0.5  # a peer that pipelines more than we read ahead


class ConnectionHost(BodyBudget, Protocol):
    """What a connection needs of its server."""

    app: AppWrapper
    config: Config
    context: WorkerContext
    options: ServeOptions

    def request_begins(self) -> None: ...

    def request_ends(self) -> None: ...


@define(eq=False, slots=False)
class Connection:
    """One client. `run` returns when the connection has ended and its socket is closed."""

    host: ConnectionHost
    sock: socket.socket
    protocol: HttpProtocol = field(init=False)
    _tasks: RequestTasks = field(init=False)
    bytes_sent: int = field(init=False, default=0)
    idle_since: float = field(init=False, factory=trio.current_time)
    _scope: trio.CancelScope = field(init=False, factory=trio.CancelScope)
    _read_scope: trio.CancelScope | None = field(init=False, default=None)
    _send_scope: trio.CancelScope | None = field(init=False, default=None)
    _send_lock: trio.Lock = field(init=False, factory=trio.Lock)
    _pending_bytes: int = field(init=False, default=0)
    _unsent: bytes = field(init=False, default=b"")
    _sends_since_yield: int = field(init=False, default=0)
    _head_began_at: float | None = field(init=False, default=None)
    _request_began_at: float = field(init=False, default=0.0)
    _last_input_at: float = field(init=False, default=0.0)
    _is_fresh: bool = field(init=False, default=True)
    _ending: bool = field(init=False, default=False)
    _broken: bool = field(init=False, default=False)
    _end_of_input: bool = field(init=False, default=False)
    _retiring: bool = field(init=False, default=False)
    _wakeups: int = field(init=False, default=0)

    def __attrs_post_init__(self) -> None:
        """Raises OSError if the peer has reset the connection already."""
        self._tasks = RequestTasks(self)
        self.protocol = HttpProtocol(
            self.host.app,
            self.host.config,
            self.host.context,
            self._tasks,
            parse_socket_addr(self.sock.family, self.sock.getpeername()),
            parse_socket_addr(self.sock.family, self.sock.getsockname()),
            self._protocol_send,
            options=self.host.options,
            budget=self.host,
        )

    @property
    def is_idle(self) -> bool:
        """Between two requests, with no byte of the next one."""
        return not self._ending and self.protocol.stream is None and self._head_began_at is None

    @property
    def is_retirable(self) -> bool:
        """Idle, and not because it has only just been opened."""
        is_new = self._is_fresh and trio.current_time() - self.idle_since < NEW_CONNECTION_SECS
        return self.is_idle and not is_new and not self._retiring

    @property
    def buffered_bytes(self) -> int:
        return self._pending_bytes + len(self._unsent) + self.protocol.body_bytes + self.protocol.read_ahead_bytes

    @property
    def send_is_blocked(self) -> bool:
        return self._send_scope is not None or bool(self._unsent)

    @property
    def is_clear(self) -> bool:
        """Whether the client is there and nothing waits for it to read: the time for `write_now`."""
        return not (self._broken or self._unsent or self._send_lock.locked())

    @property
    def is_broken(self) -> bool:
        return self._broken

    # -- life ---------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve the connection to its end. Cancelling this resets it."""
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    self._tasks.tasks = nursery
                    await self._read_to_end()
                    lingers = not self._broken and not self.protocol.request_was_read
                    self._ending = True
                    await self.protocol.handle(Closed())
                    self.protocol.finished = True
                    self._give_up_sending()
                    self._tasks.end_helpers()
                if lingers:
                    await self._linger()
        finally:
            if self.sock.fileno() >= 0 and self._broken:
                self._reset_on_close()
            self._close_socket()

    def retire(self) -> None:
        """End the connection after the request it is busy with; now, if it is idle."""
        self._retiring = True
        self._wake()

    def abort(self) -> None:
        """Reset the connection now, whatever its client reads or sends; cancels its request."""
        self._broken = self._ending = True
        self.protocol.finished = True
        if self.sock.fileno() >= 0:
            self._reset_on_close()
            self._close_socket()
        self._scope.cancel()
        self._give_up_sending()

    def _reset_on_close(self) -> None:
        linger = struct.pack("hh" if sys.platform == "win32" else "ii", 1, 0)
        try:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        except OSError:
            log.debug("the connection was gone before its reset")

    def _close_socket(self) -> None:
        if self.sock.fileno() >= 0:
            trio.lowlevel.notify_closing(self.sock)
            self.sock.close()

    def _fail(self) -> None:
        """The client is gone or stalled: nothing more can be sent, the request is cancelled by the reader."""
        self._broken = self._ending = True
        self.protocol.finished = True
        self._wake()

    def _wake(self) -> None:
        self._wakeups += 1
        if self._read_scope is not None:
            self._read_scope.cancel()

    def _give_up_sending(self) -> None:
        if self._send_scope is not None:
            self._broken = True
            self._send_scope.cancel()

    # -- reading ------------------------------------------------------------------------------

    async def _read_to_end(self) -> None:
        protocol = self.protocol
        while not self._ending:
            if protocol.paused and protocol.stream is None:
                await protocol.resume()
                self._note_head()
                continue
            if self._retiring and self.is_idle and not self._has_input():
                return
            if protocol.paused and protocol.read_ahead_bytes > self.host.options.max_head_bytes:
                await self._wait(READ_AHEAD_POLL_SECS)
                if peer.is_gone_or_half_closed(self.sock):
                    return
                continue
            data = await self._receive()
            if data is None:
                continue
            if not data:
                await self._after_end_of_input()
                return
            self._last_input_at = trio.current_time()
            await protocol.handle(RawData(data))
            self._note_head()

    def _note_head(self) -> None:
        """Start the clock of a request head whose end has not come yet."""
        connection = self.protocol.connection
        if (
            self._head_began_at is None
            and self.protocol.stream is None
            and connection.their_state is h11.IDLE
            and connection.trailing_data[0]
        ):
            self._head_began_at = self._last_input_at

    def _has_input(self) -> bool:
        """Whether bytes wait unread; asked once, when an idle connection retires."""
        try:
            return bool(self.sock.recv(1, socket.MSG_PEEK))
        except OSError:
            return False

    async def _receive(self) -> bytes | None:
        """The next bytes, b"" at the end of input, None when woken or when a bound has passed."""
        wakeups = self._wakeups
        with trio.CancelScope(deadline=self._read_deadline()) as self._read_scope:
            try:
                await trio.lowlevel.wait_readable(self.sock)
            except trio.ClosedResourceError:
                self._fail()
                return None
            finally:
                scope, self._read_scope = self._read_scope, None
        if scope.cancelled_caught:
            if wakeups == self._wakeups:
                await self._on_read_timeout()
            return None
        try:
            return self.sock.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            self._fail()
            return None

    def _read_deadline(self) -> float:
        options = self.host.options
        if self.protocol.stream is None:
            if self._head_began_at is not None:
                return self._head_began_at + options.header_timeout_secs
            if self._is_fresh:
                return self.idle_since + options.header_timeout_secs
            return self.idle_since + options.keep_alive_timeout_secs
        if self.protocol.receiving_body:
            earned_secs = self.protocol.body_bytes / options.min_body_bytes_per_sec
            return self._request_began_at + options.body_grace_secs + earned_secs
        return math.inf

    async def _on_read_timeout(self) -> None:
        if trio.current_time() < self._read_deadline():
            return  # the state has moved on while we woke
        if self.protocol.receiving_body:
            await self.protocol.refuse(408, "the request body came too slowly")
        elif self._head_began_at is not None:
            await self.protocol.refuse(408, "the request headers came too slowly")
        self._ending = True

    async def _after_end_of_input(self) -> None:
        self._end_of_input = True
        protocol = self.protocol
        if protocol.receiving_body or self._head_began_at is not None:
            # Cut off inside a request: a half-closed client can still read why.
            await protocol.handle(RawData(b""))
        elif protocol.http_stream is not None or protocol.paused:
            await self._answer_if_half_closed()

    async def _answer_if_half_closed(self) -> None:
        """Return when the client is gone, or when a half-closed one has its answers. See peer.py."""
        grace_secs = self.host.options.half_close_grace_secs
        if not peer.CAN_TELL_HALF_CLOSED or not grace_secs:
            return
        undecided_until = self._last_input_at + grace_secs
        bytes_before = self.bytes_sent
        while not self._ending and not peer.is_reset(self.sock):
            if self.protocol.stream is None:
                if not self.protocol.paused:
                    return
                await self.protocol.resume()
                continue
            if self.bytes_sent == bytes_before and trio.current_time() >= undecided_until:
                return
            await self._wait(PEER_POLL_SECS)

    async def _wait(self, secs: float) -> None:
        with trio.move_on_after(secs) as self._read_scope:
            await trio.sleep_forever()
        self._read_scope = None

    async def _linger(self) -> None:
        """Discard the rest of an unwanted request: closing on unread bytes would reset our answer away."""
        left = self.host.options.linger_bytes
        with trio.move_on_after(self.host.options.linger_secs):
            try:
                self.sock.shutdown(socket.SHUT_WR)
                while left > 0 and not self._end_of_input and not self._broken:
                    await trio.lowlevel.wait_readable(self.sock)
                    try:
                        data = self.sock.recv(RECEIVE_BYTES)
                    except BlockingIOError:
                        continue
                    left -= len(data)
                    if not data:
                        return
            except (OSError, trio.ClosedResourceError):
                return

    # -- writing ------------------------------------------------------------------------------

    async def _protocol_send(self, event: Event) -> None:
        if isinstance(event, RawData):
            await self.write(event.data)
        elif isinstance(event, Closed):
            self._ending = True
            self._wake()
        elif isinstance(event, Updated):
            now = trio.current_time()
            self._head_began_at = None
            self._is_fresh = False
            if event.idle:
                self.idle_since = now
                if self.protocol.paused or self._retiring or self._end_of_input:
                    self._wake()
                elif self._read_scope is not None:
                    self._read_scope.deadline = self._read_deadline()
            else:
                self._request_began_at = now

    async def write(self, data: bytes) -> None:
        """Send all of `data`, or mark the connection broken: it never raises for what a client does.

        Most calls end in one system call without giving up the processor; every SENDS_PER_YIELD-th gives it up. What
        the socket does not take at once is sent under a shield, because half a chunk would poison the
        connection; that ends when the client has accepted no byte for client_stall_secs, is gone, or the
        connection is aborted.
        """
        if self._broken:
            await trio.lowlevel.checkpoint()
            return
        if self._unsent or self._send_lock.locked():
            await self._write_rest(data)
            return
        if not self.write_now(data):
            await self.flush()
            return
        if self._broken:
            await trio.lowlevel.checkpoint()
            return
        self._sends_since_yield += 1
        if self._sends_since_yield < SENDS_PER_YIELD:
            await trio.lowlevel.checkpoint_if_cancelled()
        else:
            self._sends_since_yield = 0
            await trio.lowlevel.checkpoint()

    def write_now(self, data: bytes) -> bool:
        """Send `data` on a clear connection without waiting. False: some of it is left, for `flush` or the next write.

        Never raises for what a client does. A broken connection takes everything and sends nothing.
        """
        if self._broken:
            return True
        try:
            sent = self.sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._fail()
            return True
        self.bytes_sent += sent
        if sent == len(data):
            return True
        self._unsent = data[sent:]
        return False

    async def flush(self) -> None:
        """Send what `write_now` has left, as `write` does."""
        if self._unsent:
            await self._write_rest(b"")

    async def _write_rest(self, data: bytes) -> None:
        with trio.CancelScope(shield=True) as scope:
            async with self._send_lock:
                if self._broken:
                    return
                view = memoryview(self._unsent + data)
                self._unsent = b""
                self._send_scope = scope
                self._pending_bytes = len(view)
                try:
                    while view:
                        if not await self._wait_writable():
                            self._fail()
                            return
                        try:
                            sent = self.sock.send(view)
                        except BlockingIOError:
                            continue
                        self.bytes_sent += sent
                        view = view[sent:]
                        self._pending_bytes = len(view)
                except (OSError, trio.ClosedResourceError):
                    self._fail()
                finally:
                    self._pending_bytes = 0
                    self._send_scope = None
        await trio.lowlevel.checkpoint_if_cancelled()

    async def _wait_writable(self) -> bool:
        """Whether the socket takes bytes again; False when its client took none for client_stall_secs."""
        while not self._broken:
            queued = peer.unaccepted_bytes(self.sock)
            with trio.move_on_after(self.host.options.client_stall_secs):
                await trio.lowlevel.wait_writable(self.sock)
                return True
            # A socket reports room only when much of its buffer is free; a slow reader has moved before that.
            if peer.unaccepted_bytes(self.sock) >= queued:
                break
        return False
