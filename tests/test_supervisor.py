"""Restarts, hangs, signals and ends, with a scripted child; and real servers."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from attrs import define, evolve, field

from rustedvino.config import demo_config
from rustedvino.config.types import SupervisorSettings
from rustedvino.probe import Health, HttpProbe
from rustedvino.sd_notify import Notifier
from rustedvino.supervisor import FINAL_EXIT_CODES, PARENT_VARIABLE, Supervisor, exit_code, supervise, tie_to_supervisor
from tests.support.server import ServerProcess, write_config

FAKE = Path(__file__).parent / "support" / "fake_server.py"
PATIENCE_SECS = 20.0
QUICK = SupervisorSettings(
    backoff_base_secs=0.01,
    backoff_max_secs=0.02,
    max_restarts=3,
    restart_window_secs=100,
    health_timeout_secs=PATIENCE_SECS,
    hang_kill_grace_secs=PATIENCE_SECS,
    watchdog_poll_secs=0.01,
)


@define(eq=False)
class Stage:
    """A folder, and one socket for what the children and the supervisor tell, in the order it happened."""

    folder: Path
    sock: trio.socket.SocketType
    health: Health = field(factory=Health)
    seen: list[str] = field(factory=list)
    supervisor: Supervisor | None = None
    _read: int = 0
    _news: trio.Event = field(factory=trio.Event)

    async def read(self) -> None:
        """Take events as they come: the socket holds few, and who sends to a full one waits."""
        while True:
            self.seen.append((await self.sock.recv(4096)).decode())
            self._news.set()
            self._news = trio.Event()

    async def probe(self) -> Health:
        """What the test says, once the child is up."""
        await trio.lowlevel.checkpoint()
        assert self.supervisor is not None
        up = (self.folder / f"starts.{self.supervisor.child_pid}").exists()
        return self.health if up else Health("not up yet")

    def command(self, *acts: dict[str, Any]) -> tuple[str, ...]:
        return (sys.executable, str(FAKE), str(self.folder / "events"), json.dumps(acts), str(self.folder / "starts"))

    def make(
        self,
        *acts: dict[str, Any],
        probe: Callable[[], Any] | None = None,
        watchdog_secs: float | None = None,
        **settings: Any,
    ) -> Supervisor:
        stop_bound_secs = settings.pop("stop_bound_secs", PATIENCE_SECS)
        self.supervisor = Supervisor(
            command=self.command(*acts),
            settings=evolve(QUICK, **settings),
            probe=probe or self.probe,
            probe_bound_secs=1.0,
            stop_bound_secs=stop_bound_secs,
            notifier=Notifier(str(self.folder / "events"), watchdog_secs),
        )
        return self.supervisor

    async def event(self, pattern: str) -> re.Match[str]:
        """The next event that matches."""
        with trio.fail_after(PATIENCE_SECS):
            while True:
                while self._read < len(self.seen):
                    self._read += 1
                    if found := re.fullmatch(pattern, self.seen[self._read - 1]):
                        return found
                await self._news.wait()

    async def rest(self) -> list[str]:
        """All events of the whole run, which is over."""
        await trio.testing.wait_all_tasks_blocked()
        return self.seen

    def starts(self) -> int:
        return int((self.folder / "starts").read_text())


@pytest.fixture
async def stage(tmp_path: Path) -> AsyncIterator[Stage]:
    with trio.socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        await sock.bind(str(tmp_path / "events"))
        stage = Stage(tmp_path, sock)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.read)
            yield stage
            nursery.cancel_scope.cancel()


@pytest.fixture
def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


async def finish(supervisor: Supervisor) -> int:
    with trio.fail_after(PATIENCE_SECS):
        return await supervisor.run()


@define(eq=False)
class Running:
    """A supervisor at work beside the test; its exit code when it is done."""

    code: int | None = None
    done: trio.Event = field(factory=trio.Event)

    async def run(self, supervisor: Supervisor) -> None:
        self.code = await supervisor.run()
        self.done.set()

    async def result(self) -> int:
        with trio.fail_after(PATIENCE_SECS):
            await self.done.wait()
        assert self.code is not None
        return self.code


@pytest.mark.parametrize("code", sorted(FINAL_EXIT_CODES))
async def test_ends_that_a_restart_cannot_better_are_passed_on(stage: Stage, code: int) -> None:
    assert await finish(stage.make({"exit": code})) == code
    assert stage.starts() == 1


async def test_a_crash_loop_is_given_up_with_the_last_exit_code(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    supervisor = stage.make({"exit": 3}, {"exit": 4}, {"die": int(signal.SIGABRT)}, {"exit": 7})
    assert await finish(supervisor) == 7
    assert stage.starts() == 4  # max_restarts is 3
    assert supervisor.restarts == 3
    messages = [record.getMessage() for record in caplog.records if record.levelname in ("ERROR", "CRITICAL")]
    assert messages == [
        "the server ended: exit code 3; it is started again at once (restart 1 of 3)",
        "the server ended: exit code 4; it is started again in 0.01 s (restart 2 of 3)",
        "the server ended: signal SIGABRT; it is started again in 0.02 s (restart 3 of 3)",
        (
            "giving up: the server ended 4 times within 100 s, max_restarts is 3; the last time: "
            "the server ended: exit code 7"
        ),
    ]
    assert (await stage.rest())[-2:] == [
        "STATUS=given up after 4 ends within 100 s: the server ended: exit code 7",
        "STOPPING=1",
    ]


async def test_a_death_by_signal_is_given_up_with_the_code_of_a_shell(stage: Stage) -> None:
    assert await finish(stage.make({"die": int(signal.SIGKILL)}, max_restarts=0)) == 137


async def test_deaths_outside_of_the_window_do_not_count(stage: Stage) -> None:
    acts = [{"exit": 1}] * 6 + [{"exit": 0}]
    assert await finish(stage.make(*acts, max_restarts=1, restart_window_secs=0.001)) == 0
    assert stage.starts() == 7


async def test_a_child_that_cannot_be_started_is_a_death(stage: Stage) -> None:
    supervisor = stage.make({}, max_restarts=1)
    supervisor.command = (str(stage.folder / "nothing"),)
    assert await finish(supervisor) == 1
    assert any("could not be started" in text for text in await stage.rest())


async def test_readiness_is_told_after_the_first_answer_and_restarts_are_counted(
    stage: Stage, nursery: trio.Nursery
) -> None:
    stage.health = Health("no answer")
    supervisor = stage.make({})
    running = Running()
    nursery.start_soon(running.run, supervisor)
    first = int((await stage.event(r"start (\d+)"))[1])
    assert "READY=1" not in stage.seen
    stage.health = Health()
    await stage.event("READY=1")
    await stage.event(rf"STATUS=the server runs as process {first}; restarts: 0")
    os.kill(first, signal.SIGKILL)
    await stage.event(r"STATUS=starting the server again at once: the server ended: signal SIGKILL")
    second = int((await stage.event(r"start (\d+)"))[1])
    assert second != first
    await stage.event(rf"STATUS=the server runs as process {second}; restarts: 1")
    signal.raise_signal(signal.SIGTERM)
    assert await running.result() == 0


async def test_a_child_that_is_not_well_for_long_is_ended_and_replaced(stage: Stage, nursery: trio.Nursery) -> None:
    running = Running()
    nursery.start_soon(running.run, stage.make({}, health_timeout_secs=3.0))
    await stage.event("READY=1")
    stage.health = Health("/health answers 500")
    await stage.event("signal SIGTERM")
    stage.health = Health()
    await stage.event(r"STATUS=starting the server again at once: the server hung: not well for .*/health answers 500")
    await stage.event(r"STATUS=the server runs as process \d+; restarts: 1")
    signal.raise_signal(signal.SIGTERM)
    assert await running.result() == 0
    assert stage.starts() == 2


async def test_a_single_failed_probe_is_no_hang(stage: Stage, nursery: trio.Nursery) -> None:
    answers = iter([Health(), *[Health("busy"), Health()] * 50])
    asked_all = trio.Event()

    async def probe() -> Health:
        await trio.lowlevel.checkpoint()
        answer = next(answers, None)
        if answer is None:
            asked_all.set()
        return answer or Health()

    running = Running()
    nursery.start_soon(running.run, stage.make({}, probe=probe, health_timeout_secs=5.0, watchdog_poll_secs=0.001))
    with trio.fail_after(PATIENCE_SECS):
        await asked_all.wait()
    await stage.event(r"start \d+")
    signal.raise_signal(signal.SIGTERM)
    assert await running.result() == 0
    assert stage.starts() == 1


async def test_a_hung_generation_needs_no_patience(stage: Stage, nursery: trio.Nursery) -> None:
    running = Running()
    nursery.start_soon(running.run, stage.make({}, health_timeout_secs=1000.0))
    await stage.event("READY=1")
    stage.health = Health("a generation on 'm' has been silent for 700 s", hung=True)
    await stage.event("signal SIGTERM")
    stage.health = Health()
    await stage.event(r"STATUS=starting .*a generation on 'm' has been silent for 700 s")
    await stage.event(r"STATUS=the server runs as process \d+; restarts: 1")
    signal.raise_signal(signal.SIGTERM)
    assert await running.result() == 0


async def test_a_hung_child_that_ignores_the_request_is_killed(
    stage: Stage, nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    running = Running()
    supervisor = stage.make({"ignore_term": True}, {}, hang_kill_grace_secs=0.05, health_timeout_secs=1000.0)
    nursery.start_soon(running.run, supervisor)
    await stage.event(r"start (\d+)")
    stage.health = Health("hung", hung=True)
    await stage.event("signal SIGTERM")
    stage.health = Health()
    await stage.event(r"STATUS=the server runs as process \d+; restarts: 1")
    assert "did not end within 0.05 s: killed" in caplog.text
    signal.raise_signal(signal.SIGTERM)
    assert await running.result() == 0


async def test_a_stopped_process_is_found_by_a_real_probe(stage: Stage, nursery: trio.Nursery, free_port: int) -> None:
    probe = HttpProbe("127.0.0.1", free_port, None, 0.2)
    acts = {"listen": free_port, "watchdog": {"status": "ok"}}
    supervisor = stage.make(
        acts, probe=probe, health_timeout_secs=3.0, hang_kill_grace_secs=0.05, watchdog_poll_secs=0.05
    )
    running = Running()
    nursery.start_soon(running.run, supervisor)
    await stage.event("READY=1")
    assert supervisor.child_pid is not None
    os.kill(supervisor.child_pid, signal.SIGSTOP)
    await stage.event(r"STATUS=starting the server again at once: the server hung: not well for 3 s: .*")
    await stage.event(r"STATUS=the server runs as process \d+; restarts: 1")
    signal.raise_signal(signal.SIGTERM)
    assert await running.result() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_is_passed_on_and_the_end_waited_for(
    stage: Stage, nursery: trio.Nursery, number: signal.Signals
) -> None:
    running = Running()
    nursery.start_soon(running.run, stage.make({"slow_end_secs": 0.1, "end_code": 5}))
    await stage.event("READY=1")
    stage.health = Health("a server that is ending answers no probe", hung=True)
    signal.raise_signal(number)
    assert await running.result() == 5
    events = await stage.rest()
    assert [text for text in events if text.startswith(("signal", "STOPPING"))].count(f"signal {number.name}") == 1
    assert "STOPPING=1" in events
    assert stage.starts() == 1


async def test_a_second_signal_kills(stage: Stage, nursery: trio.Nursery) -> None:
    running = Running()
    nursery.start_soon(running.run, stage.make({"ignore_term": True}))
    await stage.event("READY=1")
    signal.raise_signal(signal.SIGTERM)
    await stage.event("signal SIGTERM")
    signal.raise_signal(signal.SIGTERM)
    assert await running.result() == 137


async def test_a_child_that_does_not_end_is_killed_in_the_end(stage: Stage, nursery: trio.Nursery) -> None:
    running = Running()
    nursery.start_soon(running.run, stage.make({"ignore_term": True}, stop_bound_secs=0.05))
    await stage.event("READY=1")
    signal.raise_signal(signal.SIGTERM)
    assert await running.result() == 137


async def test_a_child_that_dies_of_the_signal_did_what_it_was_told(stage: Stage, nursery: trio.Nursery) -> None:
    async def probe() -> Health:
        await trio.lowlevel.checkpoint()
        return Health()

    supervisor = stage.make({}, probe=probe)
    supervisor.command = (sys.executable, "-c", "import time; time.sleep(100)")
    running = Running()
    nursery.start_soon(running.run, supervisor)
    await stage.event("READY=1")
    signal.raise_signal(signal.SIGTERM)
    assert await running.result() == 0


async def test_a_signal_while_nothing_runs_ends_at_once(stage: Stage, nursery: trio.Nursery) -> None:
    running = Running()
    supervisor = stage.make({"exit": 1}, backoff_base_secs=1000.0, backoff_max_secs=1000.0)
    nursery.start_soon(running.run, supervisor)
    await stage.event(r"STATUS=starting the server again in 1000 s: .*")
    signal.raise_signal(signal.SIGTERM)
    assert await running.result() == 0
    assert stage.starts() == 2


async def test_cancellation_leaves_no_child(stage: Stage) -> None:
    supervisor = stage.make({"ignore_term": True})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(supervisor.run)
        pid = int((await stage.event(r"start (\d+)"))[1])
        nursery.cancel_scope.cancel()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_the_child_does_not_outlive_a_killed_supervisor(stage: Stage) -> None:
    program = (
        "import sys, trio; from rustedvino.supervisor import Supervisor; from rustedvino.probe import Health\n"
        "from rustedvino.config.types import SupervisorSettings\n"
        "async def probe():\n    return Health()\n"
        "trio.run(Supervisor(command=tuple(sys.argv[1:]), settings=SupervisorSettings(), probe=probe,"
        " probe_bound_secs=1, stop_bound_secs=1).run)\n"
    )
    command = [sys.executable, "-c", program, *stage.command({"tie": True, "ignore_term": True})]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as parent:  # noqa: ASYNC220  # it does not block here
        pidfd = None
        try:
            pid = int((await stage.event(r"start (\d+)"))[1])
            pidfd = os.pidfd_open(pid)
            parent.kill()
            with trio.fail_after(PATIENCE_SECS):
                await trio.lowlevel.wait_readable(pidfd)
        finally:
            parent.kill()
            if pidfd is not None:
                os.close(pidfd)


def test_a_server_alone_is_tied_to_nobody() -> None:
    assert not tie_to_supervisor({})
    environment = {PARENT_VARIABLE: "nonsense"}
    assert not tie_to_supervisor(environment)
    assert environment == {}


async def test_signs_of_life_go_on_through_restarts_and_stop_while_a_hung_child_stays(
    stage: Stage, nursery: trio.Nursery
) -> None:
    running = Running()
    supervisor = stage.make({"exit": 1}, {"ignore_term": True}, watchdog_secs=0.02, health_timeout_secs=1000.0)
    nursery.start_soon(running.run, supervisor)
    await stage.event(r"STATUS=starting the server again.*")
    await stage.event(r"STATUS=the server runs as process \d+; restarts: 1")
    for _ in range(3):
        await stage.event("WATCHDOG=1")
    stage.health = Health("hung", hung=True)
    await stage.event("signal SIGTERM")  # the grace begins, and it is long
    mark = len(stage.seen)
    await trio.sleep(0.2)  # ten times its interval, for something not to happen
    assert "WATCHDOG=1" not in stage.seen[mark:]
    signal.raise_signal(signal.SIGTERM)
    await stage.event("signal SIGTERM")
    signal.raise_signal(signal.SIGTERM)
    assert await running.result() == 137


@pytest.mark.parametrize(
    ("given", "passed"),
    [
        (["--demo", "--supervise", "--port", "8"], ["--demo", "--port", "8"]),
        (["--superv", "--config", "c.json"], ["--config", "c.json"]),
        ([], []),
    ],
)
def test_the_server_gets_the_same_arguments(
    monkeypatch: pytest.MonkeyPatch, given: list[str], passed: list[str]
) -> None:
    made: list[Supervisor] = []

    def keep(run: Any) -> int:
        made.append(run.__self__)
        return 9

    monkeypatch.setattr("rustedvino.supervisor.trio.run", keep)
    environment = {"NOTIFY_SOCKET": "@x", "WATCHDOG_USEC": "2000000"}
    assert supervise(demo_config(), given, environment) == 9
    assert made[0].command == (sys.executable, "-m", "rustedvino.server", *passed)
    assert made[0].notifier.address == "@x"
    assert made[0].notifier.watchdog_secs == 2.0
    assert environment == {}
    assert made[0].stop_bound_secs == 40.0
    assert isinstance(made[0].probe, HttpProbe)
    assert made[0].probe.timeout_secs == 30.0


@pytest.mark.parametrize(("code", "expected"), [(0, 0), (3, 3), (-9, 137), (-15, 143)])
def test_exit_codes(code: int, expected: int) -> None:
    assert exit_code(code) == expected


def test_a_supervisor_holds_nothing_of_what_serves() -> None:
    """It stays in memory for as long as the server; what it does not import can neither fail nor fill it."""
    program = "import sys, rustedvino.server; print(*{name.partition('.')[0] for name in sys.modules}, *sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert "rustedvino.supervisor" in loaded
    assert not {"quart", "hypercorn", "numpy", "tokenizers", "jinja2", "prometheus_client"} & set(loaded)
    assert not {"rustedvino.serving", "rustedvino.hub.hub", "rustedvino.http"} & set(loaded)


def test_a_killed_server_is_back_on_its_port_with_its_config(tmp_path: Path) -> None:
    """By the real command line, with a config that was found and not named: another one that turns up is not taken."""
    models = {"rv-demo": {"load": "on_demand"}}
    config = write_config(tmp_path, models, port=0, spare_workers=0, supervisor={"watchdog_poll_secs": 0.2})
    own = tmp_path / "xdg" / "rustedvino" / "config.json"
    own.parent.mkdir(parents=True)
    own.write_bytes(config.rename(tmp_path / "put-aside").read_bytes().replace(b'"models"', b'"../../models"', 1))
    environment = {"XDG_CONFIG_HOME": str(tmp_path / "xdg"), "RUSTEDVINO_CONFIG": ""}
    with ServerProcess("--supervise", environment=environment, cwd=tmp_path) as server:
        first = int(server.wait_log(r"the server runs as process (\d+)")[1])
        assert first != server.pid
        (tmp_path / "config.json").write_text("{}")
        os.kill(first, signal.SIGKILL)
        server.wait_log(r"the server ended: signal SIGKILL; it is started again at once \(restart 1 of 5\)")
        printed = server.log.count("\n")
        again = server.wait_log(r"listening on http://127\.0\.0\.1:(\d+)", start=printed - 1)
        assert int(again[1]) == server.port
        server.wait_health()
        assert first not in server.processes()
        server.stop()  # by SIGTERM to the supervisor; all end, with exit code 0
    assert "the server has ended: exit code 0" in server.log


def test_a_wrong_config_is_not_started_again(tmp_path: Path) -> None:
    models = {"rv-demo": {"load": "on_demand"}}
    config = write_config(tmp_path, models, spare_workers=0, supervisor={"watchdog_poll_secs": 0.2})
    server = ServerProcess("--supervise", "--config", config, "--port", "0", cwd=tmp_path)
    try:
        server.start()
        child = int(server.wait_log(r"the server runs as process (\d+)")[1])
        config.write_text('{"prot": 1}')
        os.kill(child, signal.SIGKILL)
        assert server.wait_exit() == 2
        assert f"{config}: " in server.log
        assert "prot" in server.log
        assert "the server ended by itself with exit code 2" in server.log
        server.assert_none_left()
        again = ServerProcess("--supervise", "--config", config, cwd=tmp_path)
        with pytest.raises(AssertionError, match="did not appear in the log"):
            again.start()
        assert again.wait_exit() == 2
        assert "started again" not in again.log
    finally:
        server.kill()
