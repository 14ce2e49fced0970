"""status, list, ps, completeness."""

import json
from collections.abc import Callable
from pathlib import Path

from tests.rv.conftest import IDLE, MODEL, Ended, models
from tests.rv.fake import FakeServer, error_answer, json_answer

Rv = Callable[..., Ended]
FAILED = {**IDLE, "model_id": "bad", "state": "failed", "last_error": "no such file", "restarts": 3}


def test_status(rv: Rv, fake: FakeServer) -> None:
    fake.add("GET /readyz", json_answer({"models": [{"model": "bad", "state": "failed", "error": "no file"}]}, 503))
    fake.add("GET /v1/admin/models", models(MODEL, IDLE, FAILED))
    done = rv("status", host=fake)
    assert done.code == 0
    for words in (
        fake.url,
        "not ready",
        "0.0.9 (abc)",
        "4711, up 1 h 6 min",
        "3 registered: 1 ready, 1 not loaded, 1 failed",
        "2 running, 1 waiting",
        "gpu0    3.0 GiB  5.0 GiB  8.0 GiB  driver",
        "no file",
    ):
        assert words in done.out, words
    value = rv("status", "--json", host=fake).json
    assert value["url"] == fake.url
    assert (value["ready"], value["version"]) == (False, "0.0.9")
    assert value["models"] == {"ready": 1, "not_loaded": 1, "failed": 1}
    assert value["server"]["pid"] == 4711
    assert value["background"] is None


def test_status_tells_what_everybody_may_know_and_then_fails(rv: Rv, fake: FakeServer) -> None:
    fake.add("GET /readyz", {"models": []})
    fake.add("GET /v1/admin/models", error_answer(403, "This key may not.", "insufficient_scope"))
    done = rv("status", host=fake)
    assert done.code == 1
    assert "0.0.9 (abc)" in done.out
    assert "an admin key is needed" in done.err


def test_list(rv: Rv, fake: FakeServer) -> None:
    fake.add(
        "GET /v1/admin/models", models(MODEL, IDLE, FAILED, {**IDLE, "model_id": "p", "pinned": True, "restarts": 1})
    )
    done = rv("list", host=fake)
    assert [line.split() for line in done.out.splitlines()] == [
        ["MODEL", "KIND", "STATE", "DEVICE", "LOAD", "PRIORITY", "NOTES"],
        ["qwen", "text_gen", "ready", "GPU", "eager", "0"],
        ["phi", "text_gen", "not_loaded", "–", "eager", "0"],
        ["bad", "text_gen", "failed", "–", "eager", "0", "no", "such", "file"],
        ["p", "text_gen", "not_loaded", "–", "eager", "0", "pinned,", "1", "restart"],
    ]
    value = rv("list", "--json", host=fake).json
    assert [model["model_id"] for model in value["models"]] == ["qwen", "phi", "bad", "p"]
    assert value["unregistered"] == []


def test_list_names_models_that_lie_there_unregistered(rv: Rv, fake: FakeServer, home: Path) -> None:
    fake.add("GET /v1/admin/models", models(MODEL))
    for name in ("qwen", "other", "notes"):
        (home / "m" / name).mkdir(parents=True)
    for name in ("qwen", "other"):
        (home / "m" / name / "openvino_model.xml").touch()
    port = int(fake.url.rpartition(":")[2])
    (home / "config.json").write_text(json.dumps({"models_dir": "m", "port": port}))
    done = rv("list")
    assert "not registered: other" in done.err
    assert rv("list", "--json").json["unregistered"] == ["other"]


def test_ps_shows_only_what_is_loaded(rv: Rv, fake: FakeServer) -> None:
    fake.add("GET /v1/admin/models", models(MODEL, IDLE, {**FAILED, "idle_secs": 90.0}))
    lines = rv("ps", host=fake).out.splitlines()
    assert lines[0].split("  ")[0] == "MODEL"
    assert lines[1].split() == ["qwen", "ready", "GPU", "4.0", "GiB", "1.0", "GiB", "12", "%", "2", "1", "–"]
    assert lines[2].split() == ["bad", "failed", "–", "–", "–", "–", "0", "0", "1", "min", "30", "s"]
    assert [model["model_id"] for model in rv("ps", "--json", host=fake).json["models"]] == ["qwen", "bad"]
    fake.add("GET /v1/admin/models", models(IDLE))
    done = rv("ps", host=fake)
    assert (done.out, done.err) == ("", "no model is loaded\n")


def test_completeness_fails_when_files_are_missing(rv: Rv, fake: FakeServer) -> None:
    entry = {"model_id": "qwen", "complete": True, "kind": "text_gen", "missing": [], "problem": None}
    fake.add("GET /v1/admin/models/completeness", {"complete": True, "models": [entry]})
    assert rv("completeness", host=fake).code == 0
    broken = {**entry, "complete": False, "missing": ["x.bin"], "problem": "missing: x.bin"}
    fake.add("GET /v1/admin/models/completeness", {"complete": False, "models": [entry, broken]})
    done = rv("completeness", host=fake)
    assert done.code == 1
    assert "missing: x.bin" in done.out


def test_completeness_of_files_here_needs_no_server(rv: Rv, home: Path) -> None:
    (home / "models" / "empty").mkdir(parents=True)
    settings = {"models_dir": "models", "device": "CPU", "total_vram_gb": 0, "port": 1, "models": {"empty": {}}}
    (home / "config.json").write_text(json.dumps(settings))
    for arguments in (["completeness", "--json"], ["completeness", "--json", "--local"]):
        done = rv(*arguments)
        assert done.code == 1
        assert done.json["models"][0]["problem"] == "config.json is missing"
    assert "looking at the files of this machine" in rv("completeness").err
    assert rv("completeness", "--local", "--host", "x").code == 2
    assert rv("completeness", "--host", "127.0.0.1:1").code == 3
