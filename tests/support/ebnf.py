"""Random texts of a grammar in the runtime's notation, as far as the project's own grammars use it."""

import random
import re
from typing import Any

_TOKEN = re.compile(
    r"\s*(?:(?P<name>[A-Za-z_][A-Za-z0-9_]*)|(?P<text>\"(?:[^\"\\]|\\.)*\")|(?P<set>\[(?:[^\]\\]|\\.)*\])"
    r"|(?P<count>\{\d+(?:,\d*)?\})|(?P<sign>[()|*+?]))"
)
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_NEGATED_CHOICES = "azAZ09 ,.:-_{}[]()<>/'|éß中🙂\u2028"
_MORE = 3
_DEEP = 40
_ENDLESS = 10**6


class Texts:
    """Draws texts of a grammar. Repetitions and recursion end early by themselves, so that texts stay short."""

    def __init__(self, grammar: str, seed: int) -> None:
        self._random = random.Random(seed)
        self._rules = {}
        for line in grammar.removesuffix("\n").split("\n"):
            name, _, body = line.partition(" ::= ")
            assert name not in self._rules, f"{name} twice"
            self._rules[name] = _parse(body)
        self._depths = dict.fromkeys(self._rules, _ENDLESS)
        changed = True
        while changed:  # backwards, since our rules mostly refer to those behind them
            changed = False
            for name in reversed(self._rules):
                depth = self._depth(self._rules[name])
                changed = changed or depth != self._depths[name]
                self._depths[name] = depth

    def _depth(self, node: Any) -> int:
        """How deep the references go at least."""
        kind, *parts = node
        match kind:
            case "name":
                return min(_ENDLESS, self._depths[parts[0]] + 1)
            case "sequence":
                return max(map(self._depth, parts[0]))
            case "choice":
                return min(map(self._depth, parts[0]))
            case "repeat":
                return self._depth(parts[0]) if parts[1] else 0
        return 0

    def draw(self) -> str:
        """One text of ``root``."""
        return self._make(self._rules["root"], 0)

    def _make(self, node: Any, depth: int) -> str:
        kind, *parts = node
        match kind:
            case "text":
                return parts[0]
            case "set":
                return self._member(*parts)
            case "name":
                return self._make(self._rules[parts[0]], depth + 1)
            case "sequence":
                return "".join(self._make(part, depth) for part in parts[0])
            case "choice":
                branches = parts[0]
                branch = min(branches, key=self._depth) if depth > _DEEP else self._random.choice(branches)
                return self._make(branch, depth)
            case _:
                body, least, most = parts
                most = least + _MORE if most is None or most > least + _MORE else most
                count = least if depth > _DEEP else self._random.randint(least, most)
                return "".join(self._make(body, depth) for _ in range(count))

    def _member(self, ranges: list[tuple[int, int]], negated: bool) -> str:
        if negated:
            fit = [c for c in _NEGATED_CHOICES if not any(low <= ord(c) <= high for low, high in ranges)]
            return self._random.choice(fit)
        low, high = self._random.choice(ranges)
        return chr(self._random.randint(low, high))


def _parse(body: str) -> Any:
    tokens = []
    at = 0
    while at < len(body.rstrip()):
        found = _TOKEN.match(body, at)
        assert found, f"not understood: {body[at : at + 40]!r}"
        tokens.append((found.lastgroup, found.group(found.lastgroup)))
        at = found.end()
    node, rest = _choice(tokens, 0)
    assert rest == len(tokens), f"left over in {body!r}"
    return node


def _choice(tokens: list[Any], at: int) -> tuple[Any, int]:
    branches = []
    while True:
        branch, at = _sequence(tokens, at)
        branches.append(branch)
        if at >= len(tokens) or tokens[at] != ("sign", "|"):
            return ("choice", branches), at
        at += 1


def _sequence(tokens: list[Any], at: int) -> tuple[Any, int]:
    parts: list[Any] = []
    while at < len(tokens) and tokens[at] not in (("sign", "|"), ("sign", ")")):
        kind, text = tokens[at]
        at += 1
        if text == "(":
            node, at = _choice(tokens, at)
            assert tokens[at] == ("sign", ")")
            at += 1
            parts.append(node)
        elif kind == "name":
            parts.append(("name", text))
        elif kind == "text":
            parts.append(("text", _unescaped(text[1:-1])))
        elif kind == "set":
            parts.append(_set(text[1:-1]))
        else:
            least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(text) or _counts(text)
            parts.append(("repeat", parts.pop(), least, most))
    assert parts, "an empty sequence"
    return ("sequence", parts), at


def _counts(text: str) -> tuple[int, int | None]:
    least, comma, most = text[1:-1].partition(",")
    return int(least), int(most) if most else None if comma else int(least)


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(_character, text)


def _character(found: re.Match[str]) -> str:
    four, eight, other = found.groups()
    return chr(int(four or eight, 16)) if four or eight else {"n": "\n", "r": "\r", "t": "\t"}.get(other, other)


def _set(text: str) -> Any:
    negated = text.startswith("^")
    pieces = re.findall(r"\\u[0-9a-fA-F]{4}|\\U[0-9a-fA-F]{8}|\\.|.", text[negated:])
    codes = [ord(_unescaped(piece)) for piece in pieces]
    ranges = []
    at = 0
    while at < len(codes):
        if at + 2 < len(codes) and pieces[at + 1] == "-":
            ranges.append((codes[at], codes[at + 2]))
            at += 3
        else:
            ranges.append((codes[at], codes[at]))
            at += 1
    return ("set", ranges, negated)
