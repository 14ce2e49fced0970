"""Keeps text of a client from becoming control tokens of the chat template.

Before rendering, every occurrence of a control string in client text gets a private-use character (the
mark) behind its first character. What the template itself writes has no mark, so after rendering the
unmarked control strings are the real ones; everything else is plain text, from which the marks are taken
out again.

A control string can also come into being where two texts meet, as in a content `<|im_` in front of a
template's `end|>`, or a parameter name `tool_call` that a template puts between `<` and `>`. A text that
ends with the beginning of a control string gets a mark at its end, one that starts with an end gets it at
its start, one that is the inside of a control string gets it at its start.

Limits. Templates may trim, split, join, slice, replace and dump to JSON. Not covered are templates that
change letters (`lower` on `<|IM_END|>`), remove characters from the middle of a text, or slice off the
mark together with the ends of a text; the comparison of client text with a literal control string is
false on purpose, which is why assistant history is split before (see `history`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, Final

import attrs

MARK: Final = "\U0010f5a1"
ESCAPE: Final = "\U0010f5a2"
_ESCAPED: Final = {MARK: ESCAPE + "\U0010f5a3", ESCAPE: ESCAPE + "\U0010f5a4"}
_UNESCAPED: Final = {"\U0010f5a3": MARK, "\U0010f5a4": ESCAPE}
_SINGLES_BASE: Final = 0x10F600
"""Control strings of one character have no inside for a mark: they are replaced by ESCAPE and a letter."""
_SINGLES_MAX: Final = 2048

MARK_CHARS: Final = "\U0010f5a1-\U0010f5a4\U0010f600-\U0010fdff"
"""All characters marking uses, as the inside of a regular expression's class."""

_RESERVED: Final = re.compile("[\U0010f5a1-\U0010f5a4]")
_UNMARK: Final = re.compile(f"{MARK}|{ESCAPE}(.?)", re.DOTALL)
_SPACE: Final = "\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_LEADING_SPACE: Final = re.compile(f"^[{_SPACE}]+")
_TRAILING_SPACE: Final = re.compile(f"[{_SPACE}]+$")
_STARTS_WITH_WORD: Final = re.compile(r"\A\w")
_ENDS_WITH_WORD: Final = re.compile(r"\w\Z")

WIRE_KEYS: Final = frozenset(
    [
        *("role", "content", "name", "type", "text", "tool_calls", "tool_call_id", "function", "arguments"),
        *(
            "id",
            "reasoning_content",
            "reasoning",
            "thinking",
            "refusal",
            "image",
            "image_url",
            "url",
            "video",
        ),
        *("audio", "input_audio", "data", "format", "parameters", "description", "strict", "title"),
        # JSON Schema
        *("properties", "required", "items", "enum", "const", "default", "anyOf", "oneOf", "allOf", "not"),
        *(
            "additionalProperties",
            "$ref",
            "$defs",
            "definitions",
            "nullable",
            "minimum",
            "maximum",
            "pattern",
        ),
        *("minItems", "maxItems", "minLength", "maxLength", "examples", "example", "return", "response"),
    ]
)
"""Keys that templates look up. They are the wire format's own words and never marked."""

WIRE_VALUES: Final = {
    "role": frozenset(["system", "developer", "user", "assistant", "tool", "function", "ipython"]),
    "type": frozenset(
        [
            *("function", "text", "image", "image_url", "video", "video_url", "audio", "input_audio"),
            *("object", "string", "number", "integer", "boolean", "array", "null"),
        ]
    ),
}
"""Values that templates compare with or build control strings from (`'<|' + role + '|>'`), by their key."""


@attrs.frozen
class ControlString:
    """One added token of a tokenizer and how it is matched."""

    text: str
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False
    normalized: bool = False


@attrs.frozen
class Piece:
    """Part of a rendered prompt: a control string of the template, or plain text."""

    text: str
    control: bool
    start: bool = False
    """Whether the piece begins at the very start of the rendered text."""


def alternation(strings: Iterable[str]) -> str:
    """Return a regular expression for any of the strings, the longest first.

    The strings share their prefixes as in a trie: models have thousands of them and a flat alternation
    would try each at every `<`.
    """
    trie: dict[str, Any] = {}
    for string in strings:
        node = trie
        for char in string:
            node = node.setdefault(char, {})
        node[""] = {}
    return _trie_pattern(trie)


def _trie_pattern(node: dict[str, Any]) -> str:
    prefix = []
    while len(node) == 1 and "" not in node:
        char, node = next(iter(node.items()))
        prefix.append(re.escape(char))
    choices = [re.escape(char) + _trie_pattern(child) for char, child in node.items() if char]
    if not choices:
        return "".join(prefix)
    optional = "?" if "" in node else ""
    return "".join(prefix) + "(?:" + "|".join(choices) + ")" + optional


class ControlMarker:
    """Marks control strings in client text and finds the unmarked ones in rendered text."""

    def __init__(self, control_strings: Iterable[ControlString | str]) -> None:
        """Raises ValueError for an empty control string or one that contains a reserved character."""
        controls = {
            control.text: control
            for control in (ControlString(item) if isinstance(item, str) else item for item in control_strings)
        }
        for text in controls:
            if not text or _RESERVED.search(text):
                msg = f"not usable as a control string: {text!r}"
                raise ValueError(msg)
        self._controls = controls
        singles = sorted(text for text in controls if len(text) == 1)
        if len(singles) > _SINGLES_MAX:
            msg = f"more than {_SINGLES_MAX} control strings of one character"
            raise ValueError(msg)
        self._singles = {text: ESCAPE + chr(_SINGLES_BASE + i) for i, text in enumerate(singles)}
        self._from_single = {value[1]: key for key, value in self._singles.items()}
        escapable = [*_ESCAPED, *singles]
        self._escapable = re.compile("[" + "".join(map(re.escape, escapable)) + "]")
        self._escapes = {**_ESCAPED, **self._singles}
        longer = [text for text in controls if len(text) > 1]
        self._longest = max(map(len, longer), default=0)
        self._all = "\x00".join(longer)
        self._occurrence = re.compile(alternation(longer)) if longer else None
        self._heads = {text[:n] for text in longer for n in range(1, len(text))}
        self._tails = {text[n:] for text in longer for n in range(1, len(text))}
        self._last_head_chars = frozenset(head[-1] for head in self._heads)
        self._first_tail_chars = frozenset(tail[0] for tail in self._tails)
        raw = [text for text, control in controls.items() if not control.normalized]
        normalized = [text for text, control in controls.items() if control.normalized]
        self._passes = [re.compile(alternation(group)) for group in (raw, normalized) if group]

    def mark(self, text: str) -> str:
        """Return client text with every control string in it, and every mark, made harmless."""
        if not text:
            return text
        body = text.strip()
        if body and len(body) < len(text):
            # A template may trim, so the text meets its neighbours at either place.
            start = text.index(body)
            lead, trail = text[:start], text[start + len(body) :]
            outer_before, outer_after = self._boundary_marks(text)
            inner_before, inner_after = self._boundary_marks(body)
            return "".join(
                [
                    *(outer_before, self._escape(lead), inner_before),
                    *(self._mark_inside(body), inner_after, self._escape(trail), outer_after),
                ]
            )
        before, after = self._boundary_marks(text)
        return before + self._mark_inside(text) + after

    def _mark_inside(self, text: str) -> str:
        starts: list[int] = []
        if self._occurrence is not None:
            # Not by lookahead: that would try the whole pattern at each character.
            found = self._occurrence.search(text)
            while found is not None:
                starts.append(found.start() + 1)
                found = self._occurrence.search(text, found.start() + 1)
        if starts:
            bounds = [0, *starts, len(text)]
            pieces = [text[a:b] for a, b in pairwise(bounds)]
            return MARK.join(self._escape(piece) for piece in pieces)
        return self._escape(text)

    def mark_tree(self, value: Any, key: str | None = None) -> Any:
        """Return a copy of nested JSON data with every string marked, keys included.

        `role` and `type` keep the words of the wire format, and so do its keys: templates look them up.
        """
        if isinstance(value, str):
            return value if key is not None and value in WIRE_VALUES.get(key, ()) else self.mark(value)
        if isinstance(value, dict):
            return {
                (name if name in WIRE_KEYS else self.mark(name)): self.mark_tree(item, name)
                for name, item in value.items()
            }
        if isinstance(value, (list, tuple)):
            return [self.mark_tree(item, key) for item in value]
        return value

    def unmark(self, text: str) -> str:
        """Return marked text as the client wrote it."""
        if MARK not in text and ESCAPE not in text:
            return text
        return _UNMARK.sub(self._original, text)

    @staticmethod
    def is_marked(text: str) -> bool:
        """Whether rendered text holds anything that a client's text left marked."""
        return MARK in text or ESCAPE in text

    def split(self, rendered: str) -> list[Piece]:
        """Cut rendered text at its unmarked control strings; the plain pieces come without marks.

        The rules are the tokenizer's: leftmost longest match, tokens matched on raw text before those
        matched on normalized text, `single_word` only between non-word characters, `lstrip` and `rstrip`
        take the white space around a token away.
        """
        pieces = [Piece(rendered, control=False, start=True)]
        for pattern in self._passes:
            pieces = [part for piece in pieces for part in ([piece] if piece.control else self._cut(pattern, piece))]
        return [piece if piece.control else attrs.evolve(piece, text=self.unmark(piece.text)) for piece in pieces]

    def _cut(self, pattern: re.Pattern[str], piece: Piece) -> list[Piece]:
        text, end, parts = piece.text, 0, list[Piece]()
        for match in pattern.finditer(text):
            control = self._controls[match.group()]
            start, stop = match.span()
            if start < end:
                continue  # inside white space that the token before took
            if control.single_word and (
                _ENDS_WITH_WORD.search(text[max(start - 1, 0) : start])
                or _STARTS_WITH_WORD.match(text[stop : stop + 1])
            ):
                continue
            if control.lstrip and (space := _TRAILING_SPACE.search(text, end, start)):
                start = space.start()
            if start > end:
                parts.append(Piece(text[end:start], control=False, start=piece.start and end == 0))
            parts.append(Piece(control.text, control=True))
            end = stop
            if control.rstrip:
                while end < len(text) and _LEADING_SPACE.match(text[end]):
                    end += 1
        if end < len(text):
            parts.append(Piece(text[end:], control=False, start=piece.start and end == 0))
        return parts

    def _escape(self, text: str) -> str:
        if not any(char in text for char in self._escapes):
            return text
        return self._escapable.sub(lambda match: self._escapes[match.group()], text)

    def _original(self, match: re.Match[str]) -> str:
        letter = match.group(1)
        if letter is None:
            return ""
        return _UNESCAPED.get(letter) or self._from_single.get(letter) or letter

    def _boundary_marks(self, text: str) -> tuple[str, str]:
        before = after = ""
        if text[-1] in self._last_head_chars:
            tail = text[-self._longest :]
            if any(tail[n:] in self._heads for n in range(len(tail))):
                after = MARK
        if text[0] in self._first_tail_chars:
            head = text[: self._longest]
            if any(head[:n] in self._tails for n in range(1, len(head) + 1)):
                before = MARK
        if not before and len(text) < self._longest and not text.isspace() and text in self._all:
            before = MARK
        return before, after
