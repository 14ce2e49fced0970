from __future__ import annotations

import errno
import socket
import sys

import pytest

from rustedvino.http.listener import open_listener


def test_port_zero_gets_a_port_and_does_not_block():
    with open_listener("127.0.0.1", 0, client_stall_secs=60) as listener:
        assert listener.getsockname()[1] > 0
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_taken_port_is_named():
    with open_listener("127.0.0.1", 0, client_stall_secs=60) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(OSError, match=f"127.0.0.1:{port} is taken") as caught:
            open_listener("127.0.0.1", port, client_stall_secs=60)
    assert caught.value.errno == errno.EADDRINUSE


def test_port_is_free_again_although_a_connection_lingers():
    listener = open_listener("127.0.0.1", 0, client_stall_secs=60)
    address = listener.getsockname()
    client = socket.create_connection(address)
    accepted, _ = listener.accept()
    accepted.close()  # first to close: its end stays in TIME_WAIT
    client.close()
    listener.close()
    open_listener(*address, client_stall_secs=60).close()


@pytest.mark.parametrize(("address", "why"), [("192.0.2.1", "not an address of this machine"), ("no such", "resolved")])
def test_foreign_or_unknown_address_is_named(address, why):
    with pytest.raises(OSError, match=why):
        open_listener(address, 0, client_stall_secs=60)


@pytest.mark.parametrize("bind_addr", ["::1", "::"])
def test_ipv6(bind_addr):
    try:
        listener = open_listener(bind_addr, 0, client_stall_secs=60)
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")
    with listener:
        port = listener.getsockname()[1]
        socket.create_connection(("::1", port)).close()
        if bind_addr == "::":
            socket.create_connection(("127.0.0.1", port)).close()


def test_empty_address_is_every_ipv4_address():
    with open_listener("", 0, client_stall_secs=60) as listener:
        assert listener.family == socket.AF_INET
        assert listener.getsockname()[0] == "0.0.0.0"


@pytest.mark.skipif(sys.platform != "linux", reason="a Linux socket option")
def test_accepted_sockets_inherit_the_stall_bound():
    listener = open_listener("127.0.0.1", 0, client_stall_secs=2.5)
    with listener, socket.create_connection(listener.getsockname()):
        listener.setblocking(True)
        accepted, _ = listener.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 2500
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
