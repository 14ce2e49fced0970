"""Clients that go away: what they used is free at once, and nothing of them is left."""

import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.answers import completion_body, expect_ok
from tests.support.disturb import (
    COMPLETIONS,
    HealthWatch,
    card,
    connect,
    endless,
    eventually,
    idle,
    open_files,
    post_bytes,
    reset,
)
from tests.support.server import F32, ServerProcess

MODEL = "tiny-qwen3"
SLOTS = 8
TOKENS = 3900
FREED_SECS = 5.0
"""A bound for a busy machine; how much was generated in vain says more."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    models = {MODEL: {**F32, "max_concurrent_streams": SLOTS}}
    options: dict[str, Any] = {"num_threads": 1, "spare_workers": 0, "admission_queue_timeout_ms": 60_000}
    options["max_num_batched_tokens"] = 16
    with ServerProcess.serving(tmp_path_factory.mktemp("leaving"), models, **options) as process:
        yield process.wait_ready()


def leave_mid_stream(server: ServerProcess, leave: Callable[[socket.socket], None]) -> None:
    connection = connect(server)
    connection.sendall(post_bytes(COMPLETIONS, endless(MODEL, "x", TOKENS, n=SLOTS)))
    received = b""
    while received.count(b"data: ") < 3 * SLOTS:
        received += connection.recv(65536)
    leave(connection)


def leave_before_the_first_token(server: ServerProcess, leave: Callable[[socket.socket], None]) -> None:
    """A long prompt, in small steps."""
    connection = connect(server)
    connection.sendall(post_bytes(COMPLETIONS, endless(MODEL, [5] * 3000, 1000, n=SLOTS)))
    eventually(server, lambda: card(server, MODEL)["running"] == SLOTS, "it runs")
    leave(connection)


def leave_a_whole_answer(server: ServerProcess, leave: Callable[[socket.socket], None]) -> None:
    connection = connect(server)
    connection.sendall(post_bytes(COMPLETIONS, endless(MODEL, "x", TOKENS, n=SLOTS, stream=False)))
    eventually(server, lambda: card(server, MODEL)["running"] == SLOTS, "it runs")
    leave(connection)


def leave_the_line(server: ServerProcess, leave: Callable[[socket.socket], None]) -> None:
    """Somebody who waits leaves, then those who run."""
    running, waiting = connect(server), connect(server)
    running.sendall(post_bytes(COMPLETIONS, endless(MODEL, "x", TOKENS, n=SLOTS)))
    running.recv(1)
    waiting.sendall(post_bytes(COMPLETIONS, endless(MODEL, "x", TOKENS, n=SLOTS)))
    eventually(server, lambda: card(server, MODEL)["waiting"] == 1, "it waits")
    leave(waiting)
    eventually(server, lambda: card(server, MODEL)["waiting"] == 0, "nobody waits", FREED_SECS)
    assert card(server, MODEL)["running"] == SLOTS
    leave(running)


WAYS = [leave_mid_stream, leave_before_the_first_token, leave_a_whole_answer, leave_the_line]


@pytest.mark.parametrize("leave", [socket.socket.close, reset], ids=["close", "reset"])
@pytest.mark.parametrize("way", WAYS)
def test_a_slot_is_free_when_its_client_has_left(
    server: ServerProcess, way: Callable[..., None], leave: Callable[[socket.socket], None]
) -> None:
    """All slots are taken by one request of eight choices, which would run for tens of seconds."""
    before = card(server, MODEL)["tokens_generated"]
    way(server, leave)
    eventually(server, lambda: idle(server, MODEL), "all slots and blocks free", FREED_SECS)
    assert card(server, MODEL)["tokens_generated"] - before < TOKENS * SLOTS / 4
    expect_ok(server.post(COMPLETIONS, completion_body(MODEL, "y", max_tokens=1)))


def one_that_leaves(server: ServerProcess, number: int) -> None:
    """One of several ways, by number."""
    body = endless(MODEL, f"x {number}", 1000, stream=number % 3 != 0)
    data = post_bytes(COMPLETIONS, body)
    connection = connect(server)
    if number % 5 == 4:
        data = data[: len(data) - 7]  # within its body
    connection.sendall(data)
    if number % 3 == 1 and number % 5 != 4:
        connection.recv(2000)
    elif number % 3 == 2:
        time.sleep(0.001 * (number % 7))  # at various moments, most of them before there is an answer
    if number % 2:
        reset(connection)
    else:
        connection.close()


@pytest.mark.parametrize(("count", "at_once"), [(200, 1), (64, 64)])
def test_nothing_is_left_of_many_who_left(server: ServerProcess, count: int, at_once: int) -> None:
    for number in range(20):
        one_that_leaves(server, number)
    eventually(server, lambda: idle(server, MODEL), "idle")
    expect_ok(server.post(COMPLETIONS, completion_body(MODEL, "y", max_tokens=1)))
    files = open_files(server.pid)
    restarts = card(server, MODEL)["restarts"]
    with HealthWatch(server), ThreadPoolExecutor(at_once) as pool:
        list(pool.map(lambda number: one_that_leaves(server, number), range(count)))
    eventually(server, lambda: idle(server, MODEL), "idle", FREED_SECS)
    eventually(server, lambda: open_files(server.pid) <= files + 1, "descriptors closed", FREED_SECS)
    expect_ok(server.post(COMPLETIONS, completion_body(MODEL, "y", max_tokens=1)))
    now = card(server, MODEL)
    assert now["restarts"] == restarts
    assert now["kv_cache"]["used_percent"] < 50  # cached prefixes at most
    assert "Traceback" not in server.log
