"""What differs between operating systems about worker processes. The one place for it.

Linux is what we run and test on. The Windows branches are written against the documented calls, type-checked,
and untested there.
"""

import ctypes
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

if TYPE_CHECKING:  # imported where the server uses it: a worker starts in half the time without
    import trio

WORKER_PROGRAM: Final = ("-m", "rustedvino.worker")
WORKER_NICENESS: Final = 10
_PR_SET_PDEATHSIG: Final = 1
_PROC: Final = Path("/proc")
_CGROUPS: Final = Path("/sys/fs/cgroup")


def spawn_worker(
    role: str, environment: dict[str, str], *, program: Sequence[str] = WORKER_PROGRAM
) -> tuple["subprocess.Popen[bytes]", socket.socket]:
    """Start a worker process and return it with our end of its frame socket (blocking mode untouched).

    ``program`` is what our interpreter is given to run; the arguments of a worker follow it.
    Must be called on the main thread: Linux delivers the parent-death signal when the *thread* that forked ends.
    Raises OSError when the process cannot be started.
    """
    ours, theirs = socket.socketpair()
    command = [sys.executable, *program, "--role", role, "--parent", str(os.getpid())]
    try:
        if sys.platform == "win32":
            process = subprocess.Popen(
                [*command, "--share"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                creationflags=subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.BELOW_NORMAL_PRIORITY_CLASS,
            )
            assert process.stdin is not None
            shared = theirs.share(process.pid)
            process.stdin.write(struct.pack(">I", len(shared)) + shared)
            process.stdin.close()
        else:
            process = subprocess.Popen(
                [*command, "--fd", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(theirs.fileno(),),
                env=environment,
            )
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()  # otherwise the end of the worker would never be an end of stream here
    return process, ours


def inherit_socket(fd: int | None) -> socket.socket:
    """Return the worker's end of the frame socket: from a descriptor, or from the share sent on stdin."""
    if sys.platform == "win32":
        (length,) = struct.unpack(">I", sys.stdin.buffer.read(4))
        return socket.fromshare(sys.stdin.buffer.read(length))
    assert fd is not None
    os.set_inheritable(fd, False)
    return socket.socket(fileno=fd)


def die_with_parent(parent_pid: int) -> None:
    """Have the system kill this process when its parent ends; exit at once when it has already. Linux only."""
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
        if os.getppid() != parent_pid:
            os._exit(0)  # it died before prctl took effect


def enter_worker(parent_pid: int) -> None:
    """Tie this process to its server, leave signals of the whole group to the server and lower our priority.

    Exits at once when the server has already gone. The end of the frame stream is the second, portable tie.
    """
    # An interrupt, or a service manager's request to end, reaches the whole group; what it means for running
    # requests is the server's decision. The server ends a worker by a frame, or by SIGKILL.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    die_with_parent(parent_pid)
    if sys.platform != "win32":
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        # The event loop must win the core from a decode step; measured: no loss of tokens/s.
        os.nice(WORKER_NICENESS)


async def wait_exit(process: "subprocess.Popen[bytes]") -> int:
    """Wait until the process has ended, reap it and return its exit code (negative: killed by that signal).

    Cancellation is safe: the process is left as it is.
    """
    if (code := process.poll()) is not None:
        return code  # Popen.kill() reaps a process that it finds dead: there is nothing left to watch
    import trio

    if sys.platform == "linux":
        pidfd = os.pidfd_open(process.pid)
        try:
            await trio.lowlevel.wait_readable(pidfd)
        finally:
            trio.lowlevel.notify_closing(pidfd)
            os.close(pidfd)
        return process.wait()
    if sys.platform == "win32":
        await trio.lowlevel.WaitForSingleObject(int(vars(process)["_handle"]))
        return process.wait()
    return await trio.to_thread.run_sync(process.wait, abandon_on_cancel=True)


def receive_stream(pipe: IO[bytes]) -> "trio.abc.ReceiveStream":
    """A stream over a duplicate of a pipe's descriptor; closing it leaves the pipe object open."""
    import trio

    if sys.platform == "win32":

        class ThreadedPipe(trio.abc.ReceiveStream):
            """Anonymous pipes of Windows cannot be waited for: a thread reads, and is abandoned on cancellation."""

            def __init__(self, fd: int) -> None:
                self._fd = fd

            async def receive_some(self, max_bytes: int | None = None) -> bytes:
                return await trio.to_thread.run_sync(os.read, self._fd, max_bytes or 65536, abandon_on_cancel=True)

            async def aclose(self) -> None:
                os.close(self._fd)
                await trio.lowlevel.checkpoint()

        return ThreadedPipe(os.dup(pipe.fileno()))
    return trio.lowlevel.FdStream(os.dup(pipe.fileno()))


def is_stopped(pid: int) -> bool:
    """Whether the process is in state T (stopped by a signal): such a worker makes no progress by itself."""
    if sys.platform != "linux":
        return False
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] == b"T"
    except OSError:
        return False  # gone: its exit is noticed elsewhere


def cpu_secs(pid: int) -> float | None:
    """Processor time that the process has used, of all its threads; None where the system does not say."""
    if sys.platform != "linux":
        return None
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return None  # gone
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def was_killed(code: int) -> bool:
    """Whether an exit code says that the process ended by SIGKILL, whoever sent it."""
    return sys.platform != "win32" and code == -signal.SIGKILL


def oom_kill_counter(pid: int, *, proc: Path = _PROC, cgroups: Path = _CGROUPS) -> Path | None:
    """The file in which the kernel counts what it killed for lack of memory, of the control group of a process, else
    of the whole machine. None where there is no such count, or the process is gone. See ``read_oom_kills``."""
    if sys.platform != "linux":
        return None
    try:
        groups = (proc / str(pid) / "cgroup").read_text().splitlines()
    except OSError:
        return None
    for line in groups:
        _, controllers, group = line.split(":", 2)
        if "memory" in controllers.split(","):  # the first version of control groups
            places = [cgroups / "memory"]
            name = "memory.oom_control"
        elif not controllers:
            places = [cgroups, cgroups / "unified"]
            name = "memory.events"
        else:
            continue
        for place in places:
            # In a container the group's path may be the host's, while what is mounted begins at the group itself.
            for candidate in (place / group.lstrip("/") / name, place / name):
                if candidate.is_file():
                    return candidate
    machine = proc / "vmstat"
    return machine if machine.is_file() else None


def read_oom_kills(counter: Path) -> int | None:
    """How many processes the kernel has killed for lack of memory, by a file of ``oom_kill_counter``; None if it does
    not say."""
    try:
        for line in counter.read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    except (OSError, ValueError):
        return None  # the group is gone
    return None


def system_ram_bytes() -> int:
    """Physical memory of this machine."""
    if sys.platform == "win32":

        class MemoryStatus(ctypes.Structure):
            """MEMORYSTATUSEX of the Windows API."""

            _fields_ = (
                ("length", ctypes.c_ulong),
                ("memory_load", ctypes.c_ulong),
                ("total_physical", ctypes.c_ulonglong),
                ("rest", ctypes.c_ulonglong * 6),
            )

        status = MemoryStatus(length=ctypes.sizeof(MemoryStatus))
        if not ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status)):
            raise ctypes.WinError()
        return int(status.total_physical)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def limit_resources(*, address_space_bytes: int | None) -> None:
    """Bound what a worker may map beyond what it has mapped now. No effect where the system lacks the limit."""
    if sys.platform == "linux" and address_space_bytes is not None:
        import resource

        with open("/proc/self/statm", "rb") as file:
            mapped = int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (mapped + address_space_bytes, hard))


def describe_exit(code: int) -> str:
    """Say in words how a process ended: ``exit code 3`` or ``signal SIGKILL``."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"
