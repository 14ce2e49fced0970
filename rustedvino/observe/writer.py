"""Writing log lines without ever waiting for whoever reads them."""

import queue
import threading
from typing import Final, TextIO

from attrs import define, field

MAX_PENDING_LINES: Final = 10_000
FLUSH_BOUND_SECS: Final = 2.0
_BATCH_LINES: Final = 256


@define(eq=False)
class LineWriter:
    """A thread writes to ``stream``, so that a full pipe holds up that thread and never the event loop.

    When ``max_pending`` records wait, further ones are dropped; their number is written when there is room again.
    A stream that fails is not written to again: there is no place left to say so.
    """

    stream: TextIO
    max_pending: int = MAX_PENDING_LINES
    dropped: int = field(default=0, init=False)
    """Records dropped and not yet told of."""
    _queue: "queue.SimpleQueue[str | threading.Event | None]" = field(factory=queue.SimpleQueue, init=False)
    _thread: threading.Thread = field(init=False)
    _broken: bool = field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        # A daemon: a stream that nobody reads must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="log writer", daemon=True)
        self._thread.start()

    def write(self, line: str) -> None:
        """Queue one record. Never waits."""
        if self._queue.qsize() >= self.max_pending:
            self.dropped += 1
            return
        if self.dropped:
            count, self.dropped = self.dropped, 0
            self._queue.put(f"({count} log records were dropped: nobody read the log fast enough)")
        self._queue.put(line)

    def flush(self, bound_secs: float = FLUSH_BOUND_SECS) -> bool:
        """Wait until everything queued so far is written; False when that took longer than the bound."""
        done = threading.Event()
        self._queue.put(done)
        return done.wait(bound_secs)

    def close(self, bound_secs: float = FLUSH_BOUND_SECS) -> None:
        """Write what is queued, within the bound, and end the thread. The stream stays open."""
        self._queue.put(None)
        self._thread.join(bound_secs)

    def _run(self) -> None:
        while True:
            item = self._queue.get()
            lines: list[str] = []
            while isinstance(item, str):
                lines.append(item)
                if len(lines) >= _BATCH_LINES or self._queue.empty():
                    item = ""
                    break
                item = self._queue.get()
            if lines:
                self._put_out("\n".join(lines) + "\n")
            if item is None:
                return
            if isinstance(item, threading.Event):
                item.set()

    def _put_out(self, text: str) -> None:
        if self._broken:
            return
        try:
            self.stream.write(text)
            self.stream.flush()
        except (OSError, ValueError):  # the reader is gone; the stream was closed
            self._broken = True
