"""Verbs that change models: what they ask, send and say."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rustedvino.rv.errors import UsageError
from rustedvino.rv.models import read_settings
from tests.rv.conftest import IDLE, MODEL, Ended, models
from tests.rv.fake import FakeServer, error_answer

Rv = Callable[..., Ended]
CHECK = "POST /v1/admin/models/phi/check"
LOAD = "POST /v1/admin/models/phi/load"
FITS: dict[str, Any] = {
    "model_id": "phi",
    "state": "not_loaded",
    "fits": True,
    "device": "GPU",
    "domain": "gpu0",
    "demand_bytes": {"gpu0": 2**30},
    "kv_pool_bytes": 2**29,
    "would_evict": [],
    "reasons": ["text_gen by tier"],
}
NO_ROOM: dict[str, Any] = {
    "model_id": "phi",
    "state": "not_loaded",
    "fits": False,
    "limit": "vram",
    "needed_bytes": 9 * 2**30,
    "free_bytes": 2**30,
    "budget_bytes": 8 * 2**30,
    "evictable_bytes": 0,
    "protected": [{"model_id": "qwen", "reason": "pinned", "bytes": 5}],
    "reasons": [],
    "would_evict": [],
    "message": "phi needs 9 GB of gpu0",
    "retry_after_secs": 5.0,
}


@pytest.fixture
def server(fake: FakeServer) -> FakeServer:
    fake.add("GET /v1/admin/models", models(MODEL, IDLE))
    fake.add(CHECK, FITS)
    fake.add(LOAD, {**IDLE, "state": "ready", "device": "GPU", "load_secs": 2.5, "memory": {"charged": {"a": 2**30}}})
    return fake


# NAME=VALUE


def test_values_are_json_or_text() -> None:
    words = ["a=1", "b=1.5", "c=true", "d=null", "e=GPU.1", 'f=["x"]', 'g={"a": 1}', 'h="1"', "i=", "j=a=b"]
    assert read_settings(words) == {
        "a": 1,
        "b": 1.5,
        "c": True,
        "d": None,
        "e": "GPU.1",
        "f": ["x"],
        "g": {"a": 1},
        "h": "1",
        "i": "",
        "j": "a=b",
    }


@pytest.mark.parametrize("words", [["a"], ["=1"], ["a=1", "a=2"], ["a={1}"], ["a=[1"], ["a=NaN"], ["a=[Infinity]"]])
def test_what_is_no_setting(words: list[str]) -> None:
    with pytest.raises(UsageError):
        read_settings(words)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_value_is_read_or_is_wrong_usage(text: str) -> None:
    try:
        settings = read_settings([f"name={text}"])
    except UsageError:
        return
    assert list(settings) == ["name"]


# check and load


def test_check(rv: Rv, server: FakeServer) -> None:
    done = rv("check", "phi", host=server)
    assert done.code == 0
    assert "1.0 GiB" in done.out
    assert "text_gen by tier" in done.out
    server.add(CHECK, NO_ROOM)
    done = rv("check", "phi", "--force", host=server)
    assert done.code == 1
    for words in ("phi needs 9 GB of gpu0", "protected qwen", "pinned", "perhaps in 5.0 s", "9.0 GiB"):
        assert words in done.out
    assert server.bodies(CHECK) == [{"force": False}, {"force": True}]
    assert rv("check", "phi", "--json", host=server).json == NO_ROOM


def test_a_load_that_evicts_nobody_needs_no_answer(rv: Rv, server: FakeServer) -> None:
    done = rv("load", "phi", "--kv-cache-gb", "2", host=server)
    assert (done.code, done.out) == (0, "phi is ready (on GPU, in 2.5 s, charged 1.0 GiB)\n")
    assert server.bodies(LOAD) == [{"force": False, "kv_cache_gb": 2.0}]
    assert done.err == "loading phi …\n"


def test_a_load_that_evicts_asks_first(rv: Rv, server: FakeServer) -> None:
    server.add(CHECK, {**FITS, "would_evict": ["qwen", "old"]})
    done = rv("load", "phi", host=server)
    assert done.code == 2
    assert "Loading phi unloads qwen and old. There is no terminal to ask on: nothing was changed." in done.err
    assert "-y goes ahead" in done.err
    assert server.bodies(LOAD) == []
    assert rv("load", "phi", "-y", host=server).code == 0
    assert rv("load", "phi", "--no-check", host=server).code == 0
    assert len(server.bodies(CHECK)) == 2


def test_a_load_without_room_is_refused_with_the_numbers(rv: Rv, server: FakeServer) -> None:
    server.add(CHECK, NO_ROOM)
    done = rv("load", "phi", "--json", host=server)
    assert done.code == 1
    assert done.json["error"]["code"] == "insufficient_memory"
    assert done.json["answer"]["needed_bytes"] == 9 * 2**30
    assert "--force may evict" in done.json["error"]["hint"]
    assert server.bodies(LOAD) == []


def test_force_is_asked_about_without_a_check(rv: Rv, server: FakeServer) -> None:
    done = rv("load", "phi", "--force", "--no-check", host=server)
    assert (done.code, "may unload other models" in done.err) == (2, True)


def test_a_load_that_fails(rv: Rv, server: FakeServer) -> None:
    server.add(LOAD, error_answer(503, "the worker died", "model_failed", retry_after="30"))
    done = rv("load", "phi", host=server)
    assert done.code == 1
    assert "the worker died\n    try again in 30 s" in done.err


def test_a_model_that_is_ready_is_not_checked_for_room(rv: Rv, server: FakeServer) -> None:
    server.add(CHECK, {**NO_ROOM, "state": "ready"})
    assert rv("load", "phi", host=server).code == 0


# add


def test_add_sends_only_what_was_given(rv: Rv, server: FakeServer) -> None:
    server.add("POST /v1/admin/models", {**IDLE, "state": "ready"})
    assert rv("add", "phi", host=server).code == 0
    arguments = ["--kind", "text_gen", "--vram-gb", "8.5", "--on-demand", "--pinned", "--priority", "3"]
    assert rv("add", "phi", *arguments, 'capabilities=["tool_calling"]', host=server).code == 0
    assert server.bodies("POST /v1/admin/models") == [
        {"model_id": "phi"},
        {
            "model_id": "phi",
            "kind": "text_gen",
            "vram_gb": 8.5,
            "load": "on_demand",
            "pinned": True,
            "priority": 3,
            "capabilities": ["tool_calling"],
        },
    ]
    assert rv("add", "phi", "--pinned", "pinned=false", host=server).code == 2


# Endings


@pytest.mark.parametrize(
    ("arguments", "route", "question"),
    [
        (["unload", "qwen"], "DELETE /v1/admin/models/qwen", "This unloads qwen. 2 requests run on it."),
        (["deregister", "qwen"], "DELETE /v1/admin/models/qwen/register", "its files stay. 2 requests run on it."),
        (["resize", "qwen", "3"], "POST /v1/admin/models/qwen/resize", "loads it again with another KV pool."),
    ],
)
def test_what_ends_something_asks(rv: Rv, server: FakeServer, arguments: list[str], route: str, question: str) -> None:
    server.add(route, {**MODEL, "deregistered": True})
    done = rv(*arguments, host=server)
    assert (done.code, question in done.err) == (2, True)
    assert server.bodies(route) == []
    assert rv(*arguments, "-y", host=server).code == 0
    assert server.bodies(route) == [{"kv_cache_gb": 3.0} if "resize" in arguments else None]
    assert rv(*arguments, "--yes", "--json", host=server).json["model_id"] == "qwen"


def test_a_model_that_does_not_exist_is_not_asked_about(rv: Rv, server: FakeServer) -> None:
    server.add("GET /v1/models", {"data": [{"id": "qwen"}]})
    done = rv("unload", "qwe", host=server)
    assert done.code == 1
    assert "'qwe' does not exist\n    did you mean qwen?" in done.err


# Settings


def test_patch(rv: Rv, server: FakeServer) -> None:
    answer = {"model_id": "qwen", "live": ["pinned"], "next_load": ["device"], "unchanged": ["priority"]}
    server.add("PATCH /v1/admin/models/qwen", answer)
    done = rv("patch", "qwen", "pinned=true", "device=GPU.1", "priority=0", host=server)
    assert done.out == "pinned: in effect\ndevice: from its next load on\npriority: unchanged\n"
    assert server.bodies("PATCH /v1/admin/models/qwen") == [{"pinned": True, "device": "GPU.1", "priority": 0}]
    assert rv("patch", "qwen", host=server).code == 2


def test_preload_and_save_defaults(rv: Rv, server: FakeServer) -> None:
    route = "POST /v1/admin/config/preload"
    server.add(route, {"preload": ["a", "b"], "eager": ["b", "c"]})
    done = rv("preload", "a", "b", host=server)
    assert done.out == "saved: a and b will be loaded at start\nso will c, whose load is eager\n"
    rv("preload", "--from-live", host=server)
    rv("save-defaults", host=server)
    assert server.bodies(route) == [{"model_ids": ["a", "b"]}, {"from_live": True}, {"from_live": True}]
    assert rv("preload", host=server).code == 2
    assert rv("preload", "a", "--from-live", host=server).code == 2
