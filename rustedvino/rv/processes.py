"""Processes that rv started earlier: whether one is still the same, what belongs to it, and ending it.

Linux is what this runs and is tested on; other branches are written against the documented calls and type-checked.
"""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

if TYPE_CHECKING:  # imported where a process is started: most verbs start none
    import subprocess

_ZOMBIE: Final = (b"Z", b"X")
_PROCESS_QUERY_LIMITED_INFORMATION: Final = 0x1000
_STILL_ACTIVE: Final = 259


def identity(pid: int) -> str | None:
    """What tells a process from another one that gets its number later; None when there is no such process.

    Starting times of the system's own clock, with the boot that they count from.
    """
    if sys.platform == "linux":
        fields = _stat(pid)
        if fields is None or fields[0] in _ZOMBIE:
            return None
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}:{fields[19].decode()}"
    if sys.platform == "win32":
        return _windows_identity(pid)
    import subprocess

    found = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)  # noqa: S607
    return found.stdout.strip() or None


def is_of_this_boot(value: str) -> bool:
    """Whether an identity was taken since the machine was started, as far as that can be told."""
    own = identity(os.getpid())
    return own is not None and own.rpartition(":")[0] == value.rpartition(":")[0]


def _windows_identity(pid: int) -> str | None:
    if sys.platform != "win32":
        raise AssertionError
    import ctypes

    kernel = ctypes.windll.kernel32
    handle = kernel.OpenProcess(_PROCESS_QUERY_LIMITED_INFORMATION, False, pid)
    if not handle:
        return None
    try:
        code = ctypes.c_ulong()
        times = [ctypes.c_ulonglong() for _ in range(4)]
        if not kernel.GetExitCodeProcess(handle, ctypes.byref(code)) or code.value != _STILL_ACTIVE:
            return None
        if not kernel.GetProcessTimes(handle, *(ctypes.byref(time) for time in times)):
            return None
        return f"windows:{times[0].value}"
    finally:
        kernel.CloseHandle(handle)


def session_members(leader: int) -> list[int]:
    """Processes that live in the session which ``leader`` opened, itself included; [] where that cannot be told.

    Session 0 is that of everybody whose leader lives outside of our PID namespace, as in a container: nobody's here.
    """
    if sys.platform != "linux" or leader < 1:
        return []
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            fields = _stat(int(entry))
            if fields is not None and fields[0] not in _ZOMBIE and int(fields[3]) == leader:
                found.append(int(entry))
    return found


def _stat(pid: int) -> list[bytes] | None:
    """The fields of /proc/PID/stat from the state on: after the name, which may hold anything."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return None


def spawn(command: Sequence[str], *, folder: Path, log: IO[bytes]) -> "subprocess.Popen[bytes]":
    """Start a process that outlives us and our terminal, in a session of its own. Raises OSError."""
    import subprocess

    if sys.platform == "win32":
        flags = subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder, creationflags=flags
        )
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder, start_new_session=True
    )


def tell_to_end(pid: int) -> None:
    """Ask a process to end in good order. Raises OSError."""
    if sys.platform == "win32":
        import ctypes

        # A break reaches only processes of one's own console: theirs is borrowed for it.
        kernel = ctypes.windll.kernel32
        kernel.FreeConsole()
        if not kernel.AttachConsole(pid):
            raise ctypes.WinError()
        kernel.SetConsoleCtrlHandler(None, True)
        os.kill(pid, signal.CTRL_BREAK_EVENT)
        return
    os.kill(pid, signal.SIGTERM)


def kill(pids: Sequence[int]) -> None:
    """End processes by force, those that are gone already left out. Raises OSError."""
    if sys.platform == "win32":
        number = signal.SIGTERM  # there it is TerminateProcess
    else:
        number = signal.SIGKILL
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
