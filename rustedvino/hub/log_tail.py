"""The last lines of what a process printed, and the cutting of its output into lines."""

from collections import deque
from collections.abc import Callable
from typing import Final

from attrs import define, field

LINE_BYTES: Final = 8 * 1024
TAIL_BYTES: Final = 64 * 1024


@define(eq=False)
class LogTail:
    """Takes bytes as they come; ``on_line`` gets each whole line, cut at LINE_BYTES. Memory is bounded."""

    on_line: Callable[[bytes], None]
    _partial: bytearray = field(factory=bytearray)
    _lines: deque[bytes] = field(factory=deque)
    _bytes: int = 0

    def feed(self, data: bytes) -> None:
        """Take a piece of the output."""
        *complete, rest = data.split(b"\n")
        for part in complete:
            if self._partial:
                part = bytes(self._partial) + part
                self._partial.clear()
            self._keep(part[:LINE_BYTES])
        self._partial += rest[: LINE_BYTES - len(self._partial)]

    def end(self) -> None:
        """The output has ended: what is left is the last line."""
        if self._partial:
            self._keep(bytes(self._partial))
            self._partial.clear()

    def text(self) -> str:
        """The last lines, TAIL_BYTES of them at most."""
        return b"\n".join(self._lines).decode("utf-8", "replace")

    def _keep(self, line: bytes) -> None:
        self._lines.append(line)
        self._bytes += len(line) + 1
        while self._bytes > TAIL_BYTES:
            self._bytes -= len(self._lines.popleft()) + 1
        self.on_line(line)
