"""Loads that nobody wants any more: they end at once, whatever the worker is doing, and leave nothing behind.

A load takes an hour here, so that what ends within a test was ended.
"""

import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.answers import completion_body, expect_ok
from tests.support.disturb import Post, card, connect, eventually, misbehaving, post_bytes
from tests.support.server import ServerProcess

MODEL, OTHER, GONE = "tiny-qwen3", "tiny-llama3", "tiny-mistral"
ENTRY: dict[str, Any] = {"load": "on_demand", "kv_cache_gb": 0.05}
OPTIONS: dict[str, Any] = {
    "num_threads": 1,
    "spare_workers": 1,
    "min_kv_cache_gb": 0.01,
    "load_timeout_secs": 7200,
    "load_wait_secs": 7200,
    "drain_timeout_secs": 3600,
    "domain_budgets": {"system_ram": 0.45},  # room for one model
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("slow")
    models = dict.fromkeys([MODEL, OTHER, GONE], ENTRY)
    with ServerProcess.serving(folder, models, environment=misbehaving("slow_load=3600"), **OPTIONS) as server:
        eventually(server, lambda: memory(server) is not None, "the devices are known")
        yield server


@pytest.fixture
def server(shared: ServerProcess) -> Iterator[ServerProcess]:
    """The shared server with nothing loaded, and its memory afterwards as before."""
    before = used_bytes(shared)
    yield shared
    assert used_bytes(shared) == before
    for entry in expect_ok(shared.client.get("/v1/admin/models"))["models"]:
        assert (entry["state"], entry["worker_pid"], entry["memory"]) == ("not_loaded", None, None)
        assert (entry["running"], entry["waiting"]) == (0, 0)


def memory(server: ServerProcess) -> dict[str, Any] | None:
    """The ledger, once there is one."""
    about = expect_ok(server.client.get("/v1/admin/models"))["server"]
    return about["memory"]


def used_bytes(server: ServerProcess) -> int:
    """What the ledger has promised."""
    domains = memory(server)
    assert domains is not None
    return int(domains["system_ram"]["used_bytes"])


def wait_worker(server: ServerProcess, model: str) -> int:
    """Wait until a worker is at the load of a model; its process id."""
    eventually(server, lambda: card(server, model)["worker_pid"] is not None, "a worker", 60)
    now = card(server, model)
    assert now["state"] == "loading"
    assert now["memory"]["reserved"]["system_ram"] > 0
    return int(now["worker_pid"])


def wait_gone(server: ServerProcess, pid: int) -> None:
    """Wait until a process has been reaped."""
    eventually(server, lambda: not os.path.exists(f"/proc/{pid}"), "the end of the worker")


def load_path(model: str) -> str:
    return f"/v1/admin/models/{model}/load"


def ask_for(server: ServerProcess, model: str) -> socket.socket:
    """An administrator's request for a load, on a connection to be closed."""
    connection = connect(server)
    connection.sendall(post_bytes(load_path(model), {}))
    return connection


def test_everybody_who_asked_has_left(server: ServerProcess) -> None:
    """One of two who leaves changes nothing."""
    first, second = ask_for(server, MODEL), ask_for(server, MODEL)
    pid = wait_worker(server, MODEL)
    first.close()
    server.wait_log(f"POST {load_path(MODEL)}.* 499")
    assert (card(server, MODEL)["state"], card(server, MODEL)["worker_pid"]) == ("loading", pid)
    second.close()
    server.wait_states({MODEL: "not_loaded"}, 20)
    wait_gone(server, pid)


def test_a_request_that_waits_keeps_a_load_whose_administrator_left(server: ServerProcess) -> None:
    connection = ask_for(server, OTHER)
    pid = wait_worker(server, OTHER)
    waiting = Post(server, completion_body(OTHER, "x"))
    eventually(server, lambda: card(server, OTHER)["waiting"] == 1, "a request waits")
    connection.close()
    server.wait_log(f"POST {load_path(OTHER)}.* 499")
    assert (card(server, OTHER)["state"], card(server, OTHER)["worker_pid"]) == ("loading", pid)
    expect_ok(server.client.delete(f"/v1/admin/models/{OTHER}"))
    waiting.error(503, "model_unloading")
    wait_gone(server, pid)


def test_an_evict_has_ended_the_worker_when_it_answers(server: ServerProcess) -> None:
    load = Post(server, {}, load_path(MODEL))
    pid = wait_worker(server, MODEL)
    waiting = Post(server, completion_body(MODEL, "x"))
    eventually(server, lambda: card(server, MODEL)["waiting"] == 1, "a request waits")
    answer = expect_ok(server.client.delete(f"/v1/admin/models/{MODEL}"))
    assert not os.path.exists(f"/proc/{pid}")
    assert (answer["state"], answer["memory"]) == ("not_loaded", None)
    load.error(503, "model_unloading")
    waiting.error(503, "model_unloading")


def test_a_deregistration_has_ended_the_worker_when_it_answers(server: ServerProcess) -> None:
    load = Post(server, {}, load_path(GONE))
    pid = wait_worker(server, GONE)
    expect_ok(server.client.delete(f"/v1/admin/models/{GONE}/register"))
    assert not os.path.exists(f"/proc/{pid}")
    load.error(404, "model_not_found")


def test_an_evict_ends_a_load_that_still_waits_for_memory(server: ServerProcess) -> None:
    """It stands in line behind another load, and takes neither memory nor a worker when its turn would have come."""
    holder = ask_for(server, MODEL)
    pid = wait_worker(server, MODEL)
    waiting = Post(server, completion_body(OTHER, "x"))  # an on-demand load waits its turn
    eventually(server, lambda: card(server, OTHER)["waiting"] == 1, "a request waits")
    assert (card(server, OTHER)["state"], card(server, OTHER)["worker_pid"]) == ("loading", None)
    expect_ok(server.client.delete(f"/v1/admin/models/{OTHER}"))
    waiting.error(503, "model_unloading")
    assert card(server, OTHER)["state"] == "not_loaded"
    assert (card(server, MODEL)["state"], card(server, MODEL)["worker_pid"]) == ("loading", pid)
    loads = server.log.count(f"model {OTHER}: not_loaded → loading")
    holder.close()
    server.wait_states({MODEL: "not_loaded"}, 20)
    wait_gone(server, pid)
    assert server.log.count(f"model {OTHER}: not_loaded → loading") == loads
