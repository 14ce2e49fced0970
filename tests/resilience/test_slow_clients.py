"""Clients that read or send slowly, or not at all."""

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.answers import completion_body
from tests.support.disturb import (
    COMPLETIONS,
    HealthWatch,
    Stream,
    card,
    connect,
    endless,
    eventually,
    idle,
    open_files,
    post_bytes,
    pss_mib,
    streams,
    wait_full,
)
from tests.support.server import F32, ServerProcess

MODEL = "tiny-qwen3"
CROWD = 16
CROWD_TOKENS = 3900
GUEST_TOKENS = 200
CLIENT_STALL_SECS = 2


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    models = {MODEL: {**F32, "max_concurrent_streams": CROWD + 1, "kv_cache_gb": 0.1}}
    options: dict[str, Any] = {"num_threads": 1, "spare_workers": 0, "client_stall_secs": CLIENT_STALL_SECS}
    with ServerProcess.serving(tmp_path_factory.mktemp("slow"), models, **options) as process:
        yield process.wait_ready()


def crowd_body(number: int) -> dict[str, Any]:
    """Long events, so that buffers fill soon."""
    return endless(MODEL, f"crowd {number:02}", CROWD_TOKENS, logprobs=0)


def guest_secs(server: ServerProcess) -> float:
    """How long another stream takes, of the same length each time."""
    guest = Stream(server, endless(MODEL, "guest", GUEST_TOKENS))
    assert guest.whole()
    return guest.secs


def never_reading(server: ServerProcess) -> list[socket.socket]:
    """Streams that run and whose clients have not read a byte."""
    connections = []
    for number in range(CROWD):
        connection = connect(server, narrow=True)
        connection.sendall(post_bytes(COMPLETIONS, crowd_body(number)))
        connections.append(connection)
    eventually(server, lambda: card(server, MODEL)["running"] == CROWD, "the crowd runs")
    return connections


def test_clients_that_never_read(server: ServerProcess) -> None:
    """Beside sixteen of them a seventeenth is served as fast as beside sixteen who read; the server holds little for
    them and drops them after a time."""
    readers = streams(server, [crowd_body(number) for number in range(CROWD)])
    beside_readers_secs = guest_secs(server)
    assert not any(reader.ended for reader in readers)
    for reader in readers:
        reader.leave()
    eventually(server, lambda: idle(server, MODEL), "the readers are gone")
    generated = card(server, MODEL)["tokens_generated"]
    files, memory = open_files(server.pid), pss_mib(server.pid)

    with HealthWatch(server):
        crowd = never_reading(server)
        wait_full(server, MODEL, crowd, CROWD, CROWD * 60)
        beside_sleepers_secs = guest_secs(server)
        assert beside_sleepers_secs < 2 * beside_readers_secs
        most = pss_mib(server.pid)
        eventually(server, lambda: idle(server, MODEL), "they are dropped", 60)
    assert card(server, MODEL)["tokens_generated"] - generated < CROWD * CROWD_TOKENS, "all of it was generated"
    assert max(most, pss_mib(server.pid)) < memory + 16
    eventually(server, lambda: open_files(server.pid) <= files + 1, "descriptors closed")
    for connection in crowd:
        text = what_is_left(connection)
        assert text.startswith(b"HTTP/1.1 200")
        assert b"[DONE]" not in text
    assert guest_secs(server) < 2 * beside_readers_secs


def what_is_left(connection: socket.socket) -> bytes:
    """What a client that was dropped finds when it reads at last: what its own system had taken, then a reset."""
    received = b""
    with connection:
        try:
            while data := connection.recv(65536):
                received += data
        except ConnectionResetError:
            return received
    raise AssertionError("a proper end")


def test_a_reader_that_is_slow_is_served_whole(server: ServerProcess) -> None:
    """Its buffer is small and it takes little at a time, but it takes: it is not dropped, and misses nothing."""
    body = endless(MODEL, "slow", 400, logprobs=0)
    expected = Stream(server, body).whole()
    with connect(server, narrow=True) as connection:
        connection.sendall(post_bytes(COMPLETIONS, body, "connection: close"))
        received = b""
        while data := connection.recv(700):
            received += data
    head, _, rest = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200")
    text = unchunked(rest).decode()
    events = [event.removeprefix("data: ") for event in text.split("\n\n") if event]
    assert events.pop() == "[DONE]"
    assert "".join(json.loads(event)["choices"][0]["text"] for event in events) == expected


def unchunked(data: bytes) -> bytes:
    """A body out of its chunks."""
    whole = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        length = int(size, 16)
        whole += data[:length]
        data = data[length + 2 :]
        if not length:
            break
    return whole


def test_slow_senders(server: ServerProcess) -> None:
    """Requests that come byte by byte are answered, and half-closed clients, if it does not take long."""
    request = post_bytes(COMPLETIONS, completion_body(MODEL, "y", max_tokens=2), "connection: close")
    with HealthWatch(server):
        dripping = [connect(server) for _ in range(4)]
        for connection in dripping:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for position in range(len(request)):
            for connection in dripping:
                connection.sendall(request[position : position + 1])
        for connection in dripping:
            assert to_end(connection).startswith(b"HTTP/1.1 200")
        half_closed = connect(server)
        half_closed.sendall(b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\n\r\n")
        half_closed.shutdown(socket.SHUT_WR)
        assert b'"tiny-qwen3"' in to_end(half_closed)
        cut = connect(server)
        cut.sendall(request[:-5])
        cut.shutdown(socket.SHUT_WR)
        assert to_end(cut).startswith(b"HTTP/1.1 400")
        leaving = connect(server)
        leaving.sendall(post_bytes(COMPLETIONS, endless(MODEL, "x", stream=False)))
        eventually(server, lambda: card(server, MODEL)["running"] == 1, "it runs")
        leaving.shutdown(socket.SHUT_WR)
        eventually(server, lambda: idle(server, MODEL), "a half-closed client of a long answer counts as gone", 5)
        leaving.close()


def to_end(connection: socket.socket) -> bytes:
    received = b""
    with connection:
        while data := connection.recv(65536):
            received += data
    return received
