"""Whether a worker ended for lack of memory: the kernel's count of its kills, and a worker's last words."""

from collections import deque
from pathlib import Path
from typing import Final

from attrs import define, field

from rustedvino.worker import platform
from rustedvino.worker.out_of_memory import speaks_of_memory

RECENT_SECS: Final = 10.0
"""How long the end of a process that the kernel chose may take: it frees gigabytes first."""
LAST_LINES: Final = 100
"""Lines of output that count as last words: an abort prints the stacks of all threads after its reason."""


@define(eq=False)
class OomKills:
    """The kernel's count of processes that it killed for lack of memory, in the control group of one worker.

    ``look`` now and then while the worker lives; then ``recent`` says whether there were such kills. The kernel does
    not say whom it killed: ask only about a worker that was killed, and by nobody here. Times are seconds of one clock.
    """

    pid: int
    _counter: Path | None = None
    _samples: deque[tuple[float, int]] = field(factory=deque)

    def look(self, now: float) -> None:
        """Note the count as it is now."""
        counter = platform.oom_kill_counter(self.pid)
        if counter is None:
            return  # no such count, or the worker is gone: what was seen before stands
        if counter != self._counter:  # moved to another group, whose count has nothing to do with the last one
            self._counter = counter
            self._samples.clear()
        count = platform.read_oom_kills(counter)
        if count is None:
            return
        self._samples.append((now, count))
        while len(self._samples) > 1 and self._samples[1][0] <= now - RECENT_SECS:
            self._samples.popleft()  # the oldest left is what the count is compared with

    def recent(self) -> bool:
        """Whether the count has grown over the last RECENT_SECS."""
        count = None if self._counter is None else platform.read_oom_kills(self._counter)
        return count is not None and bool(self._samples) and count > self._samples[0][1]


def last_words_of_memory(output: str) -> str | None:
    """The last line at the end of a worker's output that says that memory ran out, None without one."""
    for line in reversed(output.splitlines()[-LAST_LINES:]):
        if speaks_of_memory(line):
            return line.strip()[:300]
    return None
