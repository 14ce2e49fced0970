"""Running rv: in this process against a fake, as a process against a real server, in a terminal."""

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from rustedvino.rv.main import main
from tests.rv.fake import FakeServer
from tests.rv.terminal import Terminal

RV: Final = (sys.executable, "-m", "rustedvino.rv.main")
RUN_SECS: Final = 120.0


class Ended(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, with a home of its own and nothing of ours in the environment."""
    for name in list(os.environ):
        if name.startswith(("RUSTEDVINO_", "XDG_", "HF_")) or name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("APPDATA", str(tmp_path / "home"))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "home"))
    monkeypatch.setenv("TERM", "xterm-256color")
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def fake() -> Iterator[FakeServer]:
    with FakeServer() as server:
        server.add("GET /health", {"status": "ok", "version": "0.0.9", "git_hash": "abc"})
        yield server


@pytest.fixture
def rv(home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ended]:
    """Run a command here and now: ``rv("list", "--json")``; ``host`` is where its server is."""

    def run(*arguments: str, host: FakeServer | None = None, text: str = "") -> Ended:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        capsys.readouterr()
        code = main([*arguments, *(["--host", host.url] if host is not None else [])])
        out, err = capsys.readouterr()
        return Ended(code, out, err)

    return run


@pytest.fixture
def rv_process(home: Path) -> Callable[..., Ended]:
    """Run a command as a process."""

    def run(*arguments: str, text: str = "", environment: Mapping[str, str] | None = None) -> Ended:
        done = subprocess.run(
            [*RV, *arguments],
            input=text,
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=RUN_SECS,
            cwd=home,
            env={**os.environ, **(environment or {})},
            check=False,
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def terminal(home: Path) -> Callable[..., Terminal]:
    """Run a command in a terminal."""

    def run(*arguments: str, columns: int = 80, rows: int = 30, **environment: str) -> Terminal:
        return Terminal(
            [*RV, *arguments], environment={**os.environ, **environment}, cwd=home, columns=columns, rows=rows
        )

    return run


MODEL: Final[dict[str, Any]] = {
    "model_id": "qwen",
    "kind": "text_gen",
    "state": "ready",
    "device": "GPU",
    "load": "eager",
    "pinned": False,
    "priority": 0,
    "evictable": True,
    "settings": {},
    "memory": {"charged": {"gpu0": 3 * 2**30, "system_ram": 2**30}},
    "kv_cache": {"pool_tokens": 1024, "pool_bytes": 2**30, "reserved_tokens": 0, "used_percent": 12.5},
    "running": 2,
    "waiting": 1,
    "idle_secs": 0.0,
    "worker_pid": 5,
    "load_secs": 8.0,
    "restarts": 0,
    "tokens_generated": 100,
    "last_error": None,
}
IDLE: Final[dict[str, Any]] = {
    **MODEL,
    "model_id": "phi",
    "state": "not_loaded",
    "device": None,
    "memory": None,
    "kv_cache": None,
    "running": 0,
    "waiting": 0,
    "idle_secs": None,
    "load_secs": None,
}


def models(*entries: dict[str, Any]) -> dict[str, Any]:
    """What GET /v1/admin/models answers."""
    server = {
        "pid": 4711,
        "uptime_secs": 4000.0,
        "engine": "openvino_genai",
        "openvino_version": "2026.4",
        "engine_version": "2026.4",
        "gpu_poisoned": None,
        "memory": {
            "gpu0": {
                "budget_bytes": 8 * 2**30,
                "used_bytes": 3 * 2**30,
                "free_bytes": 5 * 2**30,
                "over_bytes": 0,
                "reported_bytes": 8 * 2**30,
                "source": "driver",
            }
        },
    }
    return {"object": "list", "server": server, "models": list(entries)}
