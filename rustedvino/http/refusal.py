"""The short answer to a connection for which there is no room."""

from __future__ import annotations

import socket

import trio

from rustedvino.http.envelope import envelope
from rustedvino.http.options import KIB, ServeOptions

RECEIVE_BYTES = 64 * KIB
REFUSAL_SECS = 1.0
MAX_READS = 16


async def refuse_connection(sock: socket.socket, options: ServeOptions, message: str) -> None:
    """Tell a client that there is no room, within REFUSAL_SECS, without looking at its request."""
    body = envelope(503, message)
    head = [
        b"HTTP/1.1 503 Service Unavailable",
        b"content-type: application/json",
        b"content-length: %d" % len(body),
        b"retry-after: 1",
        b"connection: close",
        *(name + b": " + value for name, value in options.answer_headers()),
    ]
    try:
        with trio.move_on_after(min(REFUSAL_SECS, options.linger_secs)):
            sock.send(b"\r\n".join(head) + b"\r\n\r\n" + body)
            sock.shutdown(socket.SHUT_WR)
            for _ in range(MAX_READS):
                await trio.lowlevel.wait_readable(sock)
                if not sock.recv(RECEIVE_BYTES):
                    return
    except (OSError, trio.ClosedResourceError):
        return
    finally:
        if sock.fileno() >= 0:
            trio.lowlevel.notify_closing(sock)
            sock.close()
