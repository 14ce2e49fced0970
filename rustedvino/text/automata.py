"""Regular languages of JSON text, written as grammars that leave the runtime no choice between branches.

The runtime merges states of its own automata wrongly where branches of a rule begin alike: of the four words ``b``,
``aabab``, ``babbb`` and ``babab`` it makes a grammar that also accepts ``aabbb``. Languages are therefore made
deterministic here: the branches of each rule begin with different characters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol

from attrs import define, field, frozen

from rustedvino.text.characters import BARE, Ranges, char_class, holds, merged, without

MAX_STATES: Final = 1500
MAX_ROUNDS: Final = 30
_LAST_ASCII: Final = 0x7F
_ESCAPED: Final = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
_TAKES_DIGITS: Final = re.compile(r"([\x01-\x1f\x7f-\xff])(?=[0-9a-fA-F])")
_APART: Final = r'\1" "'


class TooManyStates(Exception):
    """The language is too large to be made deterministic."""


class Rules(Protocol):
    """What is needed of a grammar under construction."""

    def recursive(self) -> str:
        """A new name."""

    def define(self, name: str, body: str) -> str:
        """Give a name its body."""

    def rule(self, body: str) -> str:
        """The name of a body."""

    def spend(self, steps: int) -> None:
        """Count work. Raises TooManyStates when it is too much for one grammar."""


@frozen
class Chars:
    """One character of a set."""

    ranges: Ranges


@frozen
class Joined:
    """One part behind the other."""

    parts: Sequence[Node]


@frozen
class Either:
    """One of the branches."""

    branches: Sequence[Node]


@frozen
class Repeated:
    """The body so many times; ``most`` None: without end."""

    body: Node
    least: int
    most: int | None


Node = Chars | Joined | Either | Repeated


def word(text: str) -> Node:
    """Exactly this text."""
    return Joined([Chars(((ord(character), ord(character)),)) for character in text])


def string_char(ranges: Ranges) -> Node | None:
    """A character of the set inside a JSON string: bare where that may be, else escaped; None when there is none.

    Control characters without a short escape are left out where the set has others.
    """
    bare = without(ranges, without(((0, 0x10FFFF),), BARE))
    branches: list[Node] = [Chars(bare)] if bare else []
    branches += [word(text) for character, text in _ESCAPED.items() if holds(ranges, ord(character))]
    if not branches:
        branches = [word(f"\\u{code:04x}") for code in range(0x20) if holds(ranges, code)]
    return Either(branches) if branches else None


def language(grammar: Rules, node: Node) -> str:
    """The rule of a language. Raises TooManyStates."""
    automaton = _deterministic(grammar, node)
    _merge_equal(grammar, automaton)
    return _written(grammar, automaton)


@define(eq=False)
class _Graph:
    """States by number, with steps by character and steps that need none. 0 is the start."""

    rules: Rules
    steps: list[list[tuple[int, int, int]]] = field(factory=lambda: [[]])
    jumps: list[list[int]] = field(factory=lambda: [[]])

    def state(self) -> int:
        """A new one."""
        self.rules.spend(4)
        self.steps.append([])
        self.jumps.append([])
        return len(self.steps) - 1

    def add(self, node: Node, start: int) -> int:
        """Add what leads through ``node`` from a state; returns where it ends."""
        end = start
        match node:
            case Chars(ranges):
                end = self.state()
                self.steps[start] += [(low, high, end) for low, high in ranges]
            case Joined(parts):
                for part in parts:
                    end = self.add(part, end)
            case Either(branches):
                end = self.state()
                for branch in branches:
                    begin = self.state()  # a loop at the beginning of a branch must not lead into the others
                    self.jumps[start].append(begin)
                    self.jumps[self.add(branch, begin)].append(end)
            case Repeated(body, least, most):
                for _ in range(least):
                    end = self.add(body, end)
                last = self.state()
                if most is None:
                    self.jumps[end].append(last)
                    self.jumps[self.add(body, last)].append(last)
                    return last
                for _ in range(most - least):
                    self.jumps[end].append(last)
                    end = self.add(body, end)
                self.jumps[end].append(last)
                return last
        return end


@define(eq=False)
class _Automaton:
    """Deterministic: from each state the ranges that lead to each other state."""

    steps: list[dict[int, list[tuple[int, int]]]]
    accepting: list[bool]


def _deterministic(grammar: Rules, node: Node) -> _Automaton:
    graph = _Graph(grammar)
    final = graph.add(node, 0)

    def closed(states: Iterable[int]) -> frozenset[int]:
        found = set(states)
        left = list(found)
        while left:
            for target in graph.jumps[left.pop()]:
                if target not in found:
                    found.add(target)
                    left.append(target)
        grammar.spend(len(found))
        return frozenset(found)

    start = closed([0])
    numbers = {start: 0}
    order = [start]
    result = _Automaton([], [])
    for states in order:
        result.accepting.append(final in states)
        steps: dict[int, list[tuple[int, int]]] = {}
        for low, high, targets in _apart([step for state in states for step in graph.steps[state]]):
            target = closed(targets)
            number = numbers.get(target)
            if number is None:
                number = numbers[target] = len(order)
                order.append(target)
                if len(order) > MAX_STATES:
                    raise TooManyStates
            steps.setdefault(number, []).append((low, high))
        result.steps.append(steps)
    return result


def _apart(steps: Sequence[tuple[int, int, int]]) -> list[tuple[int, int, frozenset[int]]]:
    """Cut overlapping ranges, so that each character has one set of targets."""
    edges: dict[int, list[tuple[int, int]]] = {}
    for low, high, target in steps:
        edges.setdefault(low, []).append((target, 1))
        edges.setdefault(high + 1, []).append((target, -1))
    active: dict[int, int] = {}
    result: list[tuple[int, int, frozenset[int]]] = []
    before = 0
    for at in sorted(edges):
        if active:
            result.append((before, at - 1, frozenset(active)))
        for target, change in edges[at]:
            active[target] = active.get(target, 0) + change
            if not active[target]:
                del active[target]
        before = at
    return result


def _merge_equal(grammar: Rules, automaton: _Automaton) -> None:
    """Let steps lead to one of the states that do the same, as far as a few rounds show."""
    same = list(range(len(automaton.steps)))
    for _ in range(MAX_ROUNDS):
        grammar.spend(len(same))
        first: dict[Any, int] = {}
        changed = False
        for state in range(len(automaton.steps)):
            if same[state] != state:
                continue
            steps: dict[int, list[tuple[int, int]]] = {}
            for target, ranges in automaton.steps[state].items():
                steps.setdefault(same[target], []).extend(ranges)
            automaton.steps[state] = steps
            key = automaton.accepting[state], frozenset((target, merged(ranges)) for target, ranges in steps.items())
            same[state] = first.setdefault(key, state)
            changed = changed or same[state] != state
        if not changed:
            break
        same = [same[same[state]] for state in range(len(same))]
    for state in range(len(same)):  # what a state became has a smaller number, and is final by now
        same[state] = same[same[state]]
    for state, steps in enumerate(automaton.steps):
        kept = steps if same[state] == state else {}
        moved: dict[int, list[tuple[int, int]]] = {}
        for target, ranges in kept.items():
            moved.setdefault(same[target], []).extend(ranges)
        automaton.steps[state] = moved


def _written(grammar: Rules, automaton: _Automaton) -> str:
    """One rule for each state; those that only accept are the end of the branches that lead there."""
    names = {state: grammar.recursive() for state, steps in enumerate(automaton.steps) if steps or not state}
    for state, name in names.items():
        branches = ['""'] if automaton.accepting[state] else []
        steps = [(target, merged(ranges)) for target, ranges in automaton.steps[state].items()]
        wide = sum(ranges[-1][1] > _LAST_ASCII for _, ranges in steps)
        for target, ranges in steps:
            rest = names.get(target, "")
            if rest and wide > 1 and ranges[-1][1] > _LAST_ASCII:
                # Branches may begin with the same byte: what follows must differ, or is merged.
                rest = grammar.define(grammar.recursive(), rest)
            branches.append(f"{char_class(ranges)} {rest}".rstrip())
        grammar.define(name, " | ".join(branches))
    return names[0]


def words(grammar: Rules, texts: Iterable[str]) -> str:
    """The rule of a list of texts, none of them empty."""
    tree: dict[str, Any] = {}
    for text in texts:
        node = tree
        for character in text:
            node = node.setdefault(character, {})
        node[""] = {}
    order = [tree]
    for node in order:
        order.extend(child for character, child in node.items() if character)
    made: dict[int, tuple[str, str]] = {}  # by node: the text that must follow, then the rule
    for node in reversed(order):
        ends = "" in node
        if ends and len(node) == 1:
            made[id(node)] = "", ""
        elif not ends and len(node) == 1:
            ((character, child),) = node.items()
            text, rest = made[id(child)]
            made[id(node)] = character + text, rest
        else:
            wide = sum(character > "\x7f" for character in node)
            branches = ['""'] if ends else []
            for character, child in node.items():
                if not character:
                    continue
                text, rest = made[id(child)]
                if wide > 1 and character > "\x7f":
                    body = f"{literal(text)} {rest}".rstrip() if text else rest or '""'
                    text, rest = "", grammar.define(grammar.recursive(), body)
                branches.append(f"{literal(character + text)} {rest}".rstrip())
            made[id(node)] = "", grammar.rule(" | ".join(branches))
    text, rest = made[id(tree)]
    return grammar.rule(f"{literal(text)} {rest}".rstrip()) if text else rest


def literal(text: str) -> str:
    """Exactly this text, in the notation of grammars."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    # The runtime writes such a character as \x with its code and reads hexadecimal digits behind it as part of that.
    return f'"{_TAKES_DIGITS.sub(_APART, escaped)}"'
