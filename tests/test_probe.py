"""What a probe makes of a server's answers."""

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from rustedvino.probe import WATCHDOG_PATH, Health, HttpProbe

HUNG = {"status": "hung", "oldest_silence_secs": 700.5, "oldest_silence_model": "m"}


class Server(ThreadingHTTPServer):
    health: int = 200
    watchdog: tuple[int, Any] = (404, {"error": {}})
    key: str | None = None
    asked: list[tuple[str, str | None]]


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        authorization = self.headers["Authorization"]
        self.server.asked.append((self.path, authorization))
        status, body = (self.server.health, {}) if self.path == "/health" else self.server.watchdog
        if self.path == WATCHDOG_PATH and self.server.key and authorization != f"Bearer {self.server.key}":
            status, body = 401, {}
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as server:
        server.asked = []
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


async def ask(server: Server, keys_path: Path | None = None, host: str = "127.0.0.1") -> Health:
    return await HttpProbe(host, server.server_port, keys_path, 10.0)()


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "", "localhost"])
async def test_a_server_without_watchdog_is_judged_by_its_health(server: Server, host: str) -> None:
    assert await ask(server, host=host) == Health()


async def test_health_must_be_200(server: Server) -> None:
    server.health = 503
    assert await ask(server) == Health("/health answers 503")
    assert [path for path, _ in server.asked] == ["/health"]


async def test_a_hung_generation_is_seen(server: Server) -> None:
    server.watchdog = (200, HUNG)
    assert await ask(server) == Health("a generation on 'm' has been silent for 700.5 s", hung=True)


@pytest.mark.parametrize("body", [{"status": "ok"}, [], "hung", None, b"{", b"\xff", {"status": ["hung"]}])
async def test_other_answers_of_the_watchdog_are_no_trouble(server: Server, body: object) -> None:
    server.watchdog = (200, body)
    assert await ask(server) == Health()


async def test_the_admin_key_is_read_anew_for_each_probe(server: Server, tmp_path: Path) -> None:
    server.watchdog, server.key = (200, HUNG), "right-key"
    keys = tmp_path / "config.keys.json"
    assert (await ask(server, keys)).trouble is None  # no file: not let in
    keys.write_text('{"api_keys": ["right-key"]}')
    assert (await ask(server, keys)).trouble is None
    keys.write_text('{"admin_api_keys": [7, "bad\\nkey", "right-key"]}')
    assert (await ask(server, keys)).hung
    assert (WATCHDOG_PATH, "Bearer right-key") in server.asked
    assert all(authorization is None for path, authorization in server.asked if path == "/health")


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"\xff\xfe", b'{"admin_api_keys": "x"}', b'{"admin_api_keys": []}']
)
async def test_a_broken_keys_file_means_no_key(server: Server, tmp_path: Path, content: bytes) -> None:
    keys = tmp_path / "keys.json"
    keys.write_bytes(content)
    assert await ask(server, keys) == Health()
    assert server.asked == [("/health", None), (WATCHDOG_PATH, None)]


async def test_nobody_listens() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    trouble = (await HttpProbe("127.0.0.1", port, None, 5.0)()).trouble
    assert trouble is not None
    assert "refused" in trouble


async def test_silence_is_bounded() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        health = await HttpProbe("127.0.0.1", sock.getsockname()[1], None, 0.05)()
    assert health.trouble is not None
    assert not health.hung


async def test_an_answer_that_is_no_http_is_trouble() -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:

        def answer() -> None:
            connection, _ = sock.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"SSH-2.0\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        health = await HttpProbe("127.0.0.1", sock.getsockname()[1], None, 5.0)()
        thread.join()
    assert health.trouble is not None
