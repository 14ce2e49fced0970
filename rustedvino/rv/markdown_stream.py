"""Cutting markdown that still grows into blocks that no longer change."""

from typing import Final

FENCES: Final = ("```", "~~~")


class BlockSplitter:
    """Text in, finished blocks out. Together the blocks and the rest are the text, byte for byte.

    A block is finished when an empty line is followed by a line that begins at the margin: then neither a code fence
    nor a list item goes on.
    """

    def __init__(self) -> None:
        self._text = ""
        self._scanned = 0
        self._fence = ""
        self._boundary: int | None = None
        """Where the line after an empty one begins, when it is still to be seen what it is."""

    @property
    def rest(self) -> str:
        """What may still change."""
        return self._text

    def feed(self, text: str) -> list[str]:
        """The blocks that are finished now."""
        self._text += text
        blocks = []
        while (end := self._text.find("\n", self._scanned)) >= 0:
            line = self._text[self._scanned : end]
            if self._boundary is not None and line.strip() and self._ends_block(line):
                blocks.append(self._text[: self._boundary])
                self._text = self._text[self._boundary :]
                end -= self._boundary
            self._note(line, end + 1)
        return blocks

    def _ends_block(self, line: str) -> bool:
        return not line[0].isspace()

    def _note(self, line: str, next_line: int) -> None:
        """Take note of a line that is complete; the next one begins at ``next_line``."""
        self._scanned = next_line
        bare = line.strip()
        if self._fence:
            if bare.startswith(self._fence) and not bare.strip(self._fence[0]):
                self._fence = ""
            self._boundary = None
        elif bare.startswith(FENCES):
            self._fence = bare[: len(bare) - len(bare.lstrip(bare[0]))]
            self._boundary = None
        else:
            self._boundary = None if bare else next_line
