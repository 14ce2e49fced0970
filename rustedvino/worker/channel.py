"""The worker's blocking end of the frame socket."""

import selectors
import socket
from typing import Any, Self

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
        # Not select(): a server with many connections hands down a descriptor above its limit of 1023.
        self._readable = selectors.DefaultSelector()
        self._readable.register(sock, selectors.EVENT_READ)
        self._writable = selectors.DefaultSelector()
        self._writable.register(sock, selectors.EVENT_WRITE)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._readable.close()
        self._writable.close()
        self._socket.close()

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
                self._readable.select()
                continue
            except ConnectionError as error:
                raise ServerGone from error
            if not data:
                raise ServerGone
            messages.extend(self._decoder.feed(data))

    def send(self, *message: Any) -> None:
        """Send one message; blocks until the kernel has taken it all.

        Raises ServerGone, and ProtocolError, with nothing sent, for a message that fits no frame.
        """
        data = memoryview(encode_frame(message))
        while data:
            try:
                data = data[self._socket.send(data) :]
            except BlockingIOError:
                self._writable.select()
            except ConnectionError as error:
                raise ServerGone from error
