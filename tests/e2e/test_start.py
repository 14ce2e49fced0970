"""The start of a server and its command line."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

import rustedvino
from rustedvino.server import main
from tests.support.answers import echo_body, expect_error, expect_ok, whole_text
from tests.support.server import ServerProcess, write_config

CHAT = "/v1/chat/completions"
BAD_CONFIG = 2
"""As for wrong usage: a supervisor does not start it again. Everything else that fails is 1."""


def run(*arguments: str | Path, cwd: Path | None = None) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "rustedvino.server", *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def refused(found: "subprocess.CompletedProcess[str]", code: int) -> str:
    """What a start that came to nothing says: on stderr, in its own words."""
    assert found.returncode == code, found
    assert found.stdout == ""
    assert "Traceback" not in found.stderr
    return found.stderr


def test_the_demo_needs_nothing(tmp_path: Path) -> None:
    command = [Path(sys.executable).parent / "rustedvino"]
    with ServerProcess("--demo", "--port", "0", command=command, cwd=tmp_path) as server:
        server.wait_ready()
        assert [card["id"] for card in server.client.get("/v1/models").json()["data"]] == ["rv-demo"]
        assert whole_text(expect_ok(server.post(CHAT, echo_body("482913")))) == "482913"
        body = {"prompt": "Hello"}
        assert expect_ok(server.post("/tokenize", body))["count"] > 0  # the only model need not be named
        server.stop()


def test_health_answers_long_before_any_model(tmp_path: Path) -> None:
    """Counted in the time of its processor, as the machine may do much else. The bound is twice the usual."""
    server = ServerProcess.serving(tmp_path, ["rv-demo", "tiny-qwen3"])
    try:
        server.start().wait_health()
        took_secs = processor_secs(server.pid)
        reply = server.client.get("/readyz")
        assert reply.status_code == 503
        body = reply.json()
        assert {entry["model"] for entry in body["models"]} == {"rv-demo", "tiny-qwen3"}
        # One may wait for the other's load to end.
        assert {entry["state"] for entry in body["models"]} <= {"loading", "not_loaded"}
        assert {card["state"] for card in server.client.get("/v1/models").json()["data"]} <= {"loading", "not_loaded"}
        assert expect_ok(server.post("/tokenize", {"model": "rv-demo", "prompt": "Hello"}))["count"] > 0
        expect_error(server.client.get("/health_generate"), 503, "model_loading")
        assert took_secs < 2
        server.wait_ready()
        server.stop()
    finally:
        server.kill()


def processor_secs(pid: int) -> float:
    """Time that a process has used so far, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_model_on_demand_is_loaded_by_its_first_request(tmp_path: Path) -> None:
    with ServerProcess.serving(tmp_path, {"rv-demo": {"load": "on_demand"}}, sse_keepalive_secs=0.1) as server:
        assert server.client.get("/readyz").status_code == 200
        assert server.client.get("/v1/models/rv-demo").json()["state"] == "not_loaded"
        assert expect_ok(server.post("/tokenize", {"model": "rv-demo", "prompt": "Hello"}))["count"] > 0
        assert server.client.get("/v1/models/rv-demo").json()["state"] == "not_loaded"
        reply = server.post(CHAT, echo_body("482913", stream=True))
        assert reply.status_code == 200
        assert ": keep-alive" in reply.text
        assert reply.text.endswith("data: [DONE]\n\n")
        assert whole_text(expect_ok(server.post(CHAT, echo_body("482913")))) == "482913"


def test_an_on_demand_model_that_cannot_be_loaded_ends_the_stream_with_its_error(tmp_path: Path) -> None:
    (tmp_path / "models" / "broken").mkdir(parents=True)
    (tmp_path / "models" / "broken" / "config.json").write_text("{}")
    with ServerProcess.serving(tmp_path, {"broken": {"load": "on_demand", "kind": "text_gen"}}) as server:
        for stream in (False, True):
            reply = server.post("/v1/completions", {"model": "broken", "prompt": "x", "stream": stream})
            error = expect_error(reply, 503, "model_failed")
            assert "openvino_model.xml" in error["message"]


class TestCommandLine:
    def test_version(self) -> None:
        assert run("--version").stdout.strip() == f"rustedvino {rustedvino.__version__}"

    def test_print_default_config(self, tmp_path: Path) -> None:
        printed = json.loads(run("--print-default-config").stdout)
        assert printed["port"] == 11437
        assert json.loads(run("--print-default-model").stdout)["load"] == "eager"

    def test_check_config(self, tmp_path: Path) -> None:
        config = write_config(tmp_path, ["tiny-qwen3"])
        found = run("--config", config, "--check-config")
        assert (found.returncode, found.stderr) == (0, "")
        assert "valid" in found.stdout

    def test_check_config_tells_all_problems_at_once(self, tmp_path: Path) -> None:
        models: dict[str, dict[str, Any]] = {"a": {"vram_gbb": 1}, "b": {"kind": "text"}}
        (tmp_path / "models").mkdir()
        config = {"models_dir": "models", "device": "CPU", "total_vram_gb": -1, "prot": 3, "models": models}
        (tmp_path / "config.json").write_text(json.dumps(config))
        text = refused(run("--config", tmp_path / "config.json", "--check-config"), BAD_CONFIG)
        for part in ("total_vram_gb", "prot", "port", "models.a.vram_gbb", "vram_gb", "models.b.kind"):
            assert part in text
        assert refused(run("--config", tmp_path / "config.json"), BAD_CONFIG) == text

    def test_a_config_that_is_not_there(self, tmp_path: Path) -> None:
        assert "nowhere.json" in refused(run("--config", tmp_path / "nowhere.json"), BAD_CONFIG)

    def test_a_config_that_is_not_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Each place is told from the others by the file that a problem is reported in."""

        def told(*arguments: str) -> str:
            assert main(list(arguments)) == BAD_CONFIG
            return capsys.readouterr().err

        own, here, named = (
            tmp_path / "xdg" / "rustedvino" / "config.json",
            tmp_path / "here" / "config.json",
            tmp_path / "named.json",
        )
        for path in (own, here):
            path.parent.mkdir(parents=True)
        monkeypatch.chdir(here.parent)
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
        monkeypatch.delenv("RUSTEDVINO_CONFIG", raising=False)
        text = told()
        for part in ("RUSTEDVINO_CONFIG", str(here), str(own), "--demo", "--config FILE"):
            assert part in text
        own.write_text("{}")
        assert told().startswith(f"{own}: ")
        here.write_text("{}")
        assert told().startswith(f"{here}: ")
        named.write_text("{}")
        monkeypatch.setenv("RUSTEDVINO_CONFIG", "../named.json")
        assert told("--check-config").startswith(f"{named}: ")
        assert told("--config", "config.json").startswith(f"{here}: ")
        monkeypatch.setenv("RUSTEDVINO_CONFIG", "gone.json")
        assert told() == f"RUSTEDVINO_CONFIG: there is no file {here.parent / 'gone.json'}\n"

    @pytest.mark.parametrize(
        "text", ["", "{", "[]", '{"port": 1, "port": 2}', "\ud800".encode("utf-8", "surrogatepass")]
    )
    def test_a_config_that_is_no_config(self, tmp_path: Path, text: str | bytes) -> None:
        path = tmp_path / "config.json"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        assert "config.json" in refused(run("--config", path), BAD_CONFIG)

    @pytest.mark.parametrize("arguments", [["--prot", "1"], ["--port", "x"], ["--demo", "--config", "c"], ["extra"]])
    def test_usage(self, arguments: list[str]) -> None:
        assert "usage:" in refused(run(*arguments), 2)

    @pytest.mark.parametrize("port", [-1, 65536, 10**9])
    def test_a_port_that_cannot_be(self, port: int) -> None:
        assert "0 and 65535" in refused(run("--demo", "--port", str(port)), 2)

    def test_a_port_that_is_taken(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = other.getsockname()[1]
            text = refused(run("--demo", "--port", str(port)), 1)
        assert str(port) in text
        assert "taken" in text

    def test_an_address_that_is_not_ours(self, tmp_path: Path) -> None:
        config = write_config(tmp_path, {"tiny-qwen3": {"load": "on_demand"}}, allow_insecure_public_bind=True)
        assert "192.0.2.1" in refused(run("--config", config, "--bind-addr", "192.0.2.1", "--port", "0"), 1)

    def test_beyond_loopback_without_keys(self) -> None:
        assert "allow_insecure_public_bind" in refused(
            run("--demo", "--bind-addr", "0.0.0.0", "--port", "0"), BAD_CONFIG
        )

    def test_a_relative_models_dir_starts_at_the_config(self, tmp_path: Path) -> None:
        config = write_config(tmp_path / "conf", {"tiny-qwen3": {"load": "on_demand"}})
        with ServerProcess("--config", config, "--port", "0", cwd=Path("/")) as server:
            expect_ok(server.post("/tokenize", {"model": "tiny-qwen3", "prompt": "x"}))

    def test_the_log_goes_to_stderr(self, tmp_path: Path) -> None:
        config = write_config(tmp_path, {"tiny-qwen3": {"load": "on_demand"}})
        process = subprocess.Popen(
            [sys.executable, "-m", "rustedvino.server", "--config", str(config), "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        for line in process.stderr:
            if "listening on" in line:
                break
        process.send_signal(signal.SIGTERM)
        printed, _ = process.communicate(timeout=30)
        assert process.returncode == 0
        assert printed == ""


def test_two_servers_do_not_share_a_port(tmp_path: Path) -> None:
    config = write_config(tmp_path, {"tiny-qwen3": {"load": "on_demand"}})
    with ServerProcess("--config", config, "--port", "0", cwd=tmp_path) as first:
        text = refused(run("--config", config, "--port", str(first.port)), 1)
        assert re.search(rf"{first.port}.*taken", text)
        assert httpx.get(f"{first.url}/health").status_code == 200
