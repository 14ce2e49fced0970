"""What is wrong with a configuration: problems with their place, gathered so that all are told at once."""

import difflib
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from attrs import define, field, frozen

_PLAIN_NAME: Final = re.compile(r"[\w.:+@-]+")
_SHOWN_VALUE_CHARS: Final = 60


def join(where: str, name: str) -> str:
    """The dotted path of ``name`` under ``where``; a name that would be misread is quoted in brackets."""
    if not _PLAIN_NAME.fullmatch(name):
        return f"{where}[{json.dumps(_shorten(name))}]"
    return f"{where}.{name}" if where else name


@frozen
class ConfigProblem:
    """One thing to correct. ``path`` is dotted (``models.qwen.vram_gb``), "" for the file as a whole."""

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class ConfigError(Exception):
    """A configuration that cannot be used; ``problems`` holds every fault found, never only the first."""

    def __init__(self, problems: Iterable[ConfigProblem], source: str = "configuration") -> None:
        self.problems: Final = list(problems)
        self.source: Final = source
        super().__init__(source, self.problems)

    def __str__(self) -> str:
        count = len(self.problems)
        lines = [f"{self.source}: {count} problem{'' if count == 1 else 's'}"]
        lines += [f"  {problem}" for problem in self.problems]
        return "\n".join(lines)


@frozen
class Literal:
    """A number literal that cannot be used as one: NaN, Infinity, or more digits than can be read."""

    text: str


class JsonObject(dict[str, object]):
    """A parsed JSON object that remembers which of its keys were written more than once."""

    def __init__(self, pairs: Iterable[tuple[str, object]] = ()) -> None:
        super().__init__()
        repeated: dict[str, None] = {}
        for key, value in pairs:
            if key in self:
                repeated[key] = None
            self[key] = value
        self.repeated: Final = tuple(repeated)


class Invalid:
    """The type of `INVALID`."""


INVALID: Final = Invalid()
"""Stands for a value whose problem has been recorded."""


@define(eq=False)
class Reading:
    """One pass over a configuration: where its relative paths start, and the problems met so far."""

    folder: Path
    keys_name: str = "config.keys.json"
    models_dir: Path | None = None
    problems: list[ConfigProblem] = field(factory=list)

    def problem(self, where: str, message: str) -> Invalid:
        """Record a problem; whatever a client or a file wrote into it is made printable."""
        self.problems.append(ConfigProblem(printable(where), printable(message)))
        return INVALID


def show(value: object) -> str:
    """``value`` as it may appear in a message: short, and containers by kind only."""
    match value:
        case Literal(text=text):
            return f"{_shorten(text)}, which is no usable number"
        case dict():
            return "an object"
        case list():
            return "a list"
        case str():
            return json.dumps(_shorten(value), ensure_ascii=False)
        case bool() | None:
            return json.dumps(value)
        case _:
            return _shorten(str(value))


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name most like ``name`` (letter case aside), or None when none is near."""
    by_folded = {candidate.casefold(): candidate for candidate in known}
    found = difflib.get_close_matches(name.casefold()[:200], by_folded, n=1, cutoff=0.6)
    return by_folded[found[0]] if found else None


def suggestion(name: str, known: Iterable[str]) -> str:
    """``; did you mean "…"?`` or nothing, to end a message."""
    near = nearest(name, known)
    return "" if near is None else f'; did you mean "{near}"?'


def _shorten(text: str) -> str:
    return text if len(text) <= _SHOWN_VALUE_CHARS else text[:_SHOWN_VALUE_CHARS] + "…"


def printable(text: str) -> str:
    """``text`` with control characters, lone surrogates and the like written as escapes."""
    readable = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in readable)
