"""The last lines of the log, kept for the admin route that shows them."""

import threading
from collections import deque
from itertools import islice
from typing import Final

from attrs import define, field, frozen

DEFAULT_TAIL_LINES: Final = 200
MAX_LINES: Final = 5000
MAX_CHARS: Final = 2 * 2**20


@frozen(kw_only=True)
class LogPage:
    """Lines of the log, oldest first. ``first`` and ``last`` number them, counted from 1 at the server's start;
    without lines ``first`` is ``last`` + 1, and ``last`` is where to go on from."""

    lines: list[str]
    first: int
    last: int


@define(eq=False)
class LogRing:
    """The newest lines within a number and a size; older ones are forgotten. Safe to use from any thread."""

    max_lines: int = MAX_LINES
    max_chars: int = MAX_CHARS
    _lines: deque[str] = field(factory=deque, init=False)
    _chars: int = field(default=0, init=False)
    _count: int = field(default=0, init=False)
    _lock: threading.Lock = field(factory=threading.Lock, init=False)

    def append(self, text: str) -> None:
        """Add one record; its lines are counted singly. A line longer than all that may be kept is cut."""
        with self._lock:
            for whole in text.split("\n"):
                line = whole[: self.max_chars]
                self._lines.append(line)
                self._chars += len(line)
                self._count += 1
            while len(self._lines) > self.max_lines or self._chars > self.max_chars:
                self._chars -= len(self._lines.popleft())

    def tail(self, lines: int = DEFAULT_TAIL_LINES, *, after: int | None = None) -> LogPage:
        """The newest lines, ``lines`` of them at most; with ``after`` only those with a greater number.

        A follower passes the ``last`` of the page before; ``first`` then tells how many it has missed.
        """
        with self._lock:
            count = min(max(lines, 0), len(self._lines))
            if after is not None:
                count = min(count, max(0, self._count - after))
            newest = list(islice(reversed(self._lines), count))
            last = self._count
        newest.reverse()
        return LogPage(lines=newest, first=last - len(newest) + 1, last=last)
