"""Integers and decimals within bounds, as languages of their digits."""

from __future__ import annotations

from decimal import Decimal
from typing import Final

from rustedvino.text.automata import Chars, Either, Joined, Node, Repeated, word
from rustedvino.text.json_grammar import INTEGER_DIGITS

BOUNDED_FRACTION_DIGITS: Final = 6
SIGNIFICANT_DIGITS: Final = 15
"""Decimals of so many digits are all different as double-precision numbers."""
LARGEST_INTEGER: Final = 10**INTEGER_DIGITS - 1

_DIGIT: Final = Chars(((0x30, 0x39),))


def integers(low: int | None, high: int | None) -> Node | None:
    """The integers within inclusive bounds, as far as INTEGER_DIGITS reach; None when there are none."""
    low = -LARGEST_INTEGER if low is None else max(low, -LARGEST_INTEGER)
    high = LARGEST_INTEGER if high is None else min(high, LARGEST_INTEGER)
    branches: list[Node] = []
    if low < 0:
        branches += [Joined([word("-"), digits]) for digits in _counting(max(1, -high), -low)]
    branches += _counting(max(0, low), high)
    return Either(branches) if branches else None


def decimals(low: Decimal | None, high: Decimal | None, *, fraction_digits: int) -> Node | None:
    """The numbers within inclusive bounds that have at most so many digits behind the point; None without any."""
    low = Decimal(-LARGEST_INTEGER) if low is None else max(low, Decimal(-LARGEST_INTEGER))
    high = Decimal(LARGEST_INTEGER) if high is None else min(high, Decimal(LARGEST_INTEGER))
    branches: list[Node] = []
    if low < 0:
        negative = _positive(max(Decimal(0), -high), -low, fraction_digits)
        branches += [Joined([word("-"), digits]) for digits in negative]
    if high >= 0:
        branches += _positive(max(Decimal(0), low), high, fraction_digits)
    return Either(branches) if branches else None


def _counting(low: int, high: int) -> list[Node]:
    """The integers from ``low`` >= 0 to ``high``, without leading zeros."""
    branches: list[Node] = []
    for length in range(len(str(low)), len(str(max(0, high))) + 1):
        first = max(low, 10 ** (length - 1) if length > 1 else 0)
        last = min(high, 10**length - 1)
        if first <= last:
            branches += _digits(str(first), str(last))
    return branches


def _digits(low: str, high: str) -> list[Node]:
    """The digit strings from ``low`` to ``high``, which have the same length."""
    rest = len(low) - 1
    if low == "0" * len(low) and high == "9" * len(low):
        return [_any_digits(len(low))]
    first, last = int(low[0]), int(high[0])
    if first == last:
        return [Joined([word(low[0]), tail]) for tail in _digits(low[1:], high[1:])] if rest else [word(low)]
    branches: list[Node] = []
    if low[1:] != "0" * rest:
        branches += [Joined([word(low[0]), tail]) for tail in _digits(low[1:], "9" * rest)]
        first += 1
    if high[1:] != "9" * rest:
        branches += [Joined([word(high[0]), tail]) for tail in _digits("0" * rest, high[1:])]
        last -= 1
    if first <= last:
        branches.append(Joined([Chars(((0x30 + first, 0x30 + last),)), _any_digits(rest)]))
    return branches


def _any_digits(count: int) -> Node:
    return Repeated(_DIGIT, count, count)


def _positive(low: Decimal, high: Decimal, fraction_digits: int) -> list[Node]:
    """The decimals from ``low`` >= 0 to ``high``."""
    if low > high:
        return []
    below, above = int(low), int(high)
    branches: list[Node] = []
    if below + 1 < above:
        branches += _with_fractions(_counting(below + 1, above - 1), None, None, fraction_digits)
    for whole in sorted({below, above}):
        least = _behind_point(low) if whole == below else None
        most = _behind_point(high) if whole == above else None
        branches += _with_fractions([word(str(whole))], least or None, most, fraction_digits)
    return branches


def _with_fractions(wholes: list[Node], low: str | None, high: str | None, left: int) -> list[Node]:
    """These integers, each followed by a fraction within the bounds, or by none where zero is within them."""
    fraction = _fraction(low, high, left, may_end=False)
    branches = list(wholes) if low is None else []
    if fraction is not None:
        branches += [Joined([whole, word("."), fraction]) for whole in wholes]
    return branches


def _fraction(low: str | None, high: str | None, left: int, *, may_end: bool = True) -> Node | None:
    """At most ``left`` digits that are no less than ``low`` and no more than ``high`` as fractions.

    Bounds are without zeros at the end; None is no bound, an empty ``high`` is zero.
    """
    if low is None and high is None:
        return Repeated(_DIGIT, 0 if may_end else 1, left) if may_end or left else None
    branches: list[Node] = [word("")] if low is None and may_end else []
    if left:
        first = int(low[0]) if low else 0
        last = 9 if high is None else int(high[:1] or 0)
        inner: list[tuple[int, int, str | None, str | None]] = [(first, last, None, None)]
        if low and high is not None and first == last:
            inner = [(first, last, low[1:] or None, high[1:])]
        else:
            if low:
                inner = [(first, first, low[1:] or None, None), (first + 1, last, None, None)]
            if high is not None:
                begin, _, _, _ = inner.pop()
                inner += [(begin, last - 1, None, None), (last, last, None, high[1:])]
        for begin, end, least, most in inner:
            rest = _fraction(least, most, left - 1) if begin <= end else None
            if rest is not None:
                branches.append(Joined([Chars(((0x30 + begin, 0x30 + end),)), rest]))
    return Either(branches) if branches else None


def _behind_point(value: Decimal) -> str:
    """The digits behind the point, without zeros at the end."""
    return format(value, "f").partition(".")[2].rstrip("0")
