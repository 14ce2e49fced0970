"""Models that do not fit together, asked for in turn: everybody is served, and nobody loads without end."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.support.answers import completion_body, expect_ok
from tests.support.server import ServerProcess

A, B = "tiny-qwen3", "tiny-llama3"
REQUESTS = 20
ENTRY: dict[str, Any] = {"load": "on_demand", "kv_cache_gb": 0.05}
OPTIONS: dict[str, Any] = {
    "num_threads": 1,
    "spare_workers": 1,
    "min_kv_cache_gb": 0.01,
    "domain_budgets": {"system_ram": 0.45},  # room for one of them, beside the spare and the utility worker
    "device_budgets": {"CPU": 1},
    "eviction_grace_secs": 0,
    "min_residency_secs": 0.1,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("in-turn")
    with ServerProcess.serving(folder, {A: ENTRY, B: ENTRY}, **OPTIONS) as process:
        yield process


def loads(server: ServerProcess) -> int:
    """How many loads came to their end so far."""
    return server.log.count(" is ready on ")


@pytest.mark.parametrize("clients", [REQUESTS, 4])  # the first ask while the devices are still being listed
def test_requests_to_two_models_in_turn(server: ServerProcess, clients: int) -> None:
    """Every second client begins with the other model, and each asks for both in turn."""
    start = threading.Barrier(clients)
    before = loads(server)

    def client(number: int) -> list[str]:
        start.wait(60)
        asked = [(A, B)[(number + turn) % 2] for turn in range(REQUESTS // clients)]
        for model in asked:
            body = completion_body(model, "x", max_tokens=4, ignore_eos=True)
            reply = httpx.post(f"{server.url}/v1/completions", json=body, timeout=120, trust_env=False)
            assert expect_ok(reply)["usage"]["completion_tokens"] == 4
        return asked

    with ThreadPoolExecutor(clients) as pool:
        asked = [model for part in pool.map(client, range(clients)) for model in part]
    assert (asked.count(A), asked.count(B)) == (REQUESTS // 2, REQUESTS // 2)
    assert 1 <= loads(server) - before <= REQUESTS
    states = {entry["state"] for entry in expect_ok(server.client.get("/v1/admin/models"))["models"]}
    assert states == {"ready", "not_loaded"}, "they fit together after all"
