"""What a decoder hands to the parsers, and how tags are found in it.

A model's output arrives as pieces: plain text, or one control token (an added token of the
model's vocabulary). A tag such as ``<tool_call>`` is a control token for one model and plain
letters for another. A control token with the text of a tag always counts. The letters count only
for a tag that is not among the ``control_tokens`` a parser is given: those the model has and would
use. (An output forced by a grammar may spell a tag out all the same; its parser is given none.)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import attrs


@attrs.frozen(slots=True)
class ControlToken:
    """One added token of the vocabulary: its id, its text, and whether the vocabulary calls it special.

    A special token that means nothing to a parser is dropped; one that is not special is text.
    """

    id: int
    text: str
    special: bool = True


Piece: TypeAlias = str | ControlToken


class TagFinder:
    """Finds tags written as letters in a stream of text, in time linear in the text.

    ``feed`` gives the text in front of the first tag, the tag (or None) and the text behind it.
    The end of a text that may still become a tag is held back, at most one character less than
    the longest tag. No tag may be the beginning of another.
    """

    def __init__(self, tags: Iterable[str]) -> None:
        self._tags = tuple(dict.fromkeys(tags))
        self._firsts = "".join(sorted({tag[0] for tag in self._tags}))
        self._longest = max((len(tag) for tag in self._tags), default=0)
        self._held = ""

    def __bool__(self) -> bool:
        return bool(self._tags)

    @property
    def holding(self) -> bool:
        return bool(self._held)

    def is_clear(self, text: str) -> bool:
        """Whether the text passes untouched: nothing is held back and no tag can start in it."""
        if self._held:
            return False
        for first in self._firsts:  # noqa: SIM110 - once per token: a generator costs twice as much
            if first in text:
                return False
        return True

    def feed(self, text: str) -> tuple[str, str | None, str]:
        """Cut at the first tag: (text before, tag, rest to be fed again). Without one: (text, None, "")."""
        if self._held:
            text = self._held + text
            self._held = ""
        best, found = len(text), None
        for tag in self._tags:
            at = text.find(tag, 0, best + len(tag))
            if 0 <= at < best:
                best, found = at, tag
        if found is not None:
            return text[:best], found, text[best + len(found) :]
        keep = self._unfinished_at(text)
        self._held = text[keep:]
        return text[:keep], None, ""

    def flush(self) -> str:
        """Give back what was held; it was no tag."""
        held, self._held = self._held, ""
        return held

    def _unfinished_at(self, text: str) -> int:
        for at in range(max(0, len(text) - self._longest + 1), len(text)):
            if text[at] in self._firsts:
                tail = text[at:]
                if any(tag.startswith(tail) for tag in self._tags):
                    return at
        return len(text)


def letter_tags(tags: Iterable[str], control_tokens: frozenset[str]) -> tuple[str, ...]:
    """The tags the model has no control token for: these count when written as letters."""
    return tuple(tag for tag in tags if tag not in control_tokens)
