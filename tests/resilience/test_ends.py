"""The end of a server at bad moments: exit code 0, in time, and no process left."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest

from tests.support.disturb import (
    COMPLETIONS,
    Post,
    card,
    connect,
    endless,
    eventually,
    kill_worker,
    misbehaving,
    post_bytes,
    streams,
    wait_full,
    workers_of_role,
)
from tests.support.server import F32, ServerProcess

MODEL = "tiny-qwen3"
DRAIN_SECS = 0.5
SPARE_SECS = 5.0
"""How long after the drain's bound a server may still take."""
QUEUE = 100
OPTIONS: dict[str, Any] = {
    "num_threads": 1,
    "spare_workers": 1,
    "shutdown_drain_secs": DRAIN_SECS,
    "admission_queue_timeout_ms": 60_000,
    "supervisor": {"backoff_base_secs": 60, "backoff_max_secs": 60},
}
Check = Callable[[], None]


class Case:
    """A server at a bad moment. ``reach`` brings it there and returns a check of what its clients are told."""

    options: ClassVar[dict[str, Any]] = {}
    model: ClassVar[dict[str, Any]] = {}
    environment: ClassVar[dict[str, str]] = {}
    ready = True

    def __init__(self, stack: ExitStack) -> None:
        self.stack = stack

    def reach(self, server: ServerProcess) -> Check:
        raise AssertionError


class Loading(Case):
    """A model is loading, and requests wait for that."""

    environment: ClassVar = misbehaving("slow_load=30")
    ready = False

    def reach(self, server: ServerProcess) -> Check:
        eventually(server, lambda: card(server, MODEL)["worker_pid"] is not None, "a worker that loads")
        posts = [Post(server, endless(MODEL, "x", stream=False)) for _ in range(2)]
        eventually(server, lambda: card(server, MODEL)["waiting"] == 2, "two wait")
        return lambda: [post.error(503, "model_unloading") for post in posts] and None


class LoadingForAnAdministrator(Case):
    """The same, asked for by an administrator who waits."""

    environment: ClassVar = misbehaving("slow_load=3600")
    model: ClassVar = {"load": "on_demand"}
    ready = False

    def reach(self, server: ServerProcess) -> Check:
        post = Post(server, {}, f"/v1/admin/models/{MODEL}/load")
        eventually(server, lambda: card(server, MODEL)["worker_pid"] is not None, "a worker that loads")
        return lambda: post.error(503, "model_unloading") and None


class Draining(Case):
    """A model is being unloaded, with a bound of its own that is longer than the server's."""

    options: ClassVar = {"drain_timeout_secs": 60}
    model: ClassVar = {"max_concurrent_streams": 4}

    def reach(self, server: ServerProcess) -> Check:
        (stream,) = streams(server, [endless(MODEL, "x", n=4)])
        evicting = threading.Thread(target=self._evict, args=(server.url,), daemon=True)
        evicting.start()
        eventually(server, lambda: card(server, MODEL)["state"] == "draining", "the drain")
        return lambda: stream.lost("model_unloading") and None

    @staticmethod
    def _evict(url: str) -> None:
        try:
            httpx.delete(f"{url}/v1/admin/models/{MODEL}", timeout=60, trust_env=False)
        except httpx.TransportError:
            return  # the server has ended


class SpareStarting(Case):
    """Spares are on their way, one after the other."""

    options: ClassVar = {"spare_workers": 4}
    model: ClassVar = {"load": "on_demand"}

    def reach(self, server: ServerProcess) -> Check:
        eventually(server, lambda: len(workers_of_role(server, "model")) >= 2, "a spare, and another that starts")
        return lambda: None


class Backoff(Case):
    """A model waits for its next worker."""

    def reach(self, server: ServerProcess) -> Check:
        first = kill_worker(server, MODEL, signal.SIGKILL)

        def back() -> bool:
            now = card(server, MODEL)
            return now["state"] == "ready" and now["worker_pid"] != first

        eventually(server, back, "the first restart, which comes at once", 60)
        kill_worker(server, MODEL, signal.SIGKILL)
        server.wait_states({MODEL: "restarting"})
        post = Post(server, endless(MODEL, "x", stream=False))
        eventually(server, lambda: card(server, MODEL)["waiting"] == 1, "one waits")
        return lambda: post.error(503, "model_unloading") and None


class Queue(Case):
    """A hundred wait."""

    def reach(self, server: ServerProcess) -> Check:
        running = streams(server, [endless(MODEL, f"run {number}") for number in range(2)])
        posts = [Post(server, endless(MODEL, "x", stream=False)) for _ in range(QUEUE)]
        eventually(server, lambda: card(server, MODEL)["waiting"] == QUEUE, "a hundred wait", 40)

        def check() -> None:
            for stream in running:
                stream.lost("model_unloading")
            for post in posts:
                post.error(503, "model_unloading")

        return check


class NeverReading(Case):
    """A client does not read, and its buffers are full."""

    def reach(self, server: ServerProcess) -> Check:
        connection = self.stack.enter_context(connect(server, narrow=True))
        connection.sendall(post_bytes(COMPLETIONS, endless(MODEL, "x", logprobs=0)))
        eventually(server, lambda: card(server, MODEL)["running"] == 1, "it runs")
        wait_full(server, MODEL, [connection], 1, 500)
        return lambda: None


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


@pytest.mark.parametrize(
    "case", [Loading, LoadingForAnAdministrator, Draining, SpareStarting, Backoff, Queue, NeverReading]
)
def test_one_signal(tmp_path: Path, stack: ExitStack, case: type[Case]) -> None:
    """What does not end within the drain's bound is told so; then everything ends."""
    end(tmp_path, case(stack), DRAIN_SECS, told=True)


@pytest.mark.parametrize("case", [Draining, Queue, NeverReading])
def test_two_signals(tmp_path: Path, stack: ExitStack, case: type[Case]) -> None:
    """The second ends the server at once, however long the drain may be."""
    end(tmp_path, case(stack), 600, told=False)


def end(folder: Path, case: Case, drain_secs: float, *, told: bool) -> None:
    models = {MODEL: {**F32, "max_concurrent_streams": 2, **case.model}}
    options = {**OPTIONS, "shutdown_drain_secs": drain_secs, **case.options}
    server = ServerProcess.serving(folder, models, environment=case.environment, **options)
    try:
        server.start().wait_health()
        if case.ready:
            server.wait_ready()
        check = case.reach(server)
        server.signal(signal.SIGTERM)
        if told:
            assert server.wait_exit(drain_secs + SPARE_SECS) == 0, server.log
            check()
        else:
            server.wait_log("shutting down")
            assert server.running
            server.signal(signal.SIGTERM)
            assert server.wait_exit(SPARE_SECS) == 0, server.log
        server.assert_none_left()
        assert "Traceback" not in server.log
    finally:
        server.kill()
