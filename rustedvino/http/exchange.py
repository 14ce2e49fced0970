"""The short way from a streaming reply to its socket, offered to the application as an ASGI extension."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio
from attrs import define
from hypercorn.protocol.http_stream import HTTPStream

if TYPE_CHECKING:
    from collections.abc import Callable

    from hypercorn.typing import ASGIReceiveEvent

    from rustedvino.http.connections import Connection

EXCHANGE = "rustedvino.exchange"
"""Key in scope["extensions"]."""


@define(eq=False)
class Exchange:
    """One request and its answer on a connection."""

    _connection: Connection
    _stream: HTTPStream
    _receive_nowait: Callable[[], ASGIReceiveEvent]

    def received(self) -> ASGIReceiveEvent | None:
        """The next of what has come from the client, None when all has been taken."""
        try:
            return self._receive_nowait()
        except trio.WouldBlock:
            return None

    @property
    def last_send_bound_secs(self) -> float:
        """Longest time the connection's own bound lets a send wait without progress."""
        return self._connection.host.options.client_stall_secs

    @property
    def send_is_blocked(self) -> bool:
        """Whether the client has left bytes unread for so long that a send waits for it."""
        return self._connection.send_is_blocked

    @property
    def is_clear(self) -> bool:
        """Whether the client is there and has left nothing unread that a send would wait for."""
        return not self._stream.closed and self._connection.is_clear

    def send_chunk_now(self, data: bytes) -> bool:
        """Send one piece, not empty, without waiting; only when `is_clear`. False: it leaves with `flush`, or before
        whatever is sent next."""
        connection = self._connection
        framed = connection.protocol.frame_chunk(data)
        return not framed or connection.write_now(framed)

    async def flush(self) -> None:
        """Wait until the kernel has what `send_chunk_now` could not send."""
        await self._connection.flush()

    async def send_chunk(self, data: bytes) -> None:
        """Send one piece of a streamed body whose start has been sent.

        `data` leaves whole before the next piece, in one frame. Returns when the kernel has it. After a
        disconnect it does nothing but give way to the cancellation that follows.
        """
        protocol = self._connection.protocol
        if self._stream.closed or protocol.finished:
            await trio.lowlevel.checkpoint()
        elif data:
            await self._connection.write(protocol.frame_chunk(data))
