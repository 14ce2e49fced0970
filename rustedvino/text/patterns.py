"""Regular expressions of JSON schemas as languages of the characters inside a JSON string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NoReturn

from attrs import define, field, frozen

from rustedvino.text.automata import Either, Joined, Node, Repeated, string_char
from rustedvino.text.characters import ALL, Ranges, merged, without

MAX_PATTERN_CHARS: Final = 1024
MAX_PATTERN_NESTING: Final = 16
MAX_PATTERN_SIZE: Final = 8192
"""Characters and classes of a pattern with its counted repetitions written out."""

_DIGIT: Final[Ranges] = ((0x30, 0x39),)
_WORD: Final[Ranges] = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
_SPACE: Final[Ranges] = ((0x09, 0x0D), (0x20, 0x20))
_LINE_ENDS: Final[Ranges] = ((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029))
_ASCII: Final[Ranges] = ((0x00, 0x7F),)
_CONTROLS: Final = {"n": 0x0A, "r": 0x0D, "t": 0x09, "f": 0x0C, "v": 0x0B}
_SYNTAX: Final = frozenset("^$\\.*+?()[]{}|/-")


class PatternError(Exception):
    """A pattern that is wrong, too large, or beyond what a grammar can hold."""


@frozen
class Body:
    """The inside of a string, and the lengths in characters its texts have; ``most`` None: any."""

    node: Node
    least: int
    most: int | None
    size: int


def parse_pattern(pattern: str) -> Body:
    """The strings in which ``pattern`` is found, as JSON schema asks for it. Raises PatternError.

    ``\\d``, ``\\w`` and ``\\s`` and their opposites are those of ASCII: on these all engines agree.
    """
    if len(pattern) > MAX_PATTERN_CHARS:
        raise PatternError(f"is longer than {MAX_PATTERN_CHARS} characters")
    return _Parser(pattern).parse()


@define(eq=False)
class _Parser:
    _pattern: str
    _at: int = 0
    _nesting: int = 0
    _sets: dict[Ranges, Node] = field(factory=dict)

    def parse(self) -> Body:
        branches = [self._anchored()]
        while self._take("|"):
            branches.append(self._anchored())
        if self._at < len(self._pattern):
            self._fail("a parenthesis is closed that was never opened")
        return self._choice(branches)

    def _anchored(self) -> Body:
        """One branch at the outermost level; what is not anchored may have anything around it."""
        parts = [] if self._take("^") else [self._anything()]
        parts.append(self._sequence(outermost=True))
        if not self._take("$"):
            parts.append(self._anything())
        return _joined(parts)

    def _anything(self) -> Body:
        return Body(Repeated(self._set(ALL), 0, None), 0, None, 1)

    def _choice(self, branches: Sequence[Body]) -> Body:
        if len(branches) == 1:
            return branches[0]
        most = [branch.most for branch in branches]
        return Body(
            Either([branch.node for branch in branches]),
            min(branch.least for branch in branches),
            None if None in most else max(length for length in most if length is not None),
            sum(branch.size for branch in branches),
        )

    def _sequence(self, *, outermost: bool = False) -> Body:
        parts: list[Body] = []
        size = 0
        while self._at < len(self._pattern):
            character = self._pattern[self._at]
            if character in "|)":
                break
            if character == "$":
                rest = self._pattern[self._at + 1 : self._at + 2]
                if not outermost or rest not in ("", "|"):
                    self._fail("'$' is supported at the end only")
                break
            if character == "^":
                self._fail("'^' is supported at the beginning only")
            part = self._repetition(self._atom())
            size += part.size
            if size > MAX_PATTERN_SIZE:
                raise PatternError(f"stands for more than {MAX_PATTERN_SIZE} characters")
            parts.append(part)
        return _joined(parts)

    def _repetition(self, atom: Body) -> Body:
        counts = self._counts()
        if counts is None:
            return atom
        least, most = counts
        if self._take("?"):
            pass  # lazy or not: the same texts
        if self._pattern[self._at : self._at + 1] in ("*", "+", "?", "{") and self._at < len(self._pattern):
            self._fail("a repetition is repeated")
        if most is not None and most < least:
            self._fail("a repetition's bounds are the wrong way round")
        size = atom.size * max(1, least if most is None else most)
        if size > MAX_PATTERN_SIZE:
            raise PatternError(f"stands for more than {MAX_PATTERN_SIZE} characters")
        return Body(
            Repeated(atom.node, least, most),
            atom.least * least,
            None if most is None or atom.most is None else atom.most * most,
            size,
        )

    def _counts(self) -> tuple[int, int | None] | None:
        for character, counts in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(character):
                return counts
        if not self._take("{"):
            return None
        least = self._number()
        if least is None:
            self._fail("'{' begins no repetition; write '\\{'")
        most: int | None = least
        if self._take(","):
            most = self._number()
        if not self._take("}"):
            self._fail("'{' begins no repetition; write '\\{'")
        return least, most

    def _number(self) -> int | None:
        start = self._at
        while self._pattern[self._at : self._at + 1] in _DIGITS:
            self._at += 1
        digits = self._pattern[start : self._at]
        if len(digits) > 6:
            raise PatternError(f"stands for more than {MAX_PATTERN_SIZE} characters")
        return int(digits) if digits else None

    def _atom(self) -> Body:
        character = self._next()
        if character == "(":
            return self._group()
        if character == "[":
            return self._one_of(self._class())
        if character == ".":
            return self._one_of(without(ALL, _LINE_ENDS))
        if character == "\\":
            return self._one_of(self._escape(inside_class=False))
        if character in "*+?{":
            self._fail("nothing to repeat")
        return self._one_of(((ord(character), ord(character)),))

    def _group(self) -> Body:
        if self._take("?"):
            if self._take(":"):
                pass
            elif self._pattern[self._at : self._at + 2] in ("<=", "<!") or self._pattern[self._at : self._at + 1] in (
                "=",
                "!",
            ):
                self._fail("looking ahead or behind is not supported")
            elif self._take("P<") or self._take("<"):
                end = self._pattern.find(">", self._at)
                if end < 0 or not self._pattern[self._at : end].isidentifier():
                    self._fail("a group's name is wrong")
                self._at = end + 1
            else:
                self._fail("flags and special groups are not supported")
        self._nesting += 1
        if self._nesting > MAX_PATTERN_NESTING:
            raise PatternError(f"is nested deeper than {MAX_PATTERN_NESTING} levels")
        branches = [self._sequence()]
        while self._take("|"):
            branches.append(self._sequence())
        if not self._take(")"):
            self._fail("a parenthesis is not closed")
        self._nesting -= 1
        return self._choice(branches)

    def _class(self) -> Ranges:
        negated = self._take("^")
        named = False  # whether a set such as \\d is part of it
        ranges: list[tuple[int, int]] = []
        first = True
        while first or not self._take("]"):
            if first and self._take("]"):
                self._fail("an empty class")
            first = False
            start = self._class_item()
            named = named or start in (_DIGIT, _WORD, _SPACE)
            follows = self._pattern[self._at : self._at + 2]
            if len(follows) == 2 and follows[0] == "-" and follows[1] != "]":
                self._at += 1
                end = self._class_item()
                if len(start) != 1 or len(end) != 1 or start[0][0] != start[0][1] or end[0][0] != end[0][1]:
                    self._fail("a range needs single characters at both ends")
                if start[0][0] > end[0][0]:
                    self._fail("a range is the wrong way round")
                ranges.append((start[0][0], end[0][0]))
            else:
                ranges += start
        chosen = merged(ranges)
        if not negated:
            return chosen
        return without(_ASCII if named else ALL, chosen)

    def _class_item(self) -> Ranges:
        character = self._next()
        if character == "\\":
            return self._escape(inside_class=True)
        return ((ord(character), ord(character)),)

    def _escape(self, *, inside_class: bool) -> Ranges:
        character = self._next()
        sets = {"d": _DIGIT, "w": _WORD, "s": _SPACE}
        if character in sets:
            return sets[character]
        if character.lower() in sets:
            if inside_class:
                self._fail(f"'\\{character}' inside a class is not supported")
            return without(_ASCII, sets[character.lower()])
        code: int | None = _CONTROLS.get(character)
        if character == "b" and inside_class:
            code = 8
        elif character in "xu":
            digits = self._pattern[self._at : self._at + (2 if character == "x" else 4)]
            if len(digits) < (2 if character == "x" else 4) or not all(digit in _HEX for digit in digits):
                self._fail(f"'\\{character}' needs hexadecimal digits")
            self._at += len(digits)
            code = int(digits, 16)
        elif character in _SYNTAX or not (character.isalnum() or character == "_"):
            code = ord(character)
        if code is None:
            self._fail(f"'\\{character}' is not supported")
        return ((code, code),)

    def _one_of(self, ranges: Ranges) -> Body:
        return Body(self._set(ranges), 1, 1, 1)

    def _set(self, ranges: Ranges) -> Node:
        known = self._sets.get(ranges)
        if known is None:
            known = string_char(ranges)
            if known is None:
                self._fail("a class holds no character")
            self._sets[ranges] = known
        return known

    def _next(self) -> str:
        if self._at >= len(self._pattern):
            self._fail("it ends too early")
        self._at += 1
        return self._pattern[self._at - 1]

    def _take(self, text: str) -> bool:
        if self._pattern.startswith(text, self._at):
            self._at += len(text)
            return True
        return False

    def _fail(self, reason: str) -> NoReturn:
        raise PatternError(f"cannot be used: {reason} (at character {self._at})")


_DIGITS: Final = frozenset("0123456789")
_HEX: Final = frozenset("0123456789abcdefABCDEF")


def _joined(parts: Sequence[Body]) -> Body:
    most: int | None = 0
    for part in parts:
        most = None if most is None or part.most is None else most + part.most
    return Body(
        Joined([part.node for part in parts]),
        sum(part.least for part in parts),
        most,
        sum(part.size for part in parts),
    )
