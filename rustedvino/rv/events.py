"""Server-sent events, without I/O."""

from typing import Final

from rustedvino.rv.errors import RvError

MAX_EVENT_BYTES: Final = 16 * 2**20


class EventParser:
    """Bytes in, the data of whole events out. Comments and fields other than ``data`` are left out."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._size = 0

    def feed(self, received: bytes) -> list[str]:
        """The data of the events that are complete now. Raises RvError when one grows beyond all bounds."""
        *lines, self._rest = (self._rest + received).split(b"\n")
        found = []
        for line in lines:
            stripped = line.removesuffix(b"\r")
            if not stripped:
                if self._data:
                    found.append(b"\n".join(self._data).decode("utf-8", "replace"))
                self._data, self._size = [], 0
            elif stripped.startswith(b"data:"):
                self._data.append(stripped[5:].removeprefix(b" "))
                self._size += len(stripped)
        if self._size + len(self._rest) > MAX_EVENT_BYTES:
            raise RvError("the server sent an event that does not end", code="bad_answer")
        return found
