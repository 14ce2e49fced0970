from __future__ import annotations

import select
import socket
import struct
import sys

import pytest

from rustedvino.http import peer

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="what Linux can tell")


@pytest.fixture
def pair():
    listener = socket.create_server(("127.0.0.1", 0))
    with listener, socket.create_connection(listener.getsockname()) as client:
        server, _ = listener.accept()
        with server:
            yield server, client


def until_readable(sock):
    assert select.select([sock], [], [], 10)[0]


def until_reset(sock):
    poll = select.poll()
    poll.register(sock, 0)  # a hang-up is always reported
    assert poll.poll(10_000)


def test_open_peer(pair):
    server, _ = pair
    assert not peer.is_reset(server)
    assert not peer.is_gone_or_half_closed(server)


def test_reset_peer(pair):
    server, client = pair
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    until_reset(server)
    assert peer.is_reset(server)
    assert peer.is_gone_or_half_closed(server)


def test_end_of_input_is_seen_behind_unread_bytes(pair):
    server, client = pair
    client.sendall(b"unread")
    client.shutdown(socket.SHUT_WR)
    until_readable(server)
    assert peer.is_gone_or_half_closed(server)


def test_half_closed_peer_takes_a_byte(pair):
    server, client = pair
    client.shutdown(socket.SHUT_WR)
    until_readable(server)
    server.send(b"x")
    until_readable(client)
    assert not peer.is_reset(server)


def test_closed_peer_looks_half_closed_until_a_byte_is_sent(pair):
    server, client = pair
    client.close()
    until_readable(server)
    assert not peer.is_reset(server)
    server.send(b"x")
    until_reset(server)
    assert peer.is_reset(server)


def test_bytes_are_accepted_by_a_reader(pair):
    server, client = pair
    server.setblocking(False)
    full = False
    while not full:
        try:
            server.send(b"x" * 65536)
        except BlockingIOError:
            full = True
    queued = peer.unaccepted_bytes(server)
    assert queued > 0
    while peer.unaccepted_bytes(server) >= queued:
        client.recv(65536)


def test_own_closed_socket_counts_as_gone(pair):
    server, _ = pair
    server.close()
    assert peer.is_reset(server)
    assert peer.is_gone_or_half_closed(server)
