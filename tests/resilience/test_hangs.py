"""Workers that hang are found and replaced; slow ones are left alone."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.answers import completion_body, expect_ok, whole_text
from tests.support.disturb import (
    COMPLETIONS,
    HealthWatch,
    Post,
    age_secs,
    card,
    endless,
    eventually,
    idle,
    kill_worker,
    misbehaving,
    streams,
)
from tests.support.server import F32, ServerProcess

VICTIM, OTHER = "tiny-qwen3", "tiny-llama3"
STALL_SECS = 2
FOUND_SECS = STALL_SECS + 2
"""By then a worker without a sign of work is taken for hung: the bound and two looks."""
OPTIONS: dict[str, Any] = {
    "num_threads": 1,
    "spare_workers": 1,
    "worker_stall_secs": STALL_SECS,
    "admission_queue_timeout_ms": 60_000,
    "supervisor": {"backoff_base_secs": 0.1, "max_restarts": 100},
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Nobody ever asks anything of the other model."""
    models = {VICTIM: {**F32, "max_concurrent_streams": 5}, OTHER: F32}
    environment = misbehaving("spin")
    with ServerProcess.serving(tmp_path_factory.mktemp("hangs"), models, environment=environment, **OPTIONS) as process:
        yield process.wait_ready()


@pytest.fixture(scope="module")
def untouched(server: ServerProcess) -> int:
    """The worker of the other model, as it is before anything happens."""
    return int(card(server, OTHER)["worker_pid"])


def replaced(server: ServerProcess, before: int) -> None:
    def there() -> bool:
        now = card(server, VICTIM)
        return now["state"] == "ready" and now["worker_pid"] != before

    eventually(server, there, "another worker", 60)
    assert not Path(f"/proc/{before}").exists()


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGUSR1], ids=["stopped", "spinning"])
def test_a_hang_in_mid_stream(server: ServerProcess, untouched: int, number: signal.Signals) -> None:
    short = completion_body(VICTIM, "y", max_tokens=4, temperature=0)
    expected = whole_text(expect_ok(server.post(COMPLETIONS, short)))
    with HealthWatch(server):
        running = streams(server, [endless(VICTIM, f"{number.name} {count}") for count in range(4)])
        whole = Post(server, endless(VICTIM, number.name, stream=False))
        eventually(server, lambda: card(server, VICTIM)["running"] == 5, "five run")
        waiting = Post(server, short)
        eventually(server, lambda: card(server, VICTIM)["waiting"] == 1, "one waits")
        before = kill_worker(server, VICTIM, number)
        for stream in running:
            stream.lost()
        whole.error(503, "worker_lost")
        assert whole_text(waiting.result()) == expected
        replaced(server, before)
    assert idle(server, VICTIM)


def test_an_idle_worker_is_stopped(server: ServerProcess, untouched: int) -> None:
    with HealthWatch(server):
        replaced(server, kill_worker(server, VICTIM, signal.SIGSTOP))
    expect_ok(server.post(COMPLETIONS, completion_body(VICTIM, "y", max_tokens=2)))


def test_an_idle_worker_lives_on(server: ServerProcess, untouched: int) -> None:
    """Beyond the 10 s after which a thread that has nothing to do ends, and the first ping."""
    eventually(server, lambda: age_secs(untouched) > 14, "its age", 20)
    now = card(server, OTHER)
    assert (now["worker_pid"], now["restarts"], now["state"]) == (untouched, 0, "ready")
    expect_ok(server.post(COMPLETIONS, completion_body(OTHER, "y", max_tokens=2)))


def test_a_slow_load_is_no_hang(tmp_path: Path) -> None:
    slow = misbehaving(f"slow_load={FOUND_SECS + 1}")
    with ServerProcess.serving(tmp_path, {VICTIM: F32}, **OPTIONS, environment=slow) as server:
        server.wait_ready()
        now = card(server, VICTIM)
        assert now["restarts"] == 0
        assert now["load_secs"] > FOUND_SECS
        os.kill(now["worker_pid"], 0)
