"""The worker's end of the socket: whole messages, ends and broken frames."""

import fcntl
import resource
import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from rustedvino.worker.channel import FrameChannel, ServerGone
from rustedvino.worker.protocol import FROM_WORKER, FrameDecoder, FrameTooLarge, ProtocolError, encode_frame

Pair = tuple[FrameChannel, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        channel = FrameChannel(theirs)
        with channel:
            yield channel, ours


def test_receives_what_has_come_in_order(pair: Pair) -> None:
    channel, server = pair
    assert channel.receive(wait=False) == []
    server.sendall(encode_frame(["ping", 1]) + encode_frame(["ping", 2]) + encode_frame(["ping", 3])[:5])
    assert channel.receive(wait=True) == [["ping", 1], ["ping", 2]]
    assert channel.receive(wait=False) == []
    server.sendall(encode_frame(["ping", 3])[5:])
    assert channel.receive(wait=True) == [["ping", 3]]


def test_waiting_ends_with_the_first_whole_message(pair: Pair) -> None:
    channel, server = pair
    frame = encode_frame(["submit", 1, b"abcd", {}])

    def drip() -> None:
        for byte in frame:
            server.sendall(bytes([byte]))

    sender = threading.Thread(target=drip)
    sender.start()
    assert channel.receive(wait=True) == [["submit", 1, b"abcd", {}]]
    sender.join()


def test_large_messages_leave_whole_however_slowly_they_are_read(pair: Pair) -> None:
    channel, server = pair
    payload = bytes(range(256)) * 20_000
    received = []

    def read() -> None:
        decoder = FrameDecoder(FROM_WORKER)
        while not received:
            received.extend(decoder.feed(server.recv(50_000)))

    reader = threading.Thread(target=read)
    reader.start()
    channel.send("reply", 1, payload)
    reader.join()
    assert received == [["reply", 1, payload]]


@pytest.mark.parametrize("before", [b"", b"\x00", encode_frame(["ping", 1])[:-1]])
def test_the_end_of_the_stream_is_the_end_of_the_server(pair: Pair, before: bytes) -> None:
    channel, server = pair
    server.sendall(before)
    server.close()
    with pytest.raises(ServerGone):
        channel.receive(wait=True)


def test_sending_to_a_server_that_went_away(pair: Pair) -> None:
    channel, server = pair
    server.close()
    with pytest.raises(ServerGone):
        channel.send("pong", 1)


@pytest.mark.parametrize("data", [struct.pack(">I", 2**31), b"\x00\x00\x00\x01\xc1", encode_frame(["step", [], []])])
def test_broken_frames(pair: Pair, data: bytes) -> None:
    channel, server = pair
    server.sendall(data)
    with pytest.raises(ProtocolError):
        channel.receive(wait=True)


def test_nothing_is_sent_of_a_message_that_fits_no_frame(pair: Pair) -> None:
    channel, server = pair
    with pytest.raises(FrameTooLarge):
        channel.send("reply", 1, bytes(64 * 1024 * 1024))
    channel.send("pong", 7)
    assert list(FrameDecoder(FROM_WORKER).feed(server.recv(1000))) == [["pong", 7]]


def test_a_descriptor_above_the_limit_of_select() -> None:
    """A server with thousands of connections hands its worker such a number."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4096)), hard))
    try:
        server, theirs = socket.socketpair()
        high = socket.socket(fileno=fcntl.fcntl(theirs.fileno(), fcntl.F_DUPFD_CLOEXEC, 2048))
        theirs.close()
        with server, high, FrameChannel(high) as channel:
            timer = threading.Timer(0.05, server.sendall, [encode_frame(["ping", 1])])
            timer.start()
            assert channel.receive(wait=True) == [["ping", 1]]
            timer.join()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
