"""Workers that die: what their clients are told, who notices, and how the model comes back."""

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.answers import chat_body, completion_body, expect_error, expect_ok, whole_text
from tests.support.disturb import (
    CHAT,
    COMPLETIONS,
    HealthWatch,
    Post,
    Stream,
    card,
    cpu_secs,
    endless,
    eventually,
    idle,
    kill_worker,
    spares,
    streams,
    workers_of_role,
)
from tests.support.server import F32, ServerProcess

VICTIM, OTHER = "tiny-qwen3", "tiny-llama3"
OTHERS_TOKENS = 700
OPTIONS: dict[str, Any] = {
    "num_threads": 1,
    "spare_workers": 1,
    "admission_queue_timeout_ms": 60_000,
    "shutdown_drain_secs": 0.2,
    "supervisor": {"backoff_base_secs": 0.1, "max_restarts": 100},
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    models = {VICTIM: {**F32, "max_concurrent_streams": 9}, OTHER: {**F32, "max_concurrent_streams": 8}}
    with ServerProcess.serving(tmp_path_factory.mktemp("pair"), models, **OPTIONS) as process:
        yield process.wait_ready()


def short(model: str, prompt: Any = "y", **fields: Any) -> dict[str, Any]:
    return completion_body(model, prompt, **{"max_tokens": 5, "temperature": 0, "ignore_eos": True, **fields})


def others(number: int) -> dict[str, Any]:
    return endless(OTHER, f"story {number}", OTHERS_TOKENS)


def wait_other_worker(server: ServerProcess, model: str, before: int, *states: str) -> None:
    """Wait until a model has another worker and is in one of ``states``."""

    def there() -> bool:
        now = card(server, model)
        return now["worker_pid"] not in (None, before) and now["state"] in states

    eventually(server, there, f"another worker of {model}", 60)


def test_two_deaths_in_a_row_under_load(pair: ServerProcess) -> None:
    """Eight streams and a whole answer end with errors; three who wait are served by the third worker; eight streams
    of the model beside it are what they are undisturbed; /health answers all the while."""
    undisturbed = [stream.whole() for stream in streams(pair, [others(number) for number in range(8)])]
    expected = whole_text(expect_ok(pair.post(COMPLETIONS, short(VICTIM))))
    restarts = card(pair, VICTIM)["restarts"]
    with HealthWatch(pair):
        neighbours = streams(pair, [others(number) for number in range(8)])
        running = streams(pair, [endless(VICTIM, f"run {number}") for number in range(8)])
        whole = Post(pair, endless(VICTIM, "whole", stream=False))
        eventually(pair, lambda: card(pair, VICTIM)["running"] == 9, "nine run")
        waiting = [Post(pair, short(VICTIM)) for _ in range(3)]
        eventually(pair, lambda: card(pair, VICTIM)["waiting"] == 3, "three wait")
        assert not any(stream.ended for stream in neighbours)
        first = kill_worker(pair, VICTIM, signal.SIGKILL)
        for stream in running:
            stream.lost()
        whole.error(503, "worker_lost")
        wait_other_worker(pair, VICTIM, first, "loading")
        kill_worker(pair, VICTIM, signal.SIGKILL)
        assert [whole_text(post.result()) for post in waiting] == [expected] * 3
        assert [stream.whole() for stream in neighbours] == undisturbed
        pair.wait_states({VICTIM: "ready"})
    now = card(pair, VICTIM)
    assert now["restarts"] == restarts + 2
    assert idle(pair, VICTIM)
    assert card(pair, OTHER)["restarts"] == 0
    assert whole_text(expect_ok(pair.post(COMPLETIONS, short(VICTIM)))) == expected


def test_a_death_in_a_load(pair: ServerProcess) -> None:
    """The load goes on with another worker, for whoever asked for it."""
    expect_ok(pair.client.delete(f"/v1/admin/models/{VICTIM}"))
    load = Post(pair, {}, f"/v1/admin/models/{VICTIM}/load")
    wait_other_worker(pair, VICTIM, 0, "loading")
    restarts = card(pair, VICTIM)["restarts"]
    kill_worker(pair, VICTIM, signal.SIGKILL)
    load.wait()
    assert load.status in (200, 503), load.answer  # an administrator may be told to come again
    pair.wait_states({VICTIM: "ready"})
    assert card(pair, VICTIM)["restarts"] == restarts + 1
    expect_ok(pair.post(COMPLETIONS, short(VICTIM)))


def test_a_death_in_a_drain(pair: ServerProcess) -> None:
    """A model that is being unloaded is unloaded at once, and stays so until it is asked for."""
    (stream,) = streams(pair, [endless(VICTIM, "drained")])
    evicting = threading.Thread(target=lambda: expect_ok(pair.client.delete(f"/v1/admin/models/{VICTIM}")))
    evicting.start()
    eventually(pair, lambda: card(pair, VICTIM)["state"] == "draining", "the drain")
    kill_worker(pair, VICTIM, signal.SIGKILL)
    stream.lost()
    evicting.join(20)
    assert not evicting.is_alive()
    assert card(pair, VICTIM)["state"] == "not_loaded"
    expect_error(pair.post(COMPLETIONS, short(VICTIM)), 503, "model_not_loaded")
    expect_ok(pair.client.post(f"/v1/admin/models/{VICTIM}/load"))
    expect_ok(pair.post(COMPLETIONS, short(VICTIM)))


def test_a_death_while_the_server_ends(tmp_path: Path) -> None:
    with ServerProcess.serving(tmp_path, {VICTIM: F32}, **{**OPTIONS, "shutdown_drain_secs": 60}) as server:
        server.wait_ready()
        (stream,) = streams(server, [endless(VICTIM, "x")])
        pid = card(server, VICTIM)["worker_pid"]
        server.signal(signal.SIGTERM)
        server.wait_log("shutting down")
        assert not stream.ended
        os.kill(pid, signal.SIGKILL)
        stream.lost()
        assert server.wait_exit(15) == 0, server.log
        server.assert_none_left()


def test_the_spare_dies(pair: ServerProcess) -> None:
    """It is replaced; meanwhile models do without."""
    eventually(pair, lambda: len(spares(pair)) == 1, "a spare")
    (spare,) = spares(pair)
    with HealthWatch(pair):
        os.kill(spare, signal.SIGKILL)
        eventually(pair, lambda: len(spares(pair)) == 1 and spares(pair) != [spare], "another spare")
        (spare,) = spares(pair)
        os.kill(spare, signal.SIGKILL)
        before = kill_worker(pair, VICTIM, signal.SIGKILL)
        wait_other_worker(pair, VICTIM, before, "ready")
        eventually(pair, lambda: len(spares(pair)) == 1, "a spare")
    expect_ok(pair.post(COMPLETIONS, short(VICTIM)))


def test_the_utility_worker_dies(pair: ServerProcess) -> None:
    """While it is idle and while it is asked: answers that need it are given all the same, and loads that probe a
    template."""

    def constrained(number: int, model: str = VICTIM) -> dict[str, Any]:
        schema = {"type": "object", "properties": {f"p{number}": {"type": "boolean"}}, "required": [f"p{number}"]}
        form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
        return chat_body(model, "x", response_format=form, max_tokens=60, enable_thinking=False)

    def check(number: int, answer: dict[str, Any]) -> None:
        choice = answer["choices"][0]
        assert choice["finish_reason"] == "stop"
        assert set(json.loads(choice["message"]["content"])) == {f"p{number}"}

    check(0, expect_ok(pair.post(CHAT, constrained(0))))
    (idle_one,) = workers_of_role(pair, "utility")
    os.kill(idle_one, signal.SIGKILL)
    check(1, expect_ok(pair.post(CHAT, constrained(1))))
    (busy_one,) = workers_of_role(pair, "utility")
    assert busy_one != idle_one
    asked = [Post(pair, constrained(number, OTHER), CHAT) for number in range(2, 6)]
    os.kill(busy_one, signal.SIGKILL)
    for number, post in enumerate(asked, 2):
        check(number, post.result())
    (another,) = workers_of_role(pair, "utility")
    os.kill(another, signal.SIGKILL)
    expect_ok(pair.client.delete(f"/v1/admin/models/{OTHER}"))
    expect_ok(pair.client.post(f"/v1/admin/models/{OTHER}/load"))
    expect_ok(pair.post(CHAT, chat_body(OTHER, "x", max_tokens=3)))
    (last,) = workers_of_role(pair, "utility")
    assert last != another


def test_a_request_that_ran_in_two_deaths_is_refused(tmp_path: Path) -> None:
    """It alone: with one restart allowed, two deaths by different requests would have failed the model."""
    options = {**OPTIONS, "supervisor": {"backoff_base_secs": 0.1, "max_restarts": 1}}
    with ServerProcess.serving(tmp_path, {VICTIM: F32}, **options) as server:
        server.wait_ready()
        culprit = endless(VICTIM, "deadly")
        for number in range(2):
            (stream,) = streams(server, [culprit])
            bystander = Stream(server, endless(VICTIM, f"bystander {number}")).begun()
            before = kill_worker(server, VICTIM, signal.SIGKILL)
            stream.lost()
            bystander.lost()
            wait_other_worker(server, VICTIM, before, "ready")
        for streamed in (False, True):
            reply = server.post(COMPLETIONS, {**culprit, "stream": streamed})
            error = expect_error(reply, 500, "request_refused")
            assert error["type"] == "server_error"
        expect_ok(server.post(COMPLETIONS, endless(VICTIM, "bystander 1", 5, stream=False)))
        (once,) = streams(server, [endless(VICTIM, "bystander 1")])  # it ran in one death only
        expect_ok(server.post(COMPLETIONS, short(VICTIM)))
        assert not once.ended
        assert card(server, VICTIM)["state"] == "ready"
        assert card(server, VICTIM)["restarts"] == 2


def die_until_failed(server: ServerProcess, most: int) -> int:
    """Abort the worker whenever the model is ready; the number of deaths it took."""
    for deaths in range(1, most + 1):
        before = kill_worker(server, VICTIM, signal.SIGABRT)

        def settled(before: int = before) -> bool:
            now = card(server, VICTIM)
            return now["state"] == "failed" or (now["state"] == "ready" and now["worker_pid"] != before)

        eventually(server, settled, "ready or failed", 60)
        if card(server, VICTIM)["state"] == "failed":
            return deaths
    raise AssertionError(f"not failed after {most} deaths")


def test_a_crash_loop_ends_and_has_its_ways_out(tmp_path: Path) -> None:
    """FAILED says what the worker printed last and costs no processor time. Out of it: an administrator's load, and
    one trial after the window."""
    supervisor = {"backoff_base_secs": 0.1, "max_restarts": 1, "restart_window_secs": 5}
    with ServerProcess.serving(tmp_path, {VICTIM: F32}, **{**OPTIONS, "supervisor": supervisor}) as server:
        server.wait_ready()
        with HealthWatch(server):
            assert die_until_failed(server, 20) >= 2
            error = expect_error(server.post(COMPLETIONS, short(VICTIM)), 503, "model_failed")
            assert "SIGABRT" in error["message"]
            assert "Fatal Python error: Aborted" in error["message"]
            error = expect_error(server.post(CHAT, chat_body(VICTIM, "x", stream=True)), 503, "model_failed")
            assert "Fatal Python error: Aborted" in error["message"]
            readiness = server.client.get("/readyz")
            assert readiness.status_code == 503
            assert "Fatal Python error" in readiness.json()["models"][0]["error"]
        pids = server.processes()
        before = sum(map(cpu_secs, pids))
        time.sleep(1)  # the subject is what a second in this state costs
        assert sum(map(cpu_secs, pids)) - before < 0.2
        assert card(server, VICTIM)["worker_pid"] is None
        expect_ok(server.client.post(f"/v1/admin/models/{VICTIM}/load"))
        expect_ok(server.post(COMPLETIONS, short(VICTIM)))
        assert card(server, VICTIM)["last_error"] is None
        die_until_failed(server, 20)
        server.wait_states({VICTIM: "ready"}, 60)  # by itself
        expect_ok(server.post(COMPLETIONS, short(VICTIM)))
