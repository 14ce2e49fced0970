"""What the operating system does for us: ends, ties to the parent, limits."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import trio

from rustedvino.worker import platform


@pytest.mark.parametrize(
    ("code", "text"),
    [(0, "exit code 0"), (3, "exit code 3"), (-9, "signal SIGKILL"), (-4, "signal SIGILL"), (-200, "signal 200")],
)
def test_describe_exit(code: int, text: str) -> None:
    assert platform.describe_exit(code) == text


def start(text: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-c", text], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def wait_zombie(pid: int) -> None:
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


async def test_wait_exit_reaps_and_reports() -> None:
    with start("raise SystemExit(7)") as process, trio.fail_after(20):
        assert await platform.wait_exit(process) == 7


async def test_wait_exit_of_a_process_that_kill_found_dead() -> None:
    """Popen.kill reaps a process that has ended by itself; its number may then be anybody's."""
    with start("raise SystemExit(7)") as process:
        wait_zombie(process.pid)
        process.kill()
        with trio.fail_after(20):
            assert await platform.wait_exit(process) == 7


async def test_wait_exit_cancelled_leaves_the_process_and_no_descriptor() -> None:
    with start("input()") as process:
        before = set(os.listdir("/proc/self/fd"))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(platform.wait_exit, process)
            await trio.testing.wait_all_tasks_blocked()
            assert set(os.listdir("/proc/self/fd")) > before
            nursery.cancel_scope.cancel()
        assert set(os.listdir("/proc/self/fd")) == before
        assert process.poll() is None
        process.kill()


def test_cpu_secs() -> None:
    """It is what the system accounts to a process, in its ticks; nothing is known of one that is gone."""
    before, accounted = platform.cpu_secs(os.getpid()), sum(os.times()[:2])
    assert before == pytest.approx(accounted, abs=0.1)
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    assert platform.cpu_secs(process.pid) is None


def test_is_stopped() -> None:
    with start("input()") as process:
        assert not platform.is_stopped(process.pid)
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        assert platform.is_stopped(process.pid)
        process.send_signal(signal.SIGCONT)
        os.waitid(os.P_PID, process.pid, os.WCONTINUED | os.WNOWAIT)
        assert not platform.is_stopped(process.pid)
        process.kill()
    assert not platform.is_stopped(process.pid)


def run_python(text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)], capture_output=True, text=True, timeout=60, check=False
    )


def test_a_worker_leaves_group_signals_to_the_server_and_runs_nicer() -> None:
    done = run_python("""
        import os, signal
        from rustedvino.worker import platform
        before = os.nice(0)
        platform.enter_worker(os.getppid())
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            os.kill(os.getpid(), number)
        print(os.nice(0) - before)
    """)
    assert (done.returncode, done.stdout.strip()) == (0, str(min(platform.WORKER_NICENESS, 19 - os.nice(0))))


def test_a_worker_whose_server_died_before_it_was_tied_ends_at_once() -> None:
    done = run_python("""
        import os
        from rustedvino.worker import platform
        platform.enter_worker(os.getppid() + 1)
        print("still here")
    """)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_address_space_limit_turns_a_bomb_into_a_memory_error() -> None:
    done = run_python("""
        from rustedvino.worker import platform
        platform.limit_resources(address_space_bytes=1 << 28)
        bytearray(1 << 26)
        try:
            bytearray(1 << 29)
        except MemoryError:
            print("refused")
    """)
    assert (done.returncode, done.stdout.strip()) == (0, "refused")


def test_no_descriptor_is_left_of_a_process_that_cannot_be_started(tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    with pytest.raises(TypeError):
        platform.spawn_worker("model", {"A": 1})  # type: ignore[dict-item]
    assert os.listdir("/proc/self/fd") == before


PARENT = """
    import sys, trio
    from functools import partial
    from rustedvino.hub.process import WorkerProcess
    from rustedvino.worker import platform

    async def main():
        launcher = partial(platform.spawn_worker, program={program!r})
        async with trio.open_nursery() as nursery:
            workers = [WorkerProcess(role="model", stall_secs=60, launcher=launcher) for _ in range(2)]
            for worker in workers:
                await nursery.start(worker.run)
            for worker in workers:
                await worker.hello()
            busy, idle = workers
            stepped = trio.Event()
            busy.handler = lambda message: message[0] == "step" and stepped.set()
            busy.send("load", {spec!r})
            busy.send("submit", 1, b"\\x01\\0\\0\\0", {options!r})
            await stepped.wait()
            print(busy.pid, idle.pid, flush=True)
            await trio.sleep_forever()

    trio.run(main)
"""
FAULT_WORKER = str(Path(__file__).parents[1] / "support" / "fault_worker.py")


@pytest.mark.parametrize("fault", ["paced", "spin"])
async def test_a_killed_server_leaves_no_worker(fault: str) -> None:
    """One idle, one in the middle of its steps or stuck in native code."""
    text = textwrap.dedent(PARENT).format(
        program=[FAULT_WORKER, "--fault", fault],
        spec={"block_size": 32, "num_kv_blocks": 64},
        options={"max_new_tokens": 10**9},
    )
    with start(text) as parent:
        assert parent.stdout is not None
        with trio.fail_after(60):
            line = await trio.to_thread.run_sync(parent.stdout.readline, abandon_on_cancel=True)
        pidfds = [os.pidfd_open(int(pid)) for pid in line.split()]
        assert len(pidfds) == 2
        parent.kill()
        with trio.fail_after(5):
            for pidfd in pidfds:
                await trio.lowlevel.wait_readable(pidfd)  # readable: the process has ended
                os.close(pidfd)


COUNT = "low 0\nhigh 0\nmax 4\noom 1\noom_kill 2\noom_group_kill 0\n"
OLD_COUNT = "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"


@pytest.mark.skipif(sys.platform != "linux", reason="control groups")
@pytest.mark.parametrize(
    ("groups", "file", "content"),
    [
        ("0::/user.slice/rustedvino.service\n", "user.slice/rustedvino.service/memory.events", COUNT),
        ("0::/\n", "memory.events", COUNT),  # in a container with a name space of its own
        ("0::/docker/abc\n", "memory.events", COUNT),  # in one without
        ("9:name=systemd:/x\n4:cpu,memory:/job:1\n0::/\n", "memory/job:1/memory.oom_control", OLD_COUNT),
        ("4:memory:/docker/abc\n", "memory/memory.oom_control", OLD_COUNT),
        ("2:cpu:/\n0::/x\n", "unified/x/memory.events", COUNT),
    ],
)
def test_the_kernels_count_of_kills_for_memory(tmp_path: Path, groups: str, file: str, content: str) -> None:
    proc, cgroups = tmp_path / "proc", tmp_path / "cgroup"
    (proc / "7").mkdir(parents=True)
    (proc / "7" / "cgroup").write_text(groups)
    (proc / "vmstat").write_text("nr_free_pages 1\noom_kill 5\n")
    assert platform.oom_kill_counter(8, proc=proc, cgroups=cgroups) is None
    machine = platform.oom_kill_counter(7, proc=proc, cgroups=cgroups)
    assert machine == proc / "vmstat"
    assert platform.read_oom_kills(machine) == 5
    (cgroups / file).parent.mkdir(parents=True)
    (cgroups / file).write_text(content)
    own = platform.oom_kill_counter(7, proc=proc, cgroups=cgroups)
    assert own == cgroups / file
    assert platform.read_oom_kills(own) == 2


def test_no_count_of_kills(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "cgroup").write_text("0::/\n")
    assert platform.oom_kill_counter(7, proc=tmp_path, cgroups=tmp_path / "none") is None
    (tmp_path / "empty").write_text("oom 3\n")
    (tmp_path / "odd").write_text("oom_kill many\n")
    assert [platform.read_oom_kills(tmp_path / name) for name in ("empty", "odd", "missing")] == [None] * 3


def test_killed_or_not() -> None:
    assert platform.was_killed(-signal.SIGKILL)
    assert not any(platform.was_killed(code) for code in (0, 1, 9, -signal.SIGABRT, 137))
