"""The registry and its config file, changed over HTTP."""

import json
import os
import shutil
import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.answers import completion_body, expect_error, expect_ok
from tests.support.server import ServerProcess, model_source, write_config

OPTIONS: dict[str, Any] = {"num_threads": 1, "spare_workers": 0, "min_kv_cache_gb": 0.01}
LAZY: dict[str, Any] = {"load": "on_demand", "kv_cache_gb": 0.05}
READY, OTHER, SPARE = "tiny-qwen3", "tiny-llama3", "tiny-mistral"


def serving(folder: Path, models: Any, **options: Any) -> ServerProcess:
    return ServerProcess.serving(folder, models, **{**OPTIONS, **options})


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server of one loaded model and one that is not, in a folder of its own."""
    folder = tmp_path_factory.mktemp("admin") / "config"
    folder.mkdir()
    models: Any = {READY: {"kv_cache_gb": 0.05, "_note": "kept"}, OTHER: LAZY}
    with serving(folder, models, **{"//": "a comment"}) as server:
        (folder / "models" / SPARE).symlink_to(model_source(SPARE), target_is_directory=True)
        yield server.wait_states({READY: "ready"})


@pytest.fixture
def server(shared: ServerProcess) -> Iterator[ServerProcess]:
    """The shared server; its file is put back and applied afterwards."""
    path = config_path(shared)
    before = path.read_bytes()
    yield shared
    path.chmod(0o644)
    path.write_bytes(before)
    expect_ok(shared.client.post("/v1/admin/config/reload"))
    assert expect_ok(shared.client.get("/v1/admin/config/audit"))["in_sync"]


def config_path(server: ServerProcess) -> Path:
    return Path(server.arguments[server.arguments.index("--config") + 1])


def saved(server: ServerProcess) -> dict[str, Any]:
    return json.loads(config_path(server).read_text())


def save(server: ServerProcess, content: dict[str, Any]) -> None:
    config_path(server).write_text(json.dumps(content, indent=2))


def views(server: ServerProcess) -> dict[str, dict[str, Any]]:
    return {entry["model_id"]: entry for entry in expect_ok(server.client.get("/v1/admin/models"))["models"]}


def patch(server: ServerProcess, model: str, **fields: Any) -> httpx.Response:
    return server.client.patch(f"/v1/admin/models/{model}", json=fields)


def created(reply: httpx.Response) -> dict[str, Any]:
    assert reply.status_code == 201, reply.text
    return reply.json()


def test_the_life_of_a_model(tmp_path: Path) -> None:
    with serving(tmp_path, {READY: LAZY}) as server:
        (tmp_path / "models" / OTHER).symlink_to(model_source(OTHER), target_is_directory=True)
        added = created(server.post("/v1/admin/models", {"model_id": OTHER, "kv_cache_gb": 0.05, "priority": 2}))
        assert (added["state"], added["kind"], added["priority"]) == ("ready", "text_gen", 2)
        assert added["settings"] == {"kv_cache_gb": 0.05, "priority": 2}
        assert added["kv_cache"]["pool_tokens"] > 0
        assert added["memory"]["reserved"]["system_ram"] > 0
        assert added["worker_pid"] in server.workers()
        expect_ok(server.post("/v1/completions", completion_body(OTHER, "x", max_tokens=2)))
        assert [card["id"] for card in expect_ok(server.client.get("/v1/models"))["data"]] == [READY, OTHER]
        error = expect_error(server.post("/v1/admin/models", {"model_id": OTHER}), 409, "model_exists")
        assert OTHER in error["message"]

        changed = expect_ok(patch(server, OTHER, priority=None, max_concurrent_streams=1, vram_gb=0.1, pinned=False))
        assert changed["live"] == ["priority", "max_concurrent_streams"]
        assert changed["next_load"] == ["vram_gb"]
        assert changed["unchanged"] == ["pinned"]
        entry = {"kv_cache_gb": 0.05, "max_concurrent_streams": 1, "vram_gb": 0.1, "pinned": False}
        assert saved(server)["models"] == {READY: LAZY, OTHER: entry}
        two = completion_body(OTHER, "x", max_tokens=2, n=2)
        assert "at most 1" in expect_error(server.post("/v1/completions", two), 400)["message"]

        gone = expect_ok(server.client.delete(f"/v1/admin/models/{OTHER}"))
        assert (gone["state"], gone["worker_pid"], gone["memory"]) == ("not_loaded", None, None)
        assert added["worker_pid"] not in server.workers()
        expect_error(server.client.delete(f"/v1/admin/models/{OTHER}"), 409, "model_not_loaded")
        again = expect_ok(server.client.post(f"/v1/admin/models/{OTHER}/load"))
        assert again["memory"]["reserved"]["system_ram"] > added["memory"]["reserved"]["system_ram"]

        sized = server.post(f"/v1/admin/models/{OTHER}/load", {"kv_cache_gb": 0.02})
        expect_error(sized, 409, "model_loaded")
        expect_ok(server.client.delete(f"/v1/admin/models/{OTHER}"))
        small = expect_ok(server.post(f"/v1/admin/models/{OTHER}/load", {"kv_cache_gb": 0.02}))
        assert 0 < small["kv_cache"]["pool_bytes"] <= 0.02 * 2**30

        expect_ok(server.post("/v1/admin/config/preload", {"model_ids": [READY, OTHER]}))
        assert saved(server)["preload"] == [READY, OTHER]
        expect_ok(server.client.delete(f"/v1/admin/models/{OTHER}/register"))
        assert (saved(server)["models"], saved(server)["preload"]) == ({READY: LAZY}, [READY])
        for method, path in (("DELETE", ""), ("POST", "/load"), ("POST", "/check"), ("DELETE", "/register")):
            reply = server.client.request(method, f"/v1/admin/models/{OTHER}{path}")
            expect_error(reply, 404, "model_not_found")
        expect_error(server.post("/v1/completions", completion_body(OTHER, "x")), 404, "model_not_found")
        assert expect_ok(server.client.get("/v1/admin/config/audit"))["in_sync"]
        assert server.workers() == [] or small["worker_pid"] not in server.workers()


def test_what_was_saved_is_there_after_a_restart(tmp_path: Path) -> None:
    with serving(tmp_path, {READY: LAZY, OTHER: LAZY}) as server:
        expect_ok(patch(server, READY, priority=4, capabilities=["a", "b"], plugin_config={"NUM_STREAMS": 1}))
        expect_ok(server.client.delete(f"/v1/admin/models/{OTHER}/register"))
        before = views(server)
    with ServerProcess("--config", tmp_path / "config.json", "--port", "0", cwd=tmp_path) as server:
        after = views(server)
        assert {model: entry["settings"] for model, entry in after.items()} == {READY: before[READY]["settings"]}


def test_the_server_and_its_models(shared: ServerProcess) -> None:
    answer = expect_ok(shared.client.get("/v1/admin/models"))
    about = answer["server"]
    assert (about["pid"], about["engine"], about["gpu_poisoned"]) == (shared.pid, "openvino_genai", None)
    assert about["uptime_secs"] > 0
    assert about["openvino_version"].startswith("2026")
    ready, other = answer["models"]
    assert about["memory"]["system_ram"]["used_bytes"] > ready["memory"]["charged"]["system_ram"]
    assert (ready["model_id"], ready["state"], ready["kind"]) == (READY, "ready", "text_gen")
    assert ready["worker_pid"] in shared.workers()
    assert (other["state"], other["memory"], other["kv_cache"], other["load_secs"]) == ("not_loaded", None, None, None)


class TestLoad:
    def begin(self, server: ServerProcess, pool: ThreadPoolExecutor) -> Future[httpx.Response]:
        future = pool.submit(httpx.post, f"{server.url}/v1/admin/models/{OTHER}/load", timeout=60, trust_env=False)
        server.wait_states({OTHER: "loading"})
        return future

    def test_it_ends_when_its_client_leaves(self, server: ServerProcess) -> None:
        head = f"POST /v1/admin/models/{OTHER}/load HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 0\r\n\r\n"
        with socket.create_connection(("127.0.0.1", server.port), 30) as connection:
            connection.sendall(head.encode())
            server.wait_states({OTHER: "loading"})
        server.wait_states({OTHER: "not_loaded"})
        server.wait_log(f"the load of {OTHER} is given up")
        server.wait_for(lambda: len(server.workers()) <= 2, "the end of the worker", 10)

    def test_an_evict_ends_it(self, server: ServerProcess) -> None:
        with ThreadPoolExecutor(1) as pool:
            load = self.begin(server, pool)
            expect_ok(server.client.delete(f"/v1/admin/models/{OTHER}"))
            reply = load.result(60)
        expect_error(reply, 503, "model_unloading")
        assert views(server)[OTHER]["state"] == "not_loaded"

    def test_a_deregistration_ends_it(self, server: ServerProcess) -> None:
        with ThreadPoolExecutor(1) as pool:
            load = self.begin(server, pool)
            expect_ok(server.client.delete(f"/v1/admin/models/{OTHER}/register"))
            expect_error(load.result(60), 404, "model_not_found")
        assert OTHER not in views(server)

    def test_one_serves_all_who_ask(self, server: ServerProcess) -> None:
        with ThreadPoolExecutor(4) as pool:
            path = f"{server.url}/v1/admin/models/{OTHER}/load"
            replies = list(pool.map(lambda _: httpx.post(path, timeout=60, trust_env=False), range(4)))
        assert len({expect_ok(reply)["worker_pid"] for reply in replies}) == 1
        expect_ok(server.client.delete(f"/v1/admin/models/{OTHER}"))

    def test_a_pool_too_small_to_work_with(self, server: ServerProcess) -> None:
        error = expect_error(server.post(f"/v1/admin/models/{OTHER}/load", {"kv_cache_gb": 0.00001}), 400)
        assert error["param"] == "kv_cache_gb"
        assert views(server)[OTHER]["state"] == "not_loaded"
        error = expect_error(server.post(f"/v1/admin/models/{READY}/resize", {"kv_cache_gb": 0.00001}), 400)
        assert error["param"] == "kv_cache_gb"
        assert views(server)[READY]["state"] == "ready"


class TestPatch:
    def test_many_at_once(self, server: ServerProcess) -> None:
        fields: list[dict[str, Any]] = [
            {"priority": 9},
            {"pinned": True},
            {"evictable": False},
            {"capabilities": ["x"]},
            {"eviction_grace_secs": 4},
            {"idle_unload_secs": 900},
            {"repetition_penalty": 1.5},
            {"vram_gb": 0.2},
        ]
        with ThreadPoolExecutor(8) as pool:
            for model in (READY, OTHER):
                replies = list(pool.map(lambda change, model=model: patch(server, model, **change), fields))
                assert [reply.status_code for reply in replies] == [200] * len(fields)
        wanted = {name: value for change in fields for name, value in change.items()}
        models = saved(server)["models"]
        assert models[READY] == {"kv_cache_gb": 0.05, "_note": "kept"} | wanted
        assert models[OTHER] == LAZY | wanted
        assert saved(server)["//"] == "a comment"
        assert all(wanted.items() <= views(server)[model]["settings"].items() for model in (READY, OTHER))

    def test_null_takes_a_field_back_to_its_default(self, server: ServerProcess) -> None:
        expect_ok(patch(server, OTHER, priority=3, tier_preference=["heavy"]))
        answer = expect_ok(patch(server, OTHER, priority=None, tier_preference=None, pinned=None))
        assert answer["settings"] == LAZY
        assert saved(server)["models"][OTHER] == LAZY

    @pytest.mark.parametrize(
        ("body", "param"),
        [
            ({}, None),
            ({"prioriti": 1}, "prioriti"),
            ({"kind": "embedding"}, "kind"),
            ({"kind": None}, "kind"),
            ({"priority": "1"}, "priority"),
            ({"priority": 1, "pinned": 0}, "pinned"),
            ({"device": "TPU"}, "device"),
            ({"device": "GPU.7"}, "device"),
            ({"speculative": {"draft_model": "../x"}}, "speculative.draft_model"),
            ({"speculative": {"draft_model": SPARE, "draft_device": "NPU"}}, "speculative.draft_device"),
            ({"plugin_config": {"CACHE_DIR": "/tmp/x"}}, "plugin_config.CACHE_DIR"),
            ({"plugin_config": {"EXTENSIONS": "/tmp/x.so"}}, "plugin_config.EXTENSIONS"),
            ({"plugin_config": {"CONFIG_FILE": "x"}}, "plugin_config.CONFIG_FILE"),
            ({"plugin_config": {"GPU_CONFIG_FILE": "x"}}, "plugin_config.GPU_CONFIG_FILE"),
            ({"plugin_config": {"WEIGHTS_PATH": "x"}}, "plugin_config.WEIGHTS_PATH"),
            ({"plugin_config": {"NUM_STREAMS": {"a": 1}}}, "plugin_config.NUM_STREAMS"),
            ({"chat_template": "/etc/passwd"}, "chat_template"),
            ({"chat_template": "../secret.jinja"}, "chat_template"),
            ({"chat_template": "models/../../secret.jinja"}, "chat_template"),
            ({"chat_template": "link.jinja"}, "chat_template"),
            ({"chat_template": "models/folder-link/secret.jinja"}, "chat_template"),
            ({"chat_template": "missing.jinja"}, "chat_template"),
            ({"chat_template": "models"}, "chat_template"),
            ({"chat_template": "pipe"}, "chat_template"),
            ({"chat_template": "a\u0000b"}, "chat_template"),
            ({"chat_template": "/dev/stdin"}, "chat_template"),
        ],
        ids=lambda value: None if value is None else json.dumps(value)[:50],
    )
    def test_what_is_wrong_is_named_and_changes_nothing(
        self, server: ServerProcess, body: dict[str, Any], param: str | None
    ) -> None:
        folder = config_path(server).parent
        (folder.parent / "secret.jinja").write_text("secret")
        for link, target in (("link.jinja", "../secret.jinja"), ("models/folder-link", "../..")):
            if not (folder / link).is_symlink():
                (folder / link).symlink_to(target)
        if not (folder / "pipe").exists():
            os.mkfifo(folder / "pipe")
        before, settings = config_path(server).read_bytes(), views(server)[OTHER]["settings"]
        for reply in (
            server.client.patch(f"/v1/admin/models/{OTHER}", json=body),
            server.post("/v1/admin/models", {"model_id": SPARE, **body, "load": "on_demand"}),
        ):
            if reply.request.method == "POST" and body in ({}, {"kind": None}):
                expect_ok(server.client.delete(f"/v1/admin/models/{SPARE}/register"))  # fine for a new model
                continue
            assert expect_error(reply, 400)["param"] == param
        assert json.loads(config_path(server).read_bytes()) == json.loads(before)
        assert views(server)[OTHER]["settings"] == settings

    def test_a_template_of_the_configs_folder_is_fine(self, server: ServerProcess) -> None:
        (config_path(server).parent / "own.jinja").write_text("{{ messages[0].content }}")
        answer = expect_ok(patch(server, READY, chat_template="own.jinja"))
        assert answer["next_load"] == ["chat_template"]
        assert saved(server)["models"][READY]["chat_template"] == "own.jinja"

    def test_a_failed_model_gets_another_chance(self, server: ServerProcess) -> None:
        folder = config_path(server).parent / "models"
        (folder / "mended").mkdir()
        content = saved(server)
        content["models"]["mended"] = {"kv_cache_gb": 0.05}
        save(server, content)
        report = expect_ok(server.client.post("/v1/admin/config/reload"))
        assert report["added"] == ["mended"]
        server.wait_states({"mended": "failed"})
        incomplete = expect_ok(server.client.get("/v1/admin/models/completeness"))
        assert incomplete["complete"] is False
        assert [entry["model_id"] for entry in incomplete["models"] if not entry["complete"]] == ["mended"]
        error = expect_error(server.client.post("/v1/admin/models/mended/check"), 409, "model_unusable")
        assert "config.json" in error["message"]
        expect_error(server.client.post("/v1/admin/models/mended/load"), 503, "model_failed")
        shutil.copytree(model_source(SPARE), folder / "mended", dirs_exist_ok=True)
        expect_ok(patch(server, "mended", priority=1))
        server.wait_states({"mended": "ready"})
        expect_ok(server.client.delete("/v1/admin/models/mended/register"))


class TestAdd:
    @pytest.mark.parametrize(
        ("body", "param"),
        [
            ({}, "model_id"),
            ({"model_id": "no-such-folder"}, "model_id"),
            ({"model_id": 5}, "model_id"),
            ({"model_id": SPARE, "typo": 1}, "typo"),
            ({"model_id": SPARE, "kind": "stt"}, "kind"),
            *(({"model_id": name}, "model_id") for name in ("", "..", ".", "a/b", "a\\b", "C:", "a\u0000b", "x" * 256)),
        ],
    )
    def test_bad_ones(self, server: ServerProcess, body: dict[str, Any], param: str) -> None:
        before = config_path(server).read_bytes()
        assert expect_error(server.post("/v1/admin/models/add", body), 400)["param"] == param
        assert config_path(server).read_bytes() == before
        assert set(views(server)) == {READY, OTHER}

    def test_an_entry_that_waits_in_the_file_is_not_overwritten(self, server: ServerProcess) -> None:
        content = saved(server)
        content["models"][SPARE] = {"priority": 8}
        save(server, content)
        expect_error(server.post("/v1/admin/models", {"model_id": SPARE, **LAZY}), 409, "model_exists")
        assert saved(server) == content
        assert set(views(server)) == {READY, OTHER}

    def test_not_json(self, server: ServerProcess) -> None:
        expect_error(server.client.post("/v1/admin/models", content=b"x=1"), 415)
        expect_error(server.client.post(f"/v1/admin/models/{OTHER}/load", content=b"x=1"), 415)


class TestIds:
    @pytest.mark.parametrize(
        "encoded", ["a%2Fb", "%2e%2e", "%2E%2E%2F%2E%2E", "%2Fetc", "a%5Cb", "%00", "a%00b", "C%3A", "c:x", "x" * 256]
    )
    @pytest.mark.parametrize(
        ("method", "suffix", "body"),
        [
            ("PATCH", "", {"priority": 1}),
            ("POST", "/load", None),
            ("POST", "/check", None),
            ("POST", "/resize", {"kv_cache_gb": 1}),
            ("DELETE", "", None),
            ("DELETE", "/register", None),
        ],
    )
    def test_what_is_no_folder_name(
        self, shared: ServerProcess, encoded: str, method: str, suffix: str, body: dict[str, Any] | None
    ) -> None:
        content = b"" if body is None else json.dumps(body).encode()
        kind = "" if body is None else "content-type: application/json\r\n"
        head = f"{method} /v1/admin/models/{encoded}{suffix} HTTP/1.1\r\nhost: localhost\r\n{kind}"
        # by hand: a client library would tidy the path up
        with socket.create_connection(("127.0.0.1", shared.port), 30) as connection:
            connection.sendall(f"{head}content-length: {len(content)}\r\nconnection: close\r\n\r\n".encode() + content)
            answer = b"".join(iter(lambda: connection.recv(65536), b""))
        assert answer.startswith(b"HTTP/1.1 400 "), answer
        error = json.loads(answer.split(b"\r\n\r\n", 1)[1])["error"]
        assert error["param"] == "model_id"
        assert "a model id must" in error["message"]

    @pytest.mark.parametrize("name", ["add", "completeness", "load", "register", "%C3%A9", "%ff"])
    def test_names_of_routes_are_ids_like_others(self, shared: ServerProcess, name: str) -> None:
        for method, suffix in (("POST", "/load"), ("DELETE", ""), ("DELETE", "/register")):
            reply = shared.client.request(method, f"/v1/admin/models/{name}{suffix}")
            expect_error(reply, 404, "model_not_found")


class TestFile:
    @pytest.fixture
    def read_only(self, server: ServerProcess) -> bytes:
        config_path(server).chmod(0o444)
        return config_path(server).read_bytes()

    def test_a_read_only_file_stops_every_change(self, server: ServerProcess, read_only: bytes) -> None:
        before = views(server)
        replies = [
            patch(server, READY, priority=77),
            server.post("/v1/admin/models", {"model_id": SPARE, **LAZY}),
            server.client.delete(f"/v1/admin/models/{OTHER}/register"),
            server.post("/v1/admin/config/preload", {"from_live": True}),
        ]
        for reply in replies:
            error = expect_error(reply, 409, "config_not_writable")
            assert str(config_path(server)) in error["message"]
            assert "read-only" in error["message"]
        after = views(server)
        assert list(after) == list(before)
        assert all(after[model]["settings"] == before[model]["settings"] for model in before)
        assert config_path(server).read_bytes() == read_only
        assert [path.name for path in config_path(server).parent.iterdir() if path.suffix == ".tmp"] == []

    def test_a_broken_file_stops_every_change(self, server: ServerProcess) -> None:
        config_path(server).write_text('{"models": ')
        for reply in (
            patch(server, READY, priority=77),
            server.client.delete(f"/v1/admin/models/{OTHER}/register"),
            server.client.post("/v1/admin/config/reload"),
        ):
            assert reply.status_code == 409
            assert reply.json()["error"]["code"] == "config_invalid"
            assert str(config_path(server)) in reply.json()["error"]["message"]
            assert "not JSON" in reply.json()["details"]["problems"][0]["message"]
        assert config_path(server).read_text() == '{"models": '
        assert views(server)[READY]["priority"] == 0
        audit = expect_ok(server.client.get("/v1/admin/config/audit"))
        assert (audit["in_sync"], len(audit["problems"])) == (False, 1)

    def test_edits_that_were_not_applied_survive_a_patch(self, server: ServerProcess) -> None:
        content = saved(server)
        content["models"][READY]["priority"] = 5
        content["models"][SPARE] = LAZY
        content["max_queue_depth"] = 7
        save(server, content)
        expect_ok(patch(server, READY, pinned=True))
        content["models"][READY]["pinned"] = True
        assert saved(server) == content
        assert views(server)[READY]["settings"] == {"kv_cache_gb": 0.05, "pinned": True}
        audit = expect_ok(server.client.get("/v1/admin/config/audit"))
        assert audit["in_sync"] is False
        assert audit["only_in_file"] == [SPARE]
        assert audit["differing"] == [{"model_id": READY, "fields": ["priority"]}]
        assert audit["next_start"] == ["max_queue_depth"]

    def test_a_reload_applies_what_disturbs_nobody(self, server: ServerProcess) -> None:
        pid = views(server)[READY]["worker_pid"]
        content = saved(server)
        content["models"] = {
            READY: {"kv_cache_gb": 0.06, "priority": 5, "_note": "other"},
            SPARE: LAZY,
            "elsewhere": {"device": "GPU.3", "load": "on_demand"},
        }
        content["max_queue_depth"] = 7
        save(server, content)
        report = expect_ok(server.client.post("/v1/admin/config/reload"))
        assert report["added"] == [SPARE]
        assert report["updated"] == [{"model_id": READY, "fields": ["priority"]}]
        assert report["next_load"] == [{"model_id": READY, "fields": ["kv_cache_gb"]}]
        assert report["removed"] == [OTHER]
        assert [entry["model_id"] for entry in report["skipped"]] == ["elsewhere"]
        assert "GPU.3" in report["skipped"][0]["reason"]
        assert report["next_start"] == ["max_queue_depth"]
        assert list(views(server)) == [READY, SPARE]
        assert (views(server)[READY]["priority"], views(server)[READY]["worker_pid"]) == (5, pid)

    def test_a_reload_leaves_a_loaded_model_alone(self, server: ServerProcess) -> None:
        content = saved(server)
        del content["models"][READY]
        save(server, content)
        report = expect_ok(server.client.post("/v1/admin/config/reload"))
        assert report["removed"] == []
        assert [entry["model_id"] for entry in report["skipped"]] == [READY]
        assert views(server)[READY]["state"] == "ready"
        content["models"][READY] = {"kind": "embedding"}
        save(server, content)
        report = expect_ok(server.client.post("/v1/admin/config/reload"))
        assert "kind" in report["skipped"][0]["reason"]
        assert views(server)[READY]["kind"] == "text_gen"

    def test_preload(self, server: ServerProcess) -> None:
        answer = expect_ok(server.post("/v1/admin/config/preload", {"from_live": True}))
        assert answer == {"preload": [READY], "eager": [READY]}
        assert saved(server)["preload"] == [READY]
        assert expect_ok(server.post("/v1/admin/config/preload", {"model_ids": []}))["preload"] == []
        error = expect_error(server.post("/v1/admin/config/preload", {"model_ids": [READY, "nobody"]}), 400)
        assert error["param"] == "model_ids[1]"
        assert saved(server)["preload"] == []

    def test_without_a_file_nothing_can_be_saved(self) -> None:
        with ServerProcess("--demo", "--port", "0") as server:
            error = expect_error(patch(server, "rv-demo", priority=1), 409, "no_config_file")
            assert "without a config file" in error["message"]
            for method, path in (
                ("POST", "config/reload"),
                ("GET", "config/audit"),
                ("DELETE", "models/rv-demo/register"),
            ):
                expect_error(server.client.request(method, f"/v1/admin/{path}"), 409, "no_config_file")
            assert views(server)["rv-demo"]["priority"] == 0


class TestGate:
    @pytest.mark.parametrize(
        ("method", "path"),
        [
            ("GET", "models"),
            ("POST", "models"),
            ("PATCH", f"models/{OTHER}"),
            ("DELETE", f"models/{OTHER}/register"),
            ("GET", "models/completeness"),
            ("POST", "config/reload"),
            ("GET", "config/audit"),
            ("OPTIONS", "models"),
        ],
    )
    def test_a_web_page_is_refused(self, shared: ServerProcess, method: str, path: str) -> None:
        for origin in ("https://evil.example", "null", ""):
            reply = shared.client.request(method, f"/v1/admin/{path}", headers={"origin": origin})
            expect_error(reply, 403, "browser_origin_refused")

    def test_wrong_methods(self, shared: ServerProcess) -> None:
        reply = shared.client.put("/v1/admin/models", json={})
        expect_error(reply, 405)
        assert {"GET", "POST"} <= set(reply.headers["allow"].split(", "))


def test_a_linked_config_stays_linked(tmp_path: Path) -> None:
    real = tmp_path / "real"
    path = write_config(real, {OTHER: LAZY}, **OPTIONS)
    link = tmp_path / "config.json"
    link.symlink_to(path)
    (tmp_path / "models").symlink_to(real / "models", target_is_directory=True)
    with ServerProcess("--config", link, "--port", "0", cwd=tmp_path) as server:
        expect_ok(patch(server, OTHER, priority=3))
    assert link.is_symlink()
    assert json.loads(path.read_text())["models"][OTHER]["priority"] == 3
