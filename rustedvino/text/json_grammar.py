"""Grammars of JSON texts in the runtime's EBNF, put together rule by rule.

Every grammar made here bounds the white space between tokens and the length of numbers: a model that cannot decide
would otherwise write blanks or digits until its tokens run out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any, Final

from attrs import define, field

from rustedvino.text.characters import BARE, char_class, holds, merged, without

INTEGER_DIGITS: Final = 18
FRACTION_DIGITS: Final = 15
BOUNDED_FRACTION_DIGITS: Final = 6
SIGNIFICANT_DIGITS: Final = 15
"""Decimals of so many digits are all different as double-precision numbers."""
LARGEST_INTEGER: Final = 10**INTEGER_DIGITS - 1

EMPTY: Final = '""'
NEVER: Final = "\x00"
"""The expression of what no text matches. It is never part of a rule: whoever meets it leaves the branch out."""

_WHITESPACE: Final = r'"" | " " | "\n" [ \t]{0,16}'
_BARE_CHAR: Final = char_class(BARE)
_STRING_CHAR: Final = _BARE_CHAR + r' | "\\" {escape}'
# No half of a surrogate pair: it is no character, and what was counted as two would be one.
_ESCAPE: Final = r'["\\/bfnrt] | "u" ([0-9A-CE-Fa-ce-f] {hex} | [Dd] [0-7]) {hex} {hex}'


@define(eq=False)
class Grammar:
    """Rules under construction; equal bodies share a rule. Expressions are fit to stand in a sequence."""

    _rules: dict[str, str] = field(factory=dict)
    _names: dict[str, str] = field(factory=dict)
    size_bytes: int = 0
    """Length of all bodies so far, in characters."""

    def rule(self, body: str) -> str:
        """The name of the rule with this body."""
        name = self._names.get(body)
        if name is None:
            name = self._names[body] = f"r{len(self._rules)}"
            self._rules[name] = body
            self.size_bytes += len(body)
        return name

    def recursive(self) -> str:
        """A name to be used before ``define`` gives its body."""
        name = f"r{len(self._rules)}"
        self._rules[name] = ""
        return name

    def define(self, name: str, body: str) -> str:
        """Give the body of a name from ``recursive``."""
        self._rules[name] = body
        self.size_bytes += len(body)
        return name

    def either(self, branches: Iterable[str]) -> str:
        """One of the branches, each a sequence."""
        possible = list(dict.fromkeys(branch for branch in branches if branch is not NEVER))
        if not possible:
            return NEVER
        return possible[0] if len(possible) == 1 else self.rule(" | ".join(possible))

    def text(self, root: str) -> str:
        """The whole grammar, ``root`` an expression of it."""
        return "".join(f"{name} ::= {body}\n" for name, body in (("root", root), *self._rules.items()))

    # Tokens of JSON.

    @property
    def blank(self) -> str:
        """The white space that may stand inside brackets: none, a blank, or a line break with its indentation."""
        return self.rule(_WHITESPACE)

    @property
    def char(self) -> str:
        """One character inside a string, escaped where it must be."""
        digit = self.rule("[0-9A-Fa-f]")
        return self.rule(_STRING_CHAR.format(escape=self.rule(_ESCAPE.format(hex=digit))))

    @property
    def string(self) -> str:
        """Any string."""
        return self.rule(f'"\\"" {self.char}* "\\""')

    @property
    def integer(self) -> str:
        """Any integer, as far as INTEGER_DIGITS reach."""
        return self.rule(f'"0" | "-"? [1-9] [0-9]{{0,{INTEGER_DIGITS - 1}}}')

    @property
    def number(self) -> str:
        """Any number, as far as INTEGER_DIGITS and FRACTION_DIGITS reach."""
        return self.rule(
            f'"-"? ("0" | [1-9] [0-9]{{0,{INTEGER_DIGITS - 1}}}) ("." [0-9]{{1,{FRACTION_DIGITS}}})?'
            " ([eE] [+-]? [0-9]{1,2})?"
        )

    @property
    def value(self) -> str:
        """Any JSON value."""
        return self._any()[0]

    @property
    def object(self) -> str:
        """Any JSON object."""
        return self._any()[1]

    def _any(self) -> tuple[str, str]:
        known = self._names.get("")
        if known is not None:
            return known, self._names["{}"]
        value = self._names[""] = self.recursive()
        item = self.object_of(f"{self.string} {self.colon} {value}", 0, None)
        self._names["{}"] = item
        items = self.array_of([], value, 0, None)
        self.define(value, f'{item} | {items} | {self.string} | {self.number} | "true" | "false" | "null"')
        return value, item

    @property
    def colon(self) -> str:
        """What stands between a name and its value."""
        return '":" " "?'

    def array_of(self, head: Sequence[str], item: str, least: int, most: int | None) -> str:
        """``head`` and then ``item`` again and again, ``least`` to ``most`` items in all."""
        comma = f'"," {self.blank} '
        inside = [comma.join(f"{part} " for part in head)] if head else []
        left = None if most is None else most - len(head)
        if item is NEVER or left == 0:
            pass
        elif head:
            inside.append(repeated(f"({comma}{item})", max(0, least - len(head)), left))
        else:
            more = repeated(f"({comma}{item})", max(0, least - 1), None if left is None else left - 1)
            inside.append(f"{item} {more}")
        if not inside:
            return self.rule('"[]"')
        full = f'"[" {self.blank} {" ".join(inside)} {self.blank} "]"'
        return self.rule(full if head or least else f'"[]" | {full}')

    def object_of(self, pair: str, least: int, most: int | None) -> str:
        """An object of ``pair`` again and again."""
        if most == 0 or pair is NEVER:
            return self.rule('"{}"')
        more = repeated(f'("," {self.blank} {pair})', max(0, least - 1), None if most is None else most - 1)
        full = f'"{{" {self.blank} {pair} {more} {self.blank} "}}"'
        return self.rule(full if least else f'"{{}}" | {full}')

    # Strings, and numbers within bounds.

    def string_of(self, least: int, most: int | None) -> str:
        """A string of ``least`` to ``most`` characters."""
        return self.rule(f'"\\"" {repeated(self.char, least, most)} "\\""')

    def other_names(self, names: Iterable[str]) -> str:
        """A string, with its quotes, that is none of ``names`` and has no escapes."""
        tree: dict[str, Any] = {}
        for name in names:
            node = tree
            for character in name:
                node = node.setdefault(character, {})
            node[""] = {}
        tail = self.rule(f'{self.rule(_BARE_CHAR)}{{0,64}} "\\""')
        return self.rule(f'"\\"" {self._none_of(tree, tail)}')

    def _none_of(self, root: dict[str, Any], tail: str) -> str:
        """The rest of a string that leaves the tree of names somewhere. Without recursion: names may be long."""
        order: list[dict[str, Any]] = [root]
        for node in order:
            order.extend(child for character, child in node.items() if character)
        made: dict[int, str] = {}
        for node in reversed(order):
            known = [character for character in node if character and holds(BARE, ord(character))]
            codes = merged((ord(character), ord(character)) for character in known)
            branches = [f"{char_class(without(BARE, codes))} {tail}"]
            branches += [f"{literal(character)} {made[id(node[character])]}" for character in known]
            if "" not in node:
                branches.append('"\\""')
            made[id(node)] = self.rule(" | ".join(branches))
        return made[id(root)]

    def integer_between(self, low: int | None, high: int | None) -> str:
        """An integer within inclusive bounds; NEVER when there is none."""
        low = -LARGEST_INTEGER if low is None else max(low, -LARGEST_INTEGER)
        high = LARGEST_INTEGER if high is None else min(high, LARGEST_INTEGER)
        branches = []
        if low < 0:
            branches += [f'"-" {digits}' for digits in _counting(max(1, -high), -low)]
        branches += _counting(max(0, low), high)
        return self.either(branches)

    def number_between(self, low: Decimal | None, high: Decimal | None, *, fraction_digits: int) -> str:
        """A number within inclusive bounds, with at most so many digits behind the point; NEVER when there is none."""
        low = Decimal(-LARGEST_INTEGER) if low is None else max(low, Decimal(-LARGEST_INTEGER))
        high = Decimal(LARGEST_INTEGER) if high is None else min(high, Decimal(LARGEST_INTEGER))
        branches: list[str] = []
        if low < 0:
            branches += [f'"-" {digits}' for digits in _decimals(max(Decimal(0), -high), -low, fraction_digits)]
        if high >= 0:
            branches += _decimals(max(Decimal(0), low), high, fraction_digits)
        return self.either(branches)


def repeated(expression: str, least: int, most: int | None) -> str:
    """``expression``, which is one name, class or group, so many times."""
    match least, most:
        case _, 0:
            return ""
        case 0, None:
            return f"{expression}*"
        case 1, 1:
            return expression
        case 0, 1:
            return f"{expression}?"
        case _, None:
            return f"{expression}{{{least},}}"
        case _:
            return f"{expression}{{{least},{most}}}"


def literal(text: str) -> str:
    """Exactly this text."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return f'"{escaped}"'


def json_literal(value: Any) -> str:
    """Exactly this JSON value, written in the usual way."""
    return literal(json.dumps(value, ensure_ascii=False, allow_nan=False))


def _counting(low: int, high: int) -> list[str]:
    """Sequences for the integers from ``low`` >= 0 to ``high``, without leading zeros."""
    branches: list[str] = []
    for length in range(len(str(low)), len(str(max(0, high))) + 1):
        first = max(low, 10 ** (length - 1) if length > 1 else 0)
        last = min(high, 10**length - 1)
        if first <= last:
            branches += _digits(str(first), str(last))
    return branches


def _digits(low: str, high: str) -> list[str]:
    """Sequences for the digit strings from ``low`` to ``high``, which have the same length."""
    if not low:
        return [""]
    length = len(low)
    if low == "0" * length and high == "9" * length:
        return [_any_digits(length)]
    if low[0] == high[0]:
        return [f'"{low[0]}" {rest}'.rstrip() for rest in _digits(low[1:], high[1:])]
    branches: list[str] = []
    first, last = int(low[0]), int(high[0])
    if low[1:] != "0" * (length - 1):
        branches += [f'"{first}" {rest}' for rest in _digits(low[1:], "9" * (length - 1))]
        first += 1
    upper: list[str] = []
    if high[1:] != "9" * (length - 1):
        upper = [f'"{last}" {rest}' for rest in _digits("0" * (length - 1), high[1:])]
        last -= 1
    if first <= last:
        head = f"[{first}-{last}]" if first < last else f'"{first}"'
        branches.append(f"{head} {_any_digits(length - 1)}".rstrip())
    return branches + upper


def _any_digits(count: int) -> str:
    return "" if count == 0 else "[0-9]" if count == 1 else f"[0-9]{{{count}}}"


def _decimals(low: Decimal, high: Decimal, fraction_digits: int) -> list[str]:
    """Sequences for the decimals from ``low`` >= 0 to ``high`` with at most so many digits behind the point."""
    if low > high:
        return []
    branches: list[str] = []
    below = int(low.to_integral_value(ROUND_FLOOR))
    above = int(high.to_integral_value(ROUND_FLOOR))
    if below + 1 < above:
        fraction = f' ("." [0-9]{{1,{fraction_digits}}})?' if fraction_digits else ""
        branches += [f"{digits}{fraction}" for digits in _counting(below + 1, above - 1)]
    for whole in sorted({below, above}):
        for count in range(fraction_digits + 1):
            scale = 10**count
            first = int((max(low, Decimal(whole)) * scale).to_integral_value(ROUND_CEILING)) - whole * scale
            last = min(int((high * scale).to_integral_value(ROUND_FLOOR)) - whole * scale, scale - 1)
            if first > last:
                continue
            if count == 0:
                branches.append(f'"{whole}"')
            else:
                digits = _digits(str(first).zfill(count), str(last).zfill(count))
                branches += [f'"{whole}." {rest}' for rest in digits]
    return branches
