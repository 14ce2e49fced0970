"""What native libraries print inside workers, as lines of the server's log."""

import logging
import time
from collections.abc import Callable
from typing import Final, Literal

from attrs import define, field

log = logging.getLogger("rustedvino.worker")

LINES_PER_SEC: Final = 20.0
BURST_LINES: Final = 200.0


@define(eq=False)
class WorkerLines:
    """Logs the lines that one worker prints: stderr at info, stdout at debug, empty ones not at all.

    Of a worker that prints without end, BURST_LINES and then LINES_PER_SEC are logged, and how many were left out:
    a line costs tens of microseconds of the event loop.
    """

    level: int
    clock: Callable[[], float] = time.monotonic
    _tokens: float = field(default=BURST_LINES, init=False)
    _at: float = field(init=False)
    _left_out: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self._at = self.clock()

    def __call__(self, line: bytes, *, label: str, pid: int) -> None:
        """Log a line of the worker with that process id; ``label`` is its model id, or its role."""
        if not log.isEnabledFor(self.level):
            return
        text = line.decode("utf-8", "replace").rstrip()
        if not text:
            return
        now = self.clock()
        self._tokens = min(BURST_LINES, self._tokens + (now - self._at) * LINES_PER_SEC)
        self._at = now
        if self._tokens < 1.0:
            self._left_out += 1
            return
        self._tokens -= 1.0
        fields = {"model": label, "worker": str(pid)}
        if self._left_out:
            count, self._left_out = self._left_out, 0
            log.log(self.level, "(%d lines of output were left out)", count, extra=fields)
        log.log(self.level, "%s", text, extra=fields)


def worker_lines(stream: Literal["stdout", "stderr"]) -> WorkerLines:
    """The logger of one stream of one worker."""
    return WorkerLines(logging.INFO if stream == "stderr" else logging.DEBUG)
