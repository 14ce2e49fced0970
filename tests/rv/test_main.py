"""From a command line to an exit code."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rustedvino import __version__
from rustedvino.rv.main import main
from tests.rv.conftest import MODEL, RV, Ended, models
from tests.rv.fake import FakeServer, error_answer

Rv = Callable[..., Ended]


def test_help(rv: Rv) -> None:
    for arguments in (["--help"], ["help"], ["-h"]):
        done = rv(*arguments)
        assert done.code == 0
        assert "usage: rv VERB" in done.out
    assert "usage: rv load" in rv("help", "load").out
    assert "usage: rv load" in rv("load", "--help").out
    assert rv("help", "lod").code == 2


def test_exit_codes(rv: Rv, fake: FakeServer) -> None:
    fake.add("GET /v1/admin/models", models(MODEL))
    assert rv("ps", host=fake).code == 0
    assert rv("check", "qwen", host=fake).code == 1
    assert rv("lst").code == 2
    assert rv("ps", "--host", "127.0.0.1:1").code == 3
    assert rv("ps", "--config", "nope.json").code == 2


def test_errors_are_json_for_scripts(rv: Rv, fake: FakeServer) -> None:
    fake.add("GET /v1/admin/models", error_answer(401, "Incorrect API key.", "invalid_api_key"))
    done = rv("ps", "--json", "--key", "topsecret", host=fake)
    assert done.code == 1
    assert done.json["error"] == {
        "message": "Incorrect API key.",
        "code": "invalid_api_key",
        "hint": "the key from --key was sent",
        "exit_code": 1,
    }
    assert done.json["answer"]["error"]["code"] == "invalid_api_key"
    assert "rv: Incorrect API key." in done.err
    assert "topsecret" not in done.out + done.err


def test_a_misspelt_model_is_suggested(rv: Rv, fake: FakeServer) -> None:
    fake.add("POST /v1/admin/models/qwem/check", error_answer(404, "no model qwem", "model_not_found"))
    fake.add("GET /v1/models", {"data": [{"id": "qwen"}, {"id": "phi"}]})
    assert "did you mean qwen?" in rv("check", "qwem", host=fake).err


def test_version(rv: Rv, fake: FakeServer) -> None:
    assert rv("version", host=fake).out == f"rv      {__version__}\nserver  0.0.9 (abc) at {fake.url}\n"
    assert rv("--version", "--json", host=fake).json["server"] == {
        "url": fake.url,
        "version": "0.0.9",
        "git_hash": "abc",
    }
    alone = rv("version", "--host", "127.0.0.1:1")
    assert (alone.code, "none answers at http://127.0.0.1:1" in alone.out) == (0, True)


def test_version_with_a_config_that_is_broken(rv: Rv, home: Path) -> None:
    (home / "config.json").write_text("{")
    assert rv("version", "--json").json == {"rv": __version__, "server": None}


def test_a_reader_that_leaves_is_no_fault(home: Path) -> None:
    process = subprocess.Popen(
        [*RV, "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=home, text=True, bufsize=0
    )
    assert process.stdout is not None
    process.stdout.close()
    _, err = process.communicate(timeout=60)
    assert err == ""


def test_an_encoding_that_lacks_a_character(rv_process: Rv, fake: FakeServer) -> None:
    fake.add("GET /v1/admin/models", models({**MODEL, "model_id": "żółw", "state": "failed", "last_error": "\ud800"}))
    for arguments in (["list"], ["list", "--json"]):
        done = rv_process(*arguments, "--host", fake.url, environment={"PYTHONIOENCODING": "ascii"})
        assert (done.code, "Traceback" in done.err) == (0, False)


def test_an_interrupt_ends_quietly(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("rustedvino.rv.look.version", interrupted)
    assert main(["version"]) == 130


@pytest.mark.parametrize("arguments", [["version"], ["--help"], ["ps", "--json"], ["list"]])
def test_it_starts_without_what_it_does_not_need(arguments: list[str], home: Path, fake: FakeServer) -> None:
    """What would make the start slow: the runtime, the server's framework, and tables where there is no terminal."""
    fake.add("GET /v1/admin/models", models(MODEL))
    code = (
        "import json, sys; from rustedvino.rv.main import main; main(json.loads(sys.argv[1]));"
        "print(json.dumps(sorted(sys.modules)), file=sys.stderr)"
    )
    given = [*arguments, *([] if "--help" in arguments else ["--host", fake.url])]
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(given)], capture_output=True, text=True, cwd=home, check=True
    )
    loaded = set(json.loads(done.stderr.splitlines()[-1]))
    heavy = {
        "openvino",
        "openvino_genai",
        "trio",
        "quart",
        "attr",
        "numpy",
        "rich",
        "huggingface_hub",
        "subprocess",
        "ssl",
    }
    heavy -= {"ssl"}  # http.client takes it along
    assert "rustedvino.rv.main" in loaded
    assert not heavy & loaded
    if "--help" in arguments:
        assert "http.client" not in loaded
