"""A command in a terminal of a given size, driven by what it prints."""

import codecs
import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Self

PATIENCE_SECS: Final = 60.0
MAX_SHOWN_CHARS: Final = 3000
ESCAPES: Final = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_=>]|\x1b\(B")
COLOURS: Final = re.compile(r"\x1b\[(?:\d+;)*(?:3[0-7]|4[0-7]|9[0-7]|10[0-7]|38|48)(?:;\d+)*m")


class Terminal:
    """``with Terminal([...], columns=80) as terminal:`` types and expects; all output is in ``raw``."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        cwd: Path,
        columns: int = 80,
        rows: int = 30,
    ) -> None:
        self.raw = ""
        self._seen = 0
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        try:
            self._process = subprocess.Popen(
                ["/usr/bin/env", "setsid", "-c", "-w", *command],
                stdin=theirs,
                stdout=theirs,
                stderr=theirs,
                cwd=cwd,
                env=environment,
            )
        finally:
            os.close(theirs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(10)
        with contextlib.suppress(OSError):
            os.close(self._ours)

    @property
    def text(self) -> str:
        """What was printed, without escape sequences."""
        return ESCAPES.sub("", self.raw).replace("\r\n", "\n")

    def _read(self, deadline: float) -> bool:
        """Read some output; False at its end."""
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([self._ours], [], [], left)[0]:
            raise AssertionError(f"nothing more came:\n{self.text[-MAX_SHOWN_CHARS:]}")
        try:
            received = os.read(self._ours, 65536)
        except OSError:  # how Linux says that nobody has the other side open
            received = b""
        self.raw += self._decode(received)
        return bool(received)

    def expect(self, pattern: str, bound_secs: float = PATIENCE_SECS) -> re.Match[str]:
        """Read until ``pattern`` is in the text, after what was expected before."""
        deadline = time.monotonic() + bound_secs
        while True:
            found = re.compile(pattern).search(self.text, self._seen)
            if found is not None:
                self._seen = found.end()
                return found
            assert self._read(deadline), f"{pattern!r} did not come:\n{self.text[-MAX_SHOWN_CHARS:]}"

    def type(self, text: str) -> None:
        """Type."""
        os.write(self._ours, text.encode())

    def interrupt(self) -> None:
        """Press ctrl-C."""
        self.type("\x03")

    def end(self, bound_secs: float = PATIENCE_SECS) -> int:
        """Read to the end and return the exit code."""
        deadline = time.monotonic() + bound_secs
        while self._read(deadline):
            pass
        return self._process.wait(10)

    def signal(self, number: int = signal.SIGTERM) -> None:
        """Send a signal."""
        self._process.send_signal(number)
