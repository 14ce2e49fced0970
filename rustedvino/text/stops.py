"""Exact stop strings over streamed text."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence

import attrs


@attrs.frozen
class StopResult:
    """Text that may be sent now, and the stop string that ended the text, if one did."""

    text_to_emit: str
    hit: str | None = None


@attrs.define(eq=False)
class _Pattern:
    """One stop string with its Knuth-Morris-Pratt failure table."""

    text: str
    failure: list[int] = attrs.field(init=False)
    matched: int = 0
    """How many of its characters the end of the text matches now."""

    def __attrs_post_init__(self) -> None:
        failure = [0] * (len(self.text) + 1)
        length = 0
        for index in range(1, len(self.text)):
            while length and self.text[index] != self.text[length]:
                length = failure[length]
            if self.text[index] == self.text[length]:
                length += 1
            failure[index + 1] = length
        self.failure = failure

    def feed(self, char: str) -> bool:
        """Advance by one character; whether the pattern is now complete."""
        text, failure, matched = self.text, self.failure, self.matched
        while matched and text[matched] != char:
            matched = failure[matched]
        if text[matched] == char:
            matched += 1
        self.matched = matched
        return matched == len(text)


class StopMatcher:
    """Cuts a stream at the first stop string, however the text is split into pieces.

    The text ends where the earliest stop string of the whole text starts; of several that start there the
    shortest is reported. To be equal to that definition for every split, a complete match waits while a
    stop string that started before it may still complete. Held back is only what may still become (part
    of) a stop string. Time is linear in the text for a given number of stop strings.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """Raises ValueError for an empty stop string."""
        if any(not stop for stop in stops):
            msg = "a stop string must not be empty"
            raise ValueError(msg)
        self._patterns = [_Pattern(stop) for stop in dict.fromkeys(stops)]
        first_chars = "".join(re.escape(char) for char in {stop[0] for stop in stops})
        self._may_start = re.compile(f"[{first_chars}]") if first_chars else None
        self._idle = True
        """Whether nothing is open: no stop string has begun."""
        self._position = 0
        self._emitted = 0
        self._held: deque[str] = deque()
        self._best_start: int | None = None
        self._best = ""
        self._hit: str | None = None

    @property
    def hit(self) -> str | None:
        """The stop string that ended the text; None while it goes on."""
        return self._hit

    def push(self, text: str) -> StopResult:
        """Take the next piece of text. After a hit everything is swallowed."""
        if self._hit is not None:
            return StopResult("", self._hit)
        if self._may_start is None:
            return StopResult(text)
        index = 0
        while index < len(text) and self._hit is None:
            if self._idle:
                found = self._may_start.search(text, index)
                skipped = (found.start() if found else len(text)) - index
                self._position += skipped
                index += skipped
                if found is None:
                    break
            self._step(text[index])
            index += 1
        return self._emit(text)

    def flush(self) -> StopResult:
        """End of the text: decide what was still open."""
        if self._hit is not None:
            return StopResult("", self._hit)
        if self._best_start is not None:
            self._hit = self._best
        else:
            for pattern in self._patterns:
                pattern.matched = 0
        return self._emit("")

    def _step(self, char: str) -> None:
        self._position += 1
        earliest_open = self._position
        for pattern in self._patterns:
            if pattern.feed(char):
                start = self._position - len(pattern.text)
                if self._best_start is None or start < self._best_start:
                    self._best_start, self._best = start, pattern.text
                pattern.matched = pattern.failure[len(pattern.text)]
            earliest_open = min(earliest_open, self._position - pattern.matched)
        self._idle = earliest_open == self._position and self._best_start is None
        if self._best_start is not None and earliest_open >= self._best_start:
            self._hit = self._best

    def _emit(self, text: str) -> StopResult:
        if self._idle and not self._held:
            self._emitted = self._position
            return StopResult(text)
        if self._hit is not None and self._best_start is not None:
            end = self._best_start
        else:
            # A complete match that waits began later than this.
            end = self._position - max(pattern.matched for pattern in self._patterns)
        count = end - self._emitted
        self._emitted = end
        if text:
            self._held.append(text)
        return StopResult(self._take(count), self._hit)

    def _take(self, count: int) -> str:
        """Remove the first `count` characters of what is held. Pieces are never joined while they wait."""
        taken = []
        while count:
            piece = self._held.popleft()
            if len(piece) > count:
                self._held.appendleft(piece[count:])
                piece = piece[:count]
            count -= len(piece)
            taken.append(piece)
        if self._hit is not None:
            self._held.clear()
        return "".join(taken)
