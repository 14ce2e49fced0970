"""rv against a real server: what it sends is understood, what it shows is there."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.rv.conftest import Ended
from tests.rv.terminal import Terminal
from tests.support.server import F32, ServerProcess

Rv = Callable[..., Ended]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("real")
    (folder / "config.keys.json").write_text(
        json.dumps({"api_keys": ["user-key-123"], "admin_api_keys": ["admin-key-1"]})
    )
    (folder / "config.keys.json").chmod(0o600)
    models = {"rv-demo": F32, "tiny-qwen3": {**F32, "load": "on_demand", "kv_cache_gb": 0.05}}
    settings = {"num_threads": 1, "spare_workers": 0, "shutdown_drain_secs": 1}
    voice = {"llm_model": "rv-demo"}
    with ServerProcess.serving(folder, models, realtime_defaults=voice, **settings) as process:
        process.wait_log("model rv-demo is ready", 120)
        yield process


@pytest.fixture
def ask(rv: Rv, server: ServerProcess, monkeypatch: pytest.MonkeyPatch) -> Rv:
    monkeypatch.setenv("RUSTEDVINO_HOST", f"127.0.0.1:{server.port}")
    monkeypatch.setenv("RUSTEDVINO_KEY", "admin-key-1")
    return rv


def test_looking(ask: Rv, server: ServerProcess) -> None:
    assert ask("status").code == 0
    status = ask("status", "--json").json
    assert (status["ready"], status["server"]["pid"]) == (True, server.pid)
    listed = ask("list", "--json").json["models"]
    assert {model["model_id"] for model in listed} == {"rv-demo", "tiny-qwen3"}
    assert ask("ps").out.splitlines()[1].startswith("rv-demo")
    assert ask("completeness").code == 0
    assert ask("top", "--json", "--interval", "0.2").json["models"]
    assert "rv-demo" in ask("logs", "-n", "500").out
    assert ask("version", "--json").json["server"]["version"]


def test_keys(ask: Rv) -> None:
    wrong = ask("ps", "--key", "nonsense-key")
    assert (wrong.code, "the key from --key was sent" in wrong.err) == (1, True)
    user = ask("ps", "--key", "user-key-123")
    assert (user.code, "an admin key is needed" in user.err) == (1, True)
    status = ask("status", "--key", "user-key-123")
    assert (status.code, "version" in status.out) == (1, True)
    assert ask("reload-keys").code == 0
    assert ask("chat", "--key", "user-key-123", "-p", "Who are you?", "--temperature", "0").code == 0


def test_a_models_life(ask: Rv) -> None:
    assert ask("check", "tiny-qwen3").code == 0
    small, large = (ask("check", "tiny-qwen3", "--kv-cache-gb", size, "--json").json for size in ("0.125", "0.25"))
    assert large["kv_pool_bytes"] == 2 * small["kv_pool_bytes"]
    done = ask("check", "tiny-qwen3", "--kv-cache-gb", "0.000001")
    assert (done.code, "at least 16 are needed" in done.err) == (1, True)
    done = ask("load", "tiny-qwen3")
    assert done.code == 0, done.err
    assert re.match(r"tiny-qwen3 is ready \(on CPU, in ", done.out)
    done = ask("load", "tiny-qwen3", "--kv-cache-gb", "0.1")
    assert (done.code, "resize" in done.err) == (1, True)
    assert ask("resize", "tiny-qwen3", "0.1").code == 2
    done = ask("resize", "tiny-qwen3", "0.1", "-y")
    assert done.code == 0, done.err
    done = ask("resize", "tiny-qwen3", "0.05", "-y")
    assert (done.code, "try again in" in done.err) == (1, True)
    done = ask("patch", "tiny-qwen3", "pinned=true", "kv_cache_gb=0.2", "priority=0")
    assert done.out == "pinned: in effect\nkv_cache_gb: from its next load on\npriority: unchanged\n"
    done = ask("patch", "tiny-qwen3", "pined=true")
    assert (done.code, "did you mean 'pinned'" in done.err) == (1, True)
    assert ask("save-defaults").out.startswith("saved: rv-demo and tiny-qwen3 will be loaded")
    assert ask("unload", "tiny-qwen3", "-y").code == 0
    assert ask("unload", "tiny-qwen3", "-y").code == 1
    assert ask("preload", "rv-demo").code == 0
    assert ask("deregister", "tiny-qwen3", "-y").code == 0
    assert "did you mean" not in ask("load", "tiny-qwen3").out
    done = ask("add", "tiny-qwen3", "kv_cache_gb=0.05", "--on-demand")
    assert (done.code, done.out) == (0, "tiny-qwen3 is registered; its first request loads it\n")
    assert ask("reload-config").code == 0
    done = ask("add", "no-such-model")
    assert (done.code, "no-such-model" in done.err) == (1, True)


def test_voice(ask: Rv) -> None:
    pin = ask("voice-pin")
    assert pin.code == 0, pin.err
    assert pin.out.startswith(
        "configured: yes\nready: yes\nmodels:\n  stt_model: –\n  llm_model:\n    model_id: rv-demo"
    )
    shown = ask("voice-pin", "--json").json["models"]["llm_model"]
    assert (shown["registered"], shown["pinned"], shown["state"]) == (True, False, "ready")
    none = ask("sessions")
    assert (none.code, none.out, none.err) == (0, "", "no voice session is open\n")
    assert ask("sessions", "--json").json == {"object": "list", "sessions": []}
    for arguments in (["session", "sess_1"], ["session-kill", "sess_1", "-y"]):
        done = ask(*arguments)
        assert (done.code, "there is no open voice session 'sess_1'" in done.err) == (1, True)


def test_a_chat(ask: Rv, terminal: Callable[..., Terminal], server: ServerProcess, home: Path) -> None:
    done = ask("chat", "rv-demo", "--temperature", "0", text="Who are you?")
    assert done.code == 0
    assert "rv-demo" in done.out
    with terminal("chat", "rv-demo", "--temperature", "0") as shell:
        shell.expect(">>> ")
        shell.type("Who are you?\n")
        shell.expect(r"\d+ tokens, \d+\.\d tokens/s")
        shell.type("/model tiny-qwen3\n")
        shell.expect("talking to tiny-qwen3")
        shell.type("Count for ever.\n")  # it loads on demand, and tiny models babble
        shell.expect(r"tokens|\(cancelled\)")
        shell.type("/quit\n")
        assert shell.end() == 0


def test_a_cancelled_answer_frees_its_slot(ask: Rv, terminal: Callable[..., Terminal], server: ServerProcess) -> None:
    with terminal("chat", "tiny-qwen3", "--max-tokens", "8000") as shell:
        shell.expect(">>> ")
        shell.type("babble\n")
        shell.expect(r"babble\s+[-\\|/]*\s*\S")
        shell.interrupt()
        shell.expect(r"\(cancelled\)|tokens/s")
        server.wait_for(
            lambda: all(model["running"] == 0 for model in ask("list", "--json").json["models"]), "an idle server", 30
        )
        shell.type("/quit\n")
        assert shell.end() == 0
