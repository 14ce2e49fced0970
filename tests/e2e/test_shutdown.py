"""The end of a server: running answers are finished or told why not, and nothing is left."""

import json
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.answers import check_chunks, completion_body, expect_error, expect_ok
from tests.support.server import F32, ServerProcess, sse_chunks, sse_data

COMPLETIONS = "/v1/completions"
OPTIONS: dict[str, Any] = {"spare_workers": 0, "num_threads": 1, "admission_queue_timeout_ms": 60_000}


def stream_body(tokens: int = 4000) -> dict[str, Any]:
    return completion_body("tiny-qwen3", "x", max_tokens=tokens, ignore_eos=True, temperature=0, stream=True)


def serving(folder: Path, **options: Any) -> ServerProcess:
    models = {"tiny-qwen3": {**F32, "max_concurrent_streams": 2}}
    return ServerProcess.serving(folder, models, **{**OPTIONS, **options})


class Reader:
    """A stream that a thread reads to its end. It has begun when this has been made."""

    def __init__(self, pool: ThreadPoolExecutor, server: ServerProcess, body: dict[str, Any]) -> None:
        self._client = httpx.Client(base_url=server.url, timeout=60, trust_env=False)
        request = self._client.build_request("POST", COMPLETIONS, json=body)
        self.reply = self._client.send(request, stream=True)
        assert self.reply.status_code == 200
        pieces = self.reply.iter_text()
        first = next(pieces)
        self.text: Future[str] = pool.submit(lambda: first + "".join(pieces))

    def close(self) -> None:
        self.reply.close()
        self._client.close()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as made:
        yield made


def test_running_streams_are_finished(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    with serving(tmp_path, shutdown_drain_secs=60) as server:
        server.wait_ready()
        expected = expect_ok(server.post(COMPLETIONS, {**stream_body(1000), "stream": False}))["choices"][0]["text"]
        readers = [Reader(pool, server, stream_body(1000)) for _ in range(2)]
        server.signal(signal.SIGTERM)
        server.wait_log("shutting down")
        wait_refused(server.port)
        for reader in readers:
            chunks = check_chunks(sse_chunks(reader.text.result(60)), 1, wants_usage=False)
            assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == expected
            reader.close()
        assert server.wait_exit() == 0, server.log
        server.assert_none_left()


def wait_refused(port: int) -> None:
    """Connect until that is refused."""
    deadline = time.monotonic() + 5
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
        except ConnectionRefusedError:
            return
        except ConnectionResetError:
            continue  # the listener was closed while we were in its backlog
        assert time.monotonic() < deadline, "new connections are still accepted"


def test_what_does_not_end_in_time_is_told(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    with serving(tmp_path, shutdown_drain_secs=0.2) as server:
        server.wait_ready()
        reader = Reader(pool, server, stream_body())
        body = {**stream_body(), "stream": False}
        others = [pool.submit(httpx.post, server.url + COMPLETIONS, json=body, timeout=60) for _ in range(2)]
        # One of them runs and one waits as soon as somebody else cannot be served at once.
        while True:
            try:
                httpx.post(server.url + COMPLETIONS, json={**stream_body(1), "stream": False}, timeout=0.5)
            except httpx.ReadTimeout:
                break
        server.signal(signal.SIGTERM)
        *chunks, last = sse_data(reader.text.result(30))
        assert chunks
        error = json.loads(last)["error"]
        assert error["code"] == "model_unloading"
        assert set(error) == {"message", "type", "param", "code"}
        for pending in others:
            expect_error(pending.result(30), 503, "model_unloading")
        reader.close()
        server.stop()


def test_a_second_signal_ends_at_once(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    with serving(tmp_path, shutdown_drain_secs=60) as server:
        server.wait_ready()
        reader = Reader(pool, server, stream_body())
        server.signal(signal.SIGTERM)
        server.wait_log("shutting down")
        deadline = time.monotonic() + 20
        while server.running and time.monotonic() < deadline:
            server.signal(signal.SIGTERM)  # however many, up to the very end of the process
            time.sleep(0.001)
        assert server.wait_exit(0) == 0, server.log
        server.assert_none_left()
        assert isinstance(reader.text.exception(10), httpx.TransportError)
        reader.close()


def test_an_idle_server_ends_soon(tmp_path: Path) -> None:
    """Open connections without a request do not keep it. An interrupt is as good as SIGTERM."""
    with serving(tmp_path, shutdown_drain_secs=60, spare_workers=1) as server:
        server.wait_ready()
        with socket.create_connection(("127.0.0.1", server.port)), httpx.Client(base_url=server.url) as client:
            client.get("/health")
            server.signal(signal.SIGINT)
            assert server.wait_exit(15) == 0, server.log
            server.assert_none_left()


def test_a_server_that_still_loads(tmp_path: Path) -> None:
    server = serving(tmp_path)
    try:
        server.start()
        server.stop(bound_secs=15)
    finally:
        server.kill()


def test_workers_do_not_outlive_a_killed_server(tmp_path: Path) -> None:
    server = serving(tmp_path)
    try:
        server.start().wait_ready()
        assert server.workers()
        server.signal(signal.SIGKILL)
        assert server.wait_exit() == -signal.SIGKILL
        server.assert_none_left(10)
    finally:
        server.kill()
