"""No process outlives its server, whatever it was doing."""

import signal
import time
from pathlib import Path
from typing import Any

from tests.support.answers import completion_body
from tests.support.disturb import Post, card, eventually, misbehaving
from tests.support.server import F32, ServerProcess

MODEL = "tiny-qwen3"


def test_killed_in_a_long_prefill(tmp_path: Path) -> None:
    """Eight prompts that take half a minute together, token by token. As each step is a sign of work, that is no hang,
    however long it takes."""
    options: dict[str, Any] = {"num_threads": 1, "max_num_batched_tokens": 1, "worker_stall_secs": 2}
    server = ServerProcess.serving(tmp_path, {MODEL: {**F32, "max_concurrent_streams": 8}}, **options)
    try:
        server.start().wait_ready()
        started = time.monotonic()
        posts = [Post(server, completion_body(MODEL, [number] + [5] * 3900, max_tokens=1)) for number in range(8)]
        eventually(server, lambda: card(server, MODEL)["running"] == 8, "they run")
        eventually(server, lambda: time.monotonic() - started > 6, "more than a hang may last")
        now = card(server, MODEL)
        assert (now["restarts"], now["state"]) == (0, "ready")
        assert now["running"] >= 2
        assert len(server.workers()) >= 2
        server.signal(signal.SIGKILL)
        assert server.wait_exit() == -signal.SIGKILL
        server.assert_none_left(5)
        assert any(post.wait().failure is not None for post in posts)
    finally:
        server.kill()


def test_killed_in_a_load(tmp_path: Path) -> None:
    server = ServerProcess.serving(
        tmp_path, {MODEL: F32}, num_threads=1, spare_workers=2, environment=misbehaving("slow_load=30")
    )
    try:
        server.start().wait_health()
        eventually(server, lambda: card(server, MODEL)["worker_pid"] is not None, "a worker that loads")
        server.signal(signal.SIGKILL)
        assert server.wait_exit() == -signal.SIGKILL
        server.assert_none_left(5)
    finally:
        server.kill()
