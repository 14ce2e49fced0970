"""Each bound of the HTTP layer on the real application: what breaks it is told so, and the server goes on.

Bodies over the cap and deep JSON are in test_errors.py.
"""

import json
import re
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from rustedvino.config.keys import ApiKey, KeyRing, KeySet
from rustedvino.config.types import ServerSettings
from rustedvino.http.app import create_app, plain_headers
from rustedvino.http.context import ServerContext
from rustedvino.http.options import ServeOptions
from rustedvino.hub.hub import Hub
from tests.http_layer.conftest import Answer, Running, running
from tests.support.answers import expect_ok
from tests.support.server import ServerProcess

MIB = 1024 * 1024
JSON = {"content-type": "application/json"}
KEY = "user-key-5f0a9c41d7e2aa"
ADMIN = "admin-key-0d3c91f6be74cc"


# With short bounds, in this process.


@asynccontextmanager
async def serving(keys: KeySet | None = None, **options: Any) -> AsyncIterator[Running]:
    settings = ServerSettings(models_dir=Path("/nonexistent"), device="CPU", total_vram_gb=0, spare_workers=0)

    def app(_: object) -> Any:
        return create_app(ServerContext(settings, Hub(settings), "unknown", keys=KeyRing(None, keys)))

    bounds = ServeOptions(answer_headers=lambda: list(plain_headers()), **options)
    async with running(bounds, app) as layer:
        yield layer


def refused(answer: Answer, status: int, code: str) -> str:
    assert answer.status == status
    assert answer.error["code"] == code
    assert answer.headers["x-server"] == "rustedvino"
    assert answer.headers["x-request-id"]
    return str(answer.error["message"])


async def test_a_dripped_head() -> None:
    """Each byte comes soon after the one before it, and yet the head must end in time."""
    async with serving(header_timeout_secs=0.3) as layer:
        silent, dripping = await layer.connect(), await layer.connect()
        await silent.send("GET /health HTTP/1.1\r\nhost: localhost\r\nx: ")
        async with trio.open_nursery() as nursery:

            async def drip() -> None:
                await dripping.send("GET /health HTTP/1.1\r\nhost: localhost\r\nx: ")
                while True:
                    await trio.sleep(0.01)
                    try:
                        await dripping.send("y")
                    except trio.BrokenResourceError:
                        return

            nursery.start_soon(drip)
            for client in (silent, dripping):
                refused(await client.answer(), 408, "request_timeout")
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("framing", ["content-length: 1000", "transfer-encoding: chunked"])
async def test_a_body_that_does_not_come(framing: str) -> None:
    async with serving(body_grace_secs=0.3, linger_secs=0.3) as layer:
        client = await layer.connect()
        await client.send(
            f"POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{framing}\r\n\r\n"
        )
        refused(await client.answer_to_end(), 408, "request_timeout")
        await layer.until_empty()


async def test_connections_of_one_address_and_of_all() -> None:
    for bounds in ({"max_connections_per_peer": 4}, {"max_connections": 4}):
        async with serving(**bounds) as layer:
            clients = [await layer.connect() for _ in range(4)]
            for client in clients:  # busy: their heads have begun
                await client.send("GET /health HTTP/1.1\r\nhost: localhost\r\n")
            await trio.testing.wait_all_tasks_blocked(0.05)
            extra = await layer.connect()
            answer = await extra.answer_to_end()
            assert "4" in refused(answer, 503, "server_busy")
            assert answer.headers["retry-after"] == "1"
            for client in clients:
                await client.send("connection: close\r\n\r\n")
                assert (await client.answer_to_end()).status == 200
            await layer.until_empty()
            again = await layer.connect()
            await again.send("GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert (await again.answer()).status == 200


HEAD = "GET /health HTTP/1.1\r\nhost: localhost\r\n"


@pytest.mark.parametrize(
    ("rest", "status"),
    [
        ("x: y\r\n" * 255, 200),
        ("x: y\r\n" * 256, 431),
        ("x:\r\n" * 15_000, 431),
        ("x: " + "y" * 60_000 + "\r\n", 200),
        ("x: " + "y" * 70_000 + "\r\n", 431),
        ("x: " + "y" * 200_000 + "\r\n", 431),
    ],
    ids=["255 headers", "256 headers", "15000 headers", "60 kB", "70 kB", "200 kB"],
)
@pytest.mark.parametrize("pieces", ["whole", "in pieces"])
async def test_headers(rest: str, status: int, pieces: str) -> None:
    async with serving() as layer:
        await answered(layer, HEAD + rest + "\r\n", status, pieces)


@pytest.mark.parametrize(("length", "status"), [(30_000, 404), (65_000, 404), (66_000, 431), (300_000, 431)])
@pytest.mark.parametrize("pieces", ["whole", "in pieces"])
async def test_the_length_of_a_url(length: int, status: int, pieces: str) -> None:
    async with serving() as layer:
        await answered(layer, f"GET /{'a' * length} HTTP/1.1\r\nhost: localhost\r\n\r\n", status, pieces)
        await answered(layer, f"GET /nope?{'a' * length} HTTP/1.1\r\nhost: localhost\r\n\r\n", status, pieces)


async def answered(layer: Running, request: str, status: int, pieces: str) -> None:
    client = await layer.connect()
    size = len(request) if pieces == "whole" else 7000
    try:
        for start in range(0, len(request), size):
            await client.send(request[start : start + size])
    except trio.BrokenResourceError:
        assert status == 431
    answer = await client.answer()
    assert answer.status == status
    if status == 431:
        refused(answer, 431, "headers_too_large")
    await client.close()


async def test_many_pipelined_requests_are_answered_in_order() -> None:
    keys = KeySet((ApiKey(KEY), ApiKey(ADMIN, admin=True)))
    async with serving(keys) as layer:
        kinds = [
            ("GET /health HTTP/1.1\r\n", "", 200),
            ("GET /v1/models HTTP/1.1\r\n", "", 401),
            (f"GET /v1/models HTTP/1.1\r\nx-api-key: {KEY}\r\n", "", 200),
            (f"GET /metrics HTTP/1.1\r\nx-api-key: {KEY}\r\n", "", 403),
            ("POST /tokenize HTTP/1.1\r\ncontent-length: 5\r\n", "{...}", 401),
            (f"POST /tokenize HTTP/1.1\r\nx-api-key: {KEY}\r\ncontent-length: 5\r\n", "{...}", 415),
        ]
        client = await layer.connect()
        sent = [kinds[number % len(kinds)] for number in range(300)]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                client.send,
                "".join(f"{head}host: x\r\nx-request-id: {i}\r\n\r\n{body}" for i, (head, body, _) in enumerate(sent)),
            )
            for number, (_, _, status) in enumerate(sent):
                answer = await client.answer()
                assert (answer.status, answer.headers["x-request-id"]) == (status, str(number))


class ReaderSteps(trio.abc.Instrument):
    """Counts how often tasks that read connections gave up the processor."""

    def __init__(self) -> None:
        self.count = 0

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.count += task.name.endswith("._run_connection")


async def test_a_body_in_chunks_of_a_byte_does_not_hold_up_others() -> None:
    """Each chunk costs 10 µs, and one read may bring 20,000 of them."""
    async with serving() as layer:
        client = await layer.connect()
        body = b'{"prompt": "' + b"h" * 60_000 + b'"}'
        head = b"POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        wire = head + b"transfer-encoding: chunked\r\n\r\n" + b"".join(b"1\r\n%c\r\n" % byte for byte in body)
        steps = ReaderSteps()
        trio.lowlevel.add_instrument(steps)
        try:
            await client.send(wire + b"0\r\n\r\n")
            assert (await client.answer()).status == 400  # there is no model: it was read
        finally:
            trio.lowlevel.remove_instrument(steps)
        assert steps.count > 200


async def test_uploads_together_have_a_bound() -> None:
    async with serving(max_buffered_body_bytes=3 * 100_000) as layer:
        body = body_of(100_000).decode()
        head = (
            "POST /tokenize HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
            "content-length: 100000\r\n\r\n"
        )
        clients = [await layer.connect() for _ in range(3)]
        for client in clients:
            await client.send(head + body[:-1])
        with trio.fail_after(20):
            while layer.server.statistics().buffered_bytes < 3 * 99_999:  # noqa: ASYNC110
                await trio.sleep(0.01)
        one_more = await layer.connect()
        await one_more.send(head + body[:-1])
        assert "bodies" in refused(await one_more.answer(), 503, "server_busy")
        for client in clients:
            await client.send(body[-1:])
            assert (await client.answer()).status == 400  # there is no model: it was read


# Memory of a real server.


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("limits")
    (folder / "config.keys.json").write_text(json.dumps({"api_keys": [KEY], "admin_api_keys": [ADMIN]}))
    models = {"rv-demo": {"load": "on_demand"}}
    with ServerProcess.serving(folder, models, spare_workers=0) as process:
        process.client.headers["x-api-key"] = KEY
        upload(process)  # what is allocated once is
        yield process


def body_of(size: int) -> bytes:
    start, end = b'{"prompt": "hello", "unknown": "', b'"}'
    return start + b"a" * (size - len(start) - len(end)) + end


def upload(server: ServerProcess, size: int = MIB) -> None:
    expect_ok(server.client.post("/tokenize", content=body_of(size), headers=JSON))


def held_bytes(server: ServerProcess) -> int:
    """Memory of the server process now, its share of shared pages included."""
    text = Path(f"/proc/{server.pid}/smaps_rollup").read_text()
    found = re.search(r"^Pss:\s+(\d+) kB", text, re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def peak_bytes(server: ServerProcess, work: Callable[[], object]) -> int:
    """How much more memory than before the server process held at most during ``work``, as the kernel counts it."""
    Path(f"/proc/{server.pid}/clear_refs").write_text("5")
    before = most_bytes(server)
    work()
    return most_bytes(server) - before


def most_bytes(server: ServerProcess) -> int:
    found = re.search(r"^VmHWM:\s+(\d+) kB", Path(f"/proc/{server.pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


SIZE = 49 * MIB
UPLOAD_HEAD = (
    f"POST /tokenize HTTP/1.1\r\nhost: x\r\nx-api-key: {KEY}\r\ncontent-type: application/json\r\n"
    f"content-length: {SIZE}\r\n\r\n"
)


def test_a_body_that_is_being_received_is_held_once(server: ServerProcess) -> None:
    upload(server)
    before = held_bytes(server)
    body = body_of(SIZE)
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(UPLOAD_HEAD.encode() + body[:-1])
        # All but what the kernel's buffers hold has arrived when the server has taken nearly all of it.
        server.wait_for(lambda: held_bytes(server) - before > 0.9 * SIZE, "the body has arrived", 60)
        assert held_bytes(server) - before < 1.3 * SIZE
        connection.sendall(body[-1:])
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")


def test_an_upload_is_never_held_with_its_bytes_its_text_and_its_value(server: ServerProcess) -> None:
    """A string of JSON is there twice while it is parsed: in the text and as its value. Not a third time as bytes."""
    upload(server)
    before = held_bytes(server)
    assert peak_bytes(server, partial(upload, server, SIZE)) < 2.4 * SIZE
    upload(server)
    server.wait_for(lambda: held_bytes(server) - before < 0.2 * SIZE, "the memory is given back", 30)


def test_an_upload_without_a_key_is_not_held_at_all(server: ServerProcess) -> None:
    upload(server)

    def refused_upload() -> None:
        reply = server.client.post("/tokenize", content=body_of(SIZE), headers={**JSON, "x-api-key": "wrong"})
        assert reply.status_code == 401

    assert peak_bytes(server, refused_upload) < 0.2 * SIZE
