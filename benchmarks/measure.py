"""Clocks, memory, processes and statistics that every benchmark here uses. Linux only, like the targets."""

import os
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

MILLI = 1e3
MICRO = 1e6
NANOS = 1e-9


def cpu_ns(pid: int) -> int:
    """CPU time of a whole process, ended threads included, in nanoseconds.

    /proc/PID/stat counts in ticks of 10 ms and /proc/PID/schedstat knows one thread; the CPU clock of a process
    (clock_getcpuclockid, whose arithmetic this is) has neither fault. Raises OSError for a process that has ended.
    """
    return time.clock_gettime_ns((~pid << 3) | 2)


def pss_bytes(pid: int) -> int:
    """Memory of a process; pages shared with others count by their share."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"process {pid} has no Pss line")


def children(pid: int) -> list[int]:
    """Direct children of a process."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(word) for word in (task / "children").read_text().split()]
    return found


def end(process: "subprocess.Popen[str]", patience_secs: float) -> None:
    """Ask a process of ours to end, and kill it when it has not after so long."""
    process.terminate()
    try:
        process.wait(patience_secs)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def command_line(pid: int) -> list[str]:
    """The words a process was started with."""
    return Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")[:-1]


def load_average() -> float:
    """Runnable tasks over the last minute: above the number of cores, someone else was at work."""
    return os.getloadavg()[0]


def percentile(values: Iterable[float], share: float) -> float:
    """The nearest-rank percentile; nan of nothing."""
    ordered = sorted(values)
    if not ordered:
        return float("nan")
    return ordered[min(len(ordered) - 1, max(0, -int(-share * len(ordered) // 1) - 1))]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table, its columns aligned for reading as plain text."""
    lines = [list(head), *(list(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    drawn = [
        "| " + " | ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    ]
    drawn.insert(1, "|" + "|".join("-" * (width + 1) + ":" for width in widths) + "|")
    return "\n".join(drawn)
