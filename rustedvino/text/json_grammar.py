"""Grammars of JSON texts in the runtime's EBNF, put together rule by rule.

Every grammar made here bounds the white space between tokens and the length of numbers: a model that cannot decide
would otherwise write blanks or digits until its tokens run out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final

from attrs import define, field

from rustedvino.text.automata import TooManyStates, literal
from rustedvino.text.characters import BARE, char_class, holds, merged, without

INTEGER_DIGITS: Final = 18
FRACTION_DIGITS: Final = 15

EMPTY: Final = '""'
MAX_WORK: Final = 500_000
"""About a second of work."""
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
    _work: int = 0
    size_bytes: int = 0
    """Length of all bodies so far, in characters."""

    def spend(self, steps: int) -> None:
        """Count the work of making languages deterministic: some have exponentially many states.

        Raises TooManyStates when it is too much."""
        self._work += steps
        if self._work > MAX_WORK:
            raise TooManyStates

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
        if len(possible) < 2:
            return possible[0] if possible else NEVER
        # The runtime puts rules without references in the place of their names, and may then merge branches that begin
        # alike (see automata): each gets a reference to nothing, to stay a rule.
        nothing = self.rule(EMPTY)
        return self.rule(" | ".join(self.rule(f"{branch} {nothing}") for branch in possible))

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
        full = f'{self.blank} {" ".join(inside)} {self.blank} "]"'
        return self.rule(f'"[" {full}' if head or least else f'"[" ("]" | {full})')

    def object_of(self, pair: str, least: int, most: int | None) -> str:
        """An object of ``pair`` again and again."""
        if most == 0 or pair is NEVER:
            return self.rule('"{}"')
        more = repeated(f'("," {self.blank} {pair})', max(0, least - 1), None if most is None else most - 1)
        full = f'{self.blank} {pair} {more} {self.blank} "}}"'
        return self.rule(f'"{{" {full}' if least else f'"{{" ("}}" | {full})')

    # Strings.

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


def json_text(value: Any) -> str:
    """A JSON value written in the usual way."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
