"""Integers and decimals within bounds, as languages of their digits."""

from __future__ import annotations

from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
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
    branches: list[Node] = []
    below = int(low.to_integral_value(ROUND_FLOOR))
    above = int(high.to_integral_value(ROUND_FLOOR))
    if below + 1 < above:
        fraction = Repeated(
            Joined([word("."), Repeated(_DIGIT, 1, max(1, fraction_digits))]), 0, min(1, fraction_digits)
        )
        branches += [Joined([digits, fraction]) for digits in _counting(below + 1, above - 1)]
    for whole in sorted({below, above}):
        for count in range(fraction_digits + 1):
            scale = 10**count
            first = int((max(low, Decimal(whole)) * scale).to_integral_value(ROUND_CEILING)) - whole * scale
            last = min(int((high * scale).to_integral_value(ROUND_FLOOR)) - whole * scale, scale - 1)
            if first > last:
                continue
            if count == 0:
                branches.append(word(str(whole)))
            else:
                digits = _digits(str(first).zfill(count), str(last).zfill(count))
                branches += [Joined([word(f"{whole}."), rest]) for rest in digits]
    return branches
