"""Loads that need room: who is evicted, who is not, and what a check says beforehand."""

import json
import os
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.answers import completion_body, expect_error, expect_ok
from tests.support.server import ServerProcess, sse_data

MODELS = ("tiny-qwen3", "tiny-llama3", "tiny-mistral", "tiny-qwen3-chat")
A, B, C, D = MODELS
ENTRY: dict[str, Any] = {"load": "on_demand", "kv_cache_gb": 0.05, "eviction_grace_secs": 0}
BUDGET_GB = 0.55
"""Room for two such models: each is charged 160 MiB for its process and its pool of 51 MiB."""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("memory")
    serving = ServerProcess.serving(
        folder,
        dict.fromkeys(MODELS, ENTRY),
        num_threads=1,
        spare_workers=0,
        min_kv_cache_gb=0.01,
        domain_budgets={"system_ram": BUDGET_GB},
        drain_timeout_secs=1,
        min_residency_secs=600,
    )
    with serving as server:
        yield server


@pytest.fixture
def server(shared: ServerProcess) -> ServerProcess:
    """The shared server with A and B loaded, A used before B, all as they were configured."""
    for model in MODELS:
        reset = dict.fromkeys(["pinned", "evictable", "priority"]) | ENTRY
        expect_ok(shared.client.patch(f"/v1/admin/models/{model}", json=reset))
    for model in (C, D):
        if view(shared, model)["state"] != "not_loaded":
            expect_ok(shared.client.delete(f"/v1/admin/models/{model}"))
    for model in (A, B):
        load(shared, model)
        use(shared, model)
    return shared


def view(server: ServerProcess, model: str) -> dict[str, Any]:
    models = expect_ok(server.client.get("/v1/admin/models"))["models"]
    return next(entry for entry in models if entry["model_id"] == model)


def loaded(server: ServerProcess) -> set[str]:
    models = expect_ok(server.client.get("/v1/admin/models"))["models"]
    return {entry["model_id"] for entry in models if entry["state"] == "ready"}


def domain(server: ServerProcess) -> dict[str, Any]:
    return expect_ok(server.client.get("/v1/admin/models"))["server"]["memory"]["system_ram"]


def check(server: ServerProcess, model: str, **query: Any) -> dict[str, Any]:
    return expect_ok(server.client.post(f"/v1/admin/models/{model}/check", params=query))


def load(server: ServerProcess, model: str, **query: Any) -> dict[str, Any]:
    return expect_ok(server.client.post(f"/v1/admin/models/{model}/load", params=query))


def refused(server: ServerProcess, model: str, status: int, **query: Any) -> dict[str, Any]:
    """A load that has no room; its details must be those of the check, and nobody is evicted."""
    before = loaded(server)
    foreseen = check(server, model, **query)
    reply = server.client.post(f"/v1/admin/models/{model}/load", params=query)
    error = no_room(reply, status)
    assert ("retry-after" in reply.headers) == (status == 503)
    details = reply.json()["details"]
    assert foreseen["fits"] is False
    assert (foreseen["retry_after_secs"] is None) == (status == 409)
    assert details["limit"] == foreseen["limit"] == "system_ram"
    for name in ("needed_bytes", "free_bytes", "budget_bytes", "evictable_bytes"):
        assert details[name] == foreseen[name], name
    assert details["needed_bytes"] > details["free_bytes"] + details["evictable_bytes"]
    assert loaded(server) == before
    for entry in details["protected"]:
        assert entry["model_id"] in error["message"]
    return details


def no_room(reply: httpx.Response, status: int) -> dict[str, Any]:
    """The error of a refusal, which has its numbers beside it."""
    content = reply.json()
    assert set(content) == {"error", "details"}
    headers = {name: value for name, value in reply.headers.items() if name != "content-length"}
    plain = httpx.Response(reply.status_code, headers=headers, json={"error": content["error"]})
    return expect_error(plain, status, "insufficient_memory")


def use(server: ServerProcess, model: str) -> None:
    expect_ok(server.post("/v1/completions", completion_body(model, "x", max_tokens=1)))


def patch(server: ServerProcess, model: str, **fields: Any) -> None:
    expect_ok(server.client.patch(f"/v1/admin/models/{model}", json=fields))


def why(details: dict[str, Any]) -> dict[str, str]:
    return {entry["model_id"]: entry["why"] for entry in details["protected"]}


class Stream:
    """A long stream that has begun."""

    def __init__(self, server: ServerProcess, model: str) -> None:
        self._client = httpx.Client(base_url=server.url, timeout=60, trust_env=False)
        body = completion_body(model, "x", max_tokens=4000, n=8, ignore_eos=True, temperature=1, stream=True)
        self.reply = self._client.send(self._client.build_request("POST", "/v1/completions", json=body), stream=True)
        assert self.reply.status_code == 200
        self._pieces = self.reply.iter_text()
        self._first = next(self._pieces)

    def rest(self) -> list[str]:
        return sse_data(self._first + "".join(self._pieces))

    def close(self) -> None:
        self.reply.close()
        self._client.close()


@pytest.fixture
def stream(server: ServerProcess) -> Iterator[Any]:
    begun: list[Stream] = []

    def begin(model: str) -> Stream:
        begun.append(Stream(server, model))
        return begun[-1]

    yield begin
    for one in begun:
        one.close()
    server.wait_for(lambda: all(view(server, model)["running"] == 0 for model in MODELS), "the end of streams", 30)


def test_the_least_recently_used_goes_and_its_memory_comes_back(server: ServerProcess) -> None:
    use(server, B)
    use(server, A)
    before = {model: view(server, model) for model in (A, B)}
    used = domain(server)["used_bytes"]
    plan = check(server, C)
    assert (plan["fits"], plan["would_evict"]) == (True, [B])
    after = load(server, C)
    assert loaded(server) == {A, C}
    assert not os.path.exists(f"/proc/{before[B]['worker_pid']}")
    assert view(server, A)["worker_pid"] == before[A]["worker_pid"]
    assert after["memory"]["reserved"] == plan["demand_bytes"]
    freed, taken = before[B]["memory"]["charged"]["system_ram"], after["memory"]["charged"]["system_ram"]
    assert domain(server)["used_bytes"] - (used - freed + taken) == pytest.approx(0, abs=64 * 2**20)  # peaks may rise
    expect_ok(server.client.delete(f"/v1/admin/models/{C}"))
    gone = view(server, C)
    assert (gone["memory"], gone["worker_pid"], gone["kv_cache"]) == (None, None, None)
    charges = sum(view(server, model)["memory"]["charged"]["system_ram"] for model in loaded(server))
    overhead = used - sum(entry["memory"]["charged"]["system_ram"] for entry in before.values())
    assert domain(server)["used_bytes"] == charges + overhead
    assert sorted(server.workers()).count(after["worker_pid"]) == 0


def test_a_lower_priority_goes_first(server: ServerProcess) -> None:
    use(server, A)
    use(server, B)
    assert check(server, C)["would_evict"] == [A]
    patch(server, A, priority=5)
    assert check(server, C)["would_evict"] == [B]
    patch(server, A, priority=None)
    assert check(server, C)["would_evict"] == [A]


@pytest.mark.parametrize(
    ("field", "value", "reason"), [("pinned", True, "pinned"), ("evictable", False, "evictable is false")]
)
def test_who_is_protected_for_good_is_named(server: ServerProcess, field: str, value: bool, reason: str) -> None:
    patch(server, A, **{field: value})
    assert check(server, C)["would_evict"] == [B]
    patch(server, B, **{field: value})
    assert why(refused(server, C, 409)) == {A: reason, B: reason}
    assert why(refused(server, C, 409, force="true")) == {A: reason, B: reason}


def test_the_grace_window_passes_and_force_skips_it(server: ServerProcess) -> None:
    for model in (A, B):
        patch(server, model, eviction_grace_secs=500)
        use(server, model)
    details = refused(server, C, 503)
    assert why(details) == dict.fromkeys([A, B], "used within the last 500 s")
    assert check(server, C, force="true")["would_evict"] == [A]
    load(server, C, force="true")
    assert loaded(server) == {B, C}


def test_a_busy_model_is_evicted_only_by_force_and_last(server: ServerProcess, stream: Any) -> None:
    running = stream(A)
    assert check(server, C)["would_evict"] == [B]
    assert check(server, C, force="true")["would_evict"] == [B]  # idle before busy, though B was used later
    patch(server, B, pinned=True)
    assert why(refused(server, C, 503)) == {A: "busy", B: "pinned"}
    assert check(server, C, force="true")["would_evict"] == [A]
    load(server, C, force="true")
    assert loaded(server) == {B, C}
    last = json.loads(running.rest()[-1])
    assert last["error"]["code"] == "model_unloading"


def test_what_never_fits_is_no_matter_of_time(server: ServerProcess) -> None:
    patch(server, C, kv_cache_gb=2)
    details = refused(server, C, 409)
    assert details["protected"] == []
    assert details["needed_bytes"] > details["budget_bytes"]
    assert loaded(server) == {A, B}


def test_a_load_on_demand_leaves_fresh_ones_alone(server: ServerProcess) -> None:
    for model in (A, B):
        expect_ok(server.client.delete(f"/v1/admin/models/{model}"))
        use(server, model)  # loads it on demand
    reply = server.post("/v1/completions", completion_body(C, "x", max_tokens=1))
    error = expect_error(reply, 503, "insufficient_memory")
    assert "loaded within the last 600 s" in error["message"]
    assert int(reply.headers["retry-after"]) > 0
    assert check(server, C)["would_evict"] == [A]
    load(server, C)
    assert loaded(server) == {B, C}


def test_an_added_model_for_which_there_is_no_room_is_not_registered(server: ServerProcess) -> None:
    expect_ok(server.client.delete(f"/v1/admin/models/{D}/register"))
    for model in (A, B):
        patch(server, model, pinned=True)
    eager = {"model_id": D, **ENTRY, "load": "eager"}
    no_room(server.post("/v1/admin/models", eager), 409)
    expect_error(server.client.post(f"/v1/admin/models/{D}/check"), 404, "model_not_found")
    assert expect_ok(server.client.get("/v1/admin/config/audit"))["in_sync"]
    added = server.post("/v1/admin/models", {"model_id": D, **ENTRY})
    assert (added.status_code, added.json()["state"]) == (201, "not_loaded")


class TestResize:
    def test_to_what_fits(self, server: ServerProcess) -> None:
        before = view(server, A)
        after = expect_ok(server.post(f"/v1/admin/models/{A}/resize", {"kv_cache_gb": 0.02}))
        assert after["state"] == "ready"
        assert after["worker_pid"] != before["worker_pid"]
        assert 0 < after["kv_cache"]["pool_bytes"] <= 0.02 * 2**30 < before["kv_cache"]["pool_bytes"]
        assert after["settings"] == before["settings"]
        reply = server.post(f"/v1/admin/models/{A}/resize", {"kv_cache_gb": 0.03})
        expect_error(reply, 429, "resize_cooldown")
        assert 0 < int(reply.headers["retry-after"]) <= 30
        assert view(server, A)["worker_pid"] == after["worker_pid"]
        use(server, A)

    def test_without_room_the_model_stays(self, server: ServerProcess) -> None:
        before = view(server, B)
        error = no_room(server.post(f"/v1/admin/models/{B}/resize", {"kv_cache_gb": 4}), 409)
        assert B in error["message"]
        assert view(server, B)["worker_pid"] == before["worker_pid"]
        patch(server, A, pinned=True)
        no_room(server.post(f"/v1/admin/models/{B}/resize", {"kv_cache_gb": 0.3}), 409)
        assert view(server, B)["worker_pid"] == before["worker_pid"]

    def test_a_model_that_is_not_loaded(self, server: ServerProcess) -> None:
        expect_error(server.post(f"/v1/admin/models/{C}/resize", {"kv_cache_gb": 0.02}), 409, "model_not_loaded")

    @pytest.mark.parametrize("body", [{}, {"kv_cache_gb": -1}, {"kv_cache_gb": "1"}, {"kv_cache_gb": True}])
    def test_bad_sizes(self, server: ServerProcess, body: dict[str, Any]) -> None:
        error = expect_error(server.post(f"/v1/admin/models/{A}/resize", body), 400)
        assert error["param"] == "kv_cache_gb"
