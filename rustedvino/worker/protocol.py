"""Frames between the server and a worker process.

A frame is a 4-byte big-endian payload length followed by one msgpack array ``[kind, *fields]``.
Both sides check the length against :data:`MAX_FRAME_BYTES` before they allocate, and treat an unknown
kind or a truncated frame as a protocol error: the worker is then replaced, never resynchronised.

Kinds sent by the server (fields in order):

``load``      spec: dict                      load one engine (``spec["kind"]`` names it)
``submit``    sequence: int, prompt: bytes (int32 little-endian token ids; a vision model's is text, in the options,
              with its images as raw RGB), options: dict
``cancel``    sequence: int
``ping``      number: int
``call``      call: int, method: str, arguments: dict
``shutdown``  nothing

Kinds sent by a worker:

``hello``      facts: dict (``protocol``, ``pid``, ``role``, versions of the runtime)
``loaded``     facts: dict
``load_error`` fault kind: str, message: str
``step``       deltas: list of ``[sequence, token ids, finish or None, log-probabilities or None]``, stats: list
``rejected``   sequence: int, fault kind: str, message: str
``pong``       number: int
``reply``      call: int, result
``call_error`` call: int, fault kind: str, message: str
``fault``      fault kind: str, message: str (the worker ends after it)
"""

import struct
from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgpack

PROTOCOL_VERSION: Final = 1
MAX_FRAME_BYTES: Final = 64 * 1024 * 1024

_LENGTH: Final = struct.Struct(">I")

Message = list[Any]

TO_WORKER: Final = frozenset({"load", "submit", "cancel", "ping", "call", "shutdown"})
FROM_WORKER: Final = frozenset(
    {"hello", "loaded", "load_error", "step", "rejected", "pong", "reply", "call_error", "fault"}
)


class ProtocolError(Exception):
    """The peer broke the framing or sent something no version of the protocol knows."""


class TruncatedFrame(ProtocolError):
    """The peer's stream ended inside a frame."""


class FrameTooLarge(ProtocolError):
    """A frame longer than MAX_FRAME_BYTES was announced or was about to be sent."""


def encode_frame(message: Message | tuple[Any, ...]) -> bytes:
    """Return one frame as bytes. Raises FrameTooLarge, and ProtocolError for what msgpack cannot hold.

    Strings may hold lone surrogates: that is how Python spells a path that is not valid UTF-8.
    """
    try:
        payload: bytes = msgpack.packb(message, use_bin_type=True, unicode_errors="surrogatepass")
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ProtocolError(f"{message[0]} message cannot be encoded: {error}") from error
    if len(payload) > MAX_FRAME_BYTES:
        raise FrameTooLarge(f"{message[0]} frame of {len(payload)} bytes; at most {MAX_FRAME_BYTES} are sent")
    return _LENGTH.pack(len(payload)) + payload


class FrameDecoder:
    """Incremental decoder: bytes in, whole messages out. Does no I/O.

    ``kinds`` are the message kinds this side accepts.
    """

    def __init__(self, kinds: frozenset[str]) -> None:
        self._kinds = kinds
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterable[Message]:
        """Every message completed by ``data``. Raises ProtocolError, now or later; the decoder is then useless."""
        if not self._buffer and len(data) >= 4 and len(data) - 4 == _LENGTH.unpack_from(data)[0] <= MAX_FRAME_BYTES:
            return (self._decode(data[4:]),)  # one whole frame: every step of a server that keeps up
        return self._feed(data)

    def _feed(self, data: bytes) -> Iterator[Message]:
        self._buffer += data
        start = 0
        try:
            while len(self._buffer) - start >= 4:
                (length,) = _LENGTH.unpack_from(self._buffer, start)
                if length > MAX_FRAME_BYTES:
                    raise FrameTooLarge(f"frame of {length} bytes announced; at most {MAX_FRAME_BYTES} are read")
                if len(self._buffer) - start - 4 < length:
                    break
                payload = bytes(memoryview(self._buffer)[start + 4 : start + 4 + length])
                start += 4 + length
                yield self._decode(payload)
        finally:
            if start:
                del self._buffer[:start]

    def end(self) -> None:
        """Tell the decoder that the stream ended. Raises TruncatedFrame when it ended inside a frame."""
        if self._buffer:
            raise TruncatedFrame(f"stream ended {len(self._buffer)} bytes into a frame")

    def _decode(self, payload: bytes) -> Message:
        try:
            message = msgpack.unpackb(payload, raw=False, strict_map_key=False, unicode_errors="surrogatepass")
        except Exception as error:  # msgpack raises ValueErrors, its own errors and RecursionError
            raise ProtocolError(f"payload of {len(payload)} bytes is not msgpack: {error!r}") from error
        if not isinstance(message, list) or not message or not isinstance(message[0], str):
            raise ProtocolError(f"payload of {len(payload)} bytes is not a message")
        if message[0] not in self._kinds:
            raise ProtocolError(f"unknown message kind {message[0][:40]!r}")
        return message
