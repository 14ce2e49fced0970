"""Servers in the background: real ones, and programs that misbehave in their place."""

import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rustedvino.rv import background, lifecycle, processes
from tests.rv.conftest import Ended
from tests.rv.fake import FakeServer
from tests.rv.terminal import Terminal
from tests.support.server import write_config

# A command ends before the server that it started; run within the tests, it does not.
pytestmark = pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")

Rv = Callable[..., Ended]
Terminals = Callable[..., Terminal]
OPTIONAL: dict[str, Any] = {"tiny-llama3": {"load": "on_demand"}}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.fixture
def config(home: Path) -> Iterator[Path]:
    """A config; whatever was started for it is gone afterwards."""
    path = write_config(home, OPTIONAL, port=0, spare_workers=0, num_threads=1, shutdown_drain_secs=5)
    yield path
    for place in (path, None):
        record = background.read(place)
        if record is not None:
            processes.kill(processes.session_members(record.pid))


def running(config: Path | None) -> background.Record:
    record = background.find(config)
    assert record is not None
    return record


@pytest.mark.parametrize("supervised", [False, True])
def test_a_life(rv_process: Rv, config: Path, supervised: bool) -> None:
    extra = ["--supervise"] if supervised else []
    done = rv_process("start", *extra)
    assert done.code == 0, done.err
    first = running(config)
    assert f"started: process {first.pid} at {first.base_url}" in done.out
    assert first.log in done.out
    assert stat.S_IMODE(Path(first.log).parent.stat().st_mode) == 0o700
    status = rv_process("status", "--json").json
    assert (status["url"], status["background"]) == (first.base_url, {"pid": first.pid, "log": first.log})
    assert (status["server"]["pid"] == first.pid) != supervised

    assert "runs already" in rv_process("start").out
    assert running(config) == first
    log = rv_process("logs", "--file").out
    assert "listening on" in log or "answers" in log

    done = rv_process("restart")
    assert (done.code, running(config)) == (2, first), "nobody could be asked"
    done = rv_process("restart", "-y")
    assert done.code == 0, done.err
    second = running(config)
    assert second.pid != first.pid
    assert second.arguments == first.arguments
    assert processes.session_members(first.pid) == []

    assert rv_process("stop").code == 2
    done = rv_process("stop", "-y")
    assert done.code == 0, done.err
    assert "stopped after" in done.out
    assert processes.session_members(second.pid) == []
    assert background.read(config) is None
    assert (rv_process("stop", "-y").code, rv_process("status").code) == (0, 3)


def test_a_start_waits_for_models(terminal: Terminals, home: Path, config: Path) -> None:
    write_config(home, {"tiny-llama3": {}}, port=0, spare_workers=0, num_threads=1)
    with terminal("start", "--wait-ready") as shell:
        shell.expect("loading tiny-llama3")
        shell.expect("started: process")
        assert shell.end() == 0
    with terminal("stop") as shell:
        shell.expect(r"This stops the server at http://127\.0\.0\.1:\d+\. Go ahead\? \[y/N\]")
        shell.type("y\n")
        shell.expect("stopped after")
        assert shell.end() == 0


def test_a_bad_config_is_said_at_once(rv_process: Rv, config: Path) -> None:
    config.write_text(json.dumps({**json.loads(config.read_text()), "devise": "CPU"}))
    done = rv_process("start")
    assert done.code == 1
    assert "the server ended at its start with exit code" in done.err
    assert "devise" in done.err
    assert background.read(config) is None


def test_an_address_that_is_taken(rv_process: Rv, config: Path, fake: FakeServer) -> None:
    port = int(fake.url.rpartition(":")[2])
    config.write_text(json.dumps({**json.loads(config.read_text()), "port": port}))
    done = rv_process("start")
    assert (done.code, "did not start answers at" in done.err) == (1, True)
    done = rv_process("stop", "-y")
    assert (done.code, "was not started by `rv start`" in done.err) == (1, True)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        config.write_text(json.dumps({**json.loads(config.read_text()), "port": mute.getsockname()[1]}))
        done = rv_process("start")
        assert (done.code, "is taken" in done.err) == (1, True)


def test_files_are_of_this_machine(rv: Rv, config: Path) -> None:
    for verb in ("start", "stop", "restart"):
        done = rv(verb, "--host", "far")
        assert (done.code, "use it there" in done.err) == (2, True)


def test_without_a_config(rv: Rv, home: Path) -> None:
    done = rv("start")
    assert (done.code, "needs a config" in done.err) == (2, True)


# Programs in the place of the server.

IGNORES_TERM = """
import http.server, signal, subprocess, sys, threading
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.signal(15, signal.SIG_IGN); signal.pause()"])
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header("x-server", "x"); self.end_headers(); self.wfile.write(b"{}")
http.server.HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    def use(code: str) -> None:
        (tmp_path / "program.py").write_text(code)
        monkeypatch.setattr(lifecycle, "PROGRAM", (sys.executable, str(tmp_path / "program.py")))

    return use


def test_what_does_not_end_is_named_and_killed_on_demand(
    rv: Rv, config: Path, program: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    program(IGNORES_TERM)
    monkeypatch.setattr(lifecycle, "STOP_MARGIN_SECS", -4.5)
    assert rv("start").code == 0
    record = running(config)
    members = processes.session_members(record.pid)
    assert len(members) == 2
    done = rv("stop", "-y")
    assert done.code == 1
    assert "still runs after" in done.err
    assert all(str(pid) in done.err for pid in members)
    assert "rv stop --kill" in done.err
    assert running(config) == record
    done = rv("stop", "-y", "--kill")
    with contextlib.suppress(ChildProcessError):
        os.waitpid(record.pid, os.WNOHANG)
    assert done.code == 0, done.err
    assert processes.session_members(record.pid) == []


def test_processes_left_by_a_server_that_died_are_named(
    rv: Rv, config: Path, program: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    program(IGNORES_TERM)
    monkeypatch.setattr(lifecycle, "LEFT_SECS", 0.3)
    assert rv("start").code == 0
    record = running(config)
    os.kill(record.pid, signal.SIGKILL)
    os.waitpid(record.pid, 0)
    left = processes.session_members(record.pid)
    done = rv("stop", "-y")
    processes.kill(left)
    assert len(left) == 1
    assert (done.code, f"are left: process {left[0]}" in done.err) == (1, True)


def test_a_stale_record_is_no_server(rv: Rv, config: Path) -> None:
    """The process that has the number now is not touched."""
    stale = background.Record(os.getpid(), "another boot:1", "http://127.0.0.1:1", str(config), "/log", (), 1.0)
    background.write(config, stale)
    done = rv("stop", "-y")
    assert (done.code, done.out) == (0, "the server does not run\n")
    assert background.read(config) is None


def test_a_session_of_somebody_else_is_not_what_a_server_left(rv: Rv, config: Path) -> None:
    """After a restart of the machine, the number of the server may be that of a login."""
    own = processes.identity(os.getpid())
    assert own is not None
    boot = own.rpartition(":")[0]
    login = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        for identity in (f"{boot}:0", "another boot:1"):
            background.write(
                config, background.Record(login.pid, identity, "http://127.0.0.1:1", None, "/log", (), 1.0)
            )
            done = rv("stop", "-y")
            assert (done.code, done.out) == (0, "the server does not run\n"), done.err
        assert login.poll() is None
    finally:
        login.kill()
        login.wait()


@pytest.mark.parametrize("pid", [0, -1, -7])
def test_a_record_that_names_no_process_is_none(rv: Rv, config: Path, pid: int) -> None:
    """In a container, session 0 holds everybody whose leader is outside; a signal to -1 reaches every process."""
    own = processes.identity(os.getpid())
    assert own is not None
    background.write(config, background.Record(pid, own, "http://127.0.0.1:1", None, "/log", (), 1.0))
    assert background.read(config) is None
    done = rv("stop", "-y", "--kill")
    assert (done.code, done.out) == (0, "the server does not run\n"), done.err


def test_a_server_that_ends_while_it_starts_shows_its_last_words(
    rv: Rv, config: Path, program: Callable[[str], None]
) -> None:
    program("import sys; print('old', 1); print('cannot open the device', file=sys.stderr); sys.exit(7)")
    log = background.log_path(config)
    log.parent.mkdir(parents=True)
    log.write_text("of an earlier start\n")
    done = rv("start")
    assert done.code == 1
    assert "with exit code 7" in done.err
    assert "cannot open the device" in done.err
    assert "earlier" not in done.err
    assert log.read_text().startswith("of an earlier start\n")


def test_a_server_that_is_starting_is_told_from_one_that_is_down(
    rv: Rv, config: Path, program: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    program("import signal; signal.pause()")
    monkeypatch.setattr(lifecycle, "START_SECS", 0.3)
    done = rv("start")
    assert (done.code, "does not answer 0.3 s after its start" in done.err) == (1, True)
    record = running(config)
    done = rv("ps")
    assert done.code == 3
    assert f"the server is starting: process {record.pid}" in done.err
    assert rv("stop", "-y").code == 0


def test_an_interrupted_start_goes_on(terminal: Terminals, home: Path, config: Path) -> None:
    write_config(home, {"tiny-llama3": {}}, port=0, spare_workers=0, num_threads=1)
    with terminal("start", "--wait-ready") as shell:
        shell.expect("starting: process")
        shell.interrupt()
        shell.expect("goes on starting in the background")
        assert shell.end() == 130
    record = running(config)
    processes.kill(processes.session_members(record.pid))


def test_two_at_a_time(rv: Rv, config: Path) -> None:
    with background.locked(config):
        done = rv("start")
    assert (done.code, "another rv" in done.err) == (1, True)


def test_a_large_log_is_put_aside(
    rv: Rv, config: Path, program: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    program("print('new')")
    monkeypatch.setattr(lifecycle, "MAX_LOG_BYTES", 3)
    log = background.log_path(config)
    log.parent.mkdir(parents=True)
    log.write_text("old lines\n")
    assert rv("start").code == 1
    assert log.read_text() == "new\n"
    assert log.with_suffix(".log.1").read_text() == "old lines\n"
