"""Processes: the same one still, its session, its end."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rustedvino.rv import processes

SLEEPER = (sys.executable, "-c", "import sys, time; print('up', flush=True); time.sleep(600)")
CODE = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], process_group=0)
print(child.pid, flush=True)
child.wait()
"""
PARENT = (sys.executable, "-c", CODE)


def start(command: tuple[str, ...], tmp_path: Path) -> tuple["subprocess.Popen[bytes]", str]:
    """A process of ours and the first line that it prints."""
    read, write = os.pipe()
    with os.fdopen(read, "rb") as stream, os.fdopen(write, "wb") as log:
        process = processes.spawn(command, folder=tmp_path, log=log)
        log.close()
        return process, stream.readline().decode().strip()


def test_an_identity_lasts_as_long_as_the_process(tmp_path: Path) -> None:
    process, _ = start(SLEEPER, tmp_path)
    first = processes.identity(process.pid)
    assert first is not None
    assert processes.identity(process.pid) == first != processes.identity(os.getpid())
    processes.tell_to_end(process.pid)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert processes.identity(process.pid) is None, "it has ended, though nobody has reaped it"
    assert process.wait(10) == -signal.SIGTERM
    assert processes.identity(process.pid) is None


def test_it_is_in_a_session_of_its_own_with_its_children(tmp_path: Path) -> None:
    process, child = start(PARENT, tmp_path)
    try:
        assert os.getsid(process.pid) == process.pid
        assert sorted(processes.session_members(process.pid)) == sorted([process.pid, int(child)])
        assert os.readlink(f"/proc/{process.pid}/cwd") == str(tmp_path)
    finally:
        processes.kill([*processes.session_members(process.pid), 2**22 + 1])
    assert process.wait(10) == -signal.SIGKILL
    assert process.pid not in processes.session_members(process.pid)


def test_identities_of_another_boot() -> None:
    own = processes.identity(os.getpid())
    assert own is not None
    assert processes.is_of_this_boot(own)
    assert not processes.is_of_this_boot("0c8f:" + own.rpartition(":")[2])


def test_what_cannot_be_started_raises(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb") as log, pytest.raises(OSError, match="no-such-program"):
        processes.spawn(["no-such-program"], folder=tmp_path, log=log)


@pytest.mark.skipif(sys.platform != "linux", reason="sessions are read from /proc")
@pytest.mark.parametrize("leader", [0, -1])
def test_a_session_without_a_leader_here_has_no_members(leader: int) -> None:
    """In a container, processes of its host's sessions show session 0: kernel threads do so anywhere."""
    assert processes.session_members(leader) == []
