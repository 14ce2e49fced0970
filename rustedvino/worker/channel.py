"""The worker's blocking end of the frame socket."""

import select
import socket
from typing import Any

from rustedvino.worker.protocol import TO_WORKER, FrameDecoder, Message, encode_frame

_RECEIVE_BYTES = 256 * 1024


class ServerGone(Exception):
    """The server closed its end, or died."""


class FrameChannel:
    """Sends and receives whole messages over a stream socket. Not thread-safe."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        self._decoder = FrameDecoder(TO_WORKER)

    def receive(self, *, wait: bool) -> list[Message]:
        """Return every message that has arrived; with ``wait``, sleep until there is at least one.

        Raises ServerGone at the end of the stream and ProtocolError on a broken frame.
        """
        messages: list[Message] = []
        while True:
            try:
                data = self._socket.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                if messages or not wait:
                    return messages
                select.select([self._socket], [], [])
                continue
            except ConnectionError as error:
                raise ServerGone from error
            if not data:
                raise ServerGone
            messages.extend(self._decoder.feed(data))

    def send(self, *message: Any) -> None:
        """Send one message; blocks until the kernel has taken it all. Raises ServerGone."""
        data = memoryview(encode_frame(message))
        while data:
            try:
                data = data[self._socket.send(data) :]
            except BlockingIOError:
                select.select([], [self._socket], [])
            except ConnectionError as error:
                raise ServerGone from error
