"""Sets of characters as ranges of code points, and how a grammar writes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

Ranges = tuple[tuple[int, int], ...]

ALL: Final[Ranges] = ((0, 0xD7FF), (0xE000, 0x10FFFF))
"""Every character; halves of surrogate pairs are none."""
_LAST_ASCII: Final = 0x7F
_LENGTHS: Final = ((0, 0x7F, ()), (0x80, 0x7FF, ()), (0x800, 0xFFFF, (0x1000,)), (0x10000, 0x10FFFF, (0x40000, 0x1000)))
"""First and last character by length in UTF-8, and how many characters share all but the last bytes."""
BARE: Final[Ranges] = ((0x20, 0x21), (0x23, 0x5B), (0x5D, 0xD7FF), (0xE000, 0x10FFFF))
"""What stands in a JSON string as itself."""


def merged(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """The set of all these, its ranges in order and apart."""
    result: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if result and low <= result[-1][1] + 1:
            result[-1] = (result[-1][0], max(result[-1][1], high))
        else:
            result.append((low, high))
    return tuple(result)


def without(ranges: Ranges, removed: Ranges) -> Ranges:
    """What is in ``ranges`` and not in ``removed``."""
    left = list(ranges)
    for low, high in removed:
        cut: list[tuple[int, int]] = []
        for start, end in left:
            if end < low or high < start:
                cut.append((start, end))
                continue
            if start < low:
                cut.append((start, low - 1))
            if high < end:
                cut.append((high + 1, end))
        left = cut
    return tuple(left)


def holds(ranges: Ranges, code: int) -> bool:
    """Whether the character of that code is in the set."""
    return any(low <= code <= high for low, high in ranges)


def char_class(ranges: Ranges) -> str:
    """A class of the grammar."""
    missing = without(ALL, ranges)
    if missing and missing[-1][1] <= _LAST_ASCII:
        # Far cheaper than to spell out what is left; beyond ASCII the runtime negates wrongly.
        return f"[^{_members(missing)}]"
    return f"[{_members(ranges)}]"


def _members(ranges: Ranges) -> str:
    pieces = (piece for low, high in ranges for piece in _pieces(low, high))
    inside = (_member(low) if low == high else f"{_member(low)}-{_member(high)}" for low, high in pieces)
    return "".join(inside)


def _pieces(low: int, high: int) -> Iterator[tuple[int, int]]:
    """Cut a range where its bytes in UTF-8 carry over: the runtime loses the last characters of ranges across that."""
    for start, end, steps in _LENGTHS:
        first, last = max(low, start), min(high, end)
        for step in steps:
            border = last // step * step
            if first < border and last % step != step - 1:
                yield first, border - 1
                first = border
        if first <= last:
            yield first, last


def _member(code: int) -> str:
    character = chr(code)
    if character.isascii() and character.isalnum():
        return character
    # Not \x: the runtime reads as many hexadecimal digits behind it as there are.
    return f"\\U{code:08x}" if code > 0xFFFF else f"\\u{code:04x}"
