"""Incremental translation of one Python literal into JSON text.

Dialects that write calls as Python (``f(a=1, b="x")``) carry strings, numbers, True/False/None,
lists, tuples and dicts. The words of JSON (true, false, null) are taken too. The text is
translated as it arrives, so a long string streams; nothing is evaluated and nothing recurses.
"""

from __future__ import annotations

import json
import re
from enum import IntEnum, auto

from rustedvino.text.tools.json_scan import HEX_DIGITS, MAX_DEPTH

_WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_ESCAPES = {"\\": "\\", "'": "'", '"': '"', "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_ESCAPES |= {"v": "\v", "\n": "", "/": "/"}
_HEX_LENGTHS = {"x": 2, "u": 4, "U": 8}
_ATOM = re.compile(r"[A-Za-z0-9_.+\-]+")
_JSON_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_STRING_RUN = re.compile(r"[^'\"\\\x00-\x1f\ud800-\udfff]+")
_MAX_ATOM = 1000
_CLOSERS = {"{": "}", "[": "]", "(": ")"}
_JSON_CLOSERS = {"}": "}", "]": "]", ")": "]"}


class _At(IntEnum):
    VALUE = auto()
    ITEM_OR_END = auto()
    KEY_OR_END = auto()
    COLON = auto()
    COMMA_OR_END = auto()
    ATOM = auto()
    QUOTE = auto()
    STRING = auto()
    ESCAPE = auto()
    DONE = auto()
    BROKEN = auto()


class PythonLiteral:
    """Follows one literal through a stream of text, like JsonScanner, but writes JSON to ``out``.

    A number or word is only done when the character behind it has been seen.
    """

    def __init__(self) -> None:
        self._state = _At.VALUE
        self._wanted: list[str] = []
        self._in_key = False
        self._atom = ""
        self._quote = ""
        self._run = 0  # quotes of the closing mark seen so far (three for a triple-quoted string)
        self._escape = ""

    @property
    def done(self) -> bool:
        return self._state is _At.DONE

    @property
    def broken(self) -> bool:
        return self._state is _At.BROKEN

    @property
    def in_string(self) -> bool:
        return self._state in (_At.QUOTE, _At.STRING, _At.ESCAPE)

    def feed(self, text: str, pos: int, out: list[str]) -> int:
        end = len(text)
        while pos < end and self._state < _At.DONE:
            state = self._state
            char = text[pos]
            if state is _At.STRING:
                run = _STRING_RUN.match(text, pos)
                if run is not None and not self._run:
                    out.append(json.dumps(run.group(), ensure_ascii=False)[1:-1])
                    pos = run.end()
                else:
                    pos += self._string_mark(char, out)
            elif state is _At.ATOM:
                atom = _ATOM.match(text, pos)
                if atom is not None:
                    self._atom += atom.group()
                    pos = atom.end()
                    if len(self._atom) > _MAX_ATOM:
                        self._state = _At.BROKEN
                else:
                    self._atom_ended(out)
            elif state is _At.QUOTE:
                pos += self._opening(char, out)
            elif state is _At.ESCAPE:
                pos += self._escaped(char, out)
            elif char in " \t\r\n":
                pos += 1
            else:
                self._structure(state, char, out)
                pos += self._state not in (_At.BROKEN, _At.ATOM)
        return pos

    def _structure(self, state: _At, char: str, out: list[str]) -> None:
        wanted = self._wanted[-1] if self._wanted else ""
        if state is _At.COLON:
            self._state = _At.VALUE if char == ":" else _At.BROKEN
            out.append(":")
        elif state is _At.COMMA_OR_END and char == ",":
            # the comma is written with the next item: Python allows one in front of the closing bracket
            self._state = _At.KEY_OR_END if wanted == "}" else _At.ITEM_OR_END
            self._atom = ","
        elif char == wanted and state is not _At.VALUE:
            self._wanted.pop()
            self._atom = ""
            out.append(_JSON_CLOSERS[char])
            self._value_ended()
        elif state is _At.COMMA_OR_END:
            self._state = _At.BROKEN
        else:
            out.append(self._atom)
            self._atom = ""
            self._in_key = state is _At.KEY_OR_END
            self._value(char, out)

    def _value(self, char: str, out: list[str]) -> None:
        if char in "'\"":
            self._state, self._quote, self._run = _At.QUOTE, char, 1
        elif self._in_key:
            self._state = _At.BROKEN
        elif char in _CLOSERS:
            if len(self._wanted) >= MAX_DEPTH:
                self._state = _At.BROKEN
                return
            self._wanted.append(_CLOSERS[char])
            out.append("{" if char == "{" else "[")
            self._state = _At.KEY_OR_END if char == "{" else _At.ITEM_OR_END
        elif _ATOM.match(char):
            self._state = _At.ATOM
        else:
            self._state = _At.BROKEN

    def _opening(self, char: str, out: list[str]) -> int:
        """Behind the first quote: an empty string, a triple quote, or the text itself."""
        if char == self._quote and self._run < 3:
            self._run += 1
            if self._run == 3:
                self._quote, self._run, self._state = self._quote * 3, 0, _At.STRING
                out.append('"')
            return 1
        if self._run == 2:  # two quotes and no third: an empty string
            out.append('""')
            self._string_ended()
        else:
            out.append('"')
            self._run, self._state = 0, _At.STRING
        return 0

    def _string_mark(self, char: str, out: list[str]) -> int:
        if char == self._quote[0]:
            self._run += 1
            if self._run == len(self._quote):
                self._run = 0
                out.append('"')
                self._string_ended()
            return 1
        if self._run:  # quotes within a triple-quoted string
            out.append(json.dumps(self._quote[0] * self._run)[1:-1])
            self._run = 0
            return 0
        if char == "\\":
            self._state, self._escape = _At.ESCAPE, ""
        else:
            out.append(_json_char(char))
        return 1

    def _escaped(self, char: str, out: list[str]) -> int:
        if not self._escape:
            if char in _HEX_LENGTHS:
                self._escape = char
                return 1
            self._state = _At.STRING
            if char in _ESCAPES:
                out.append(_json_char(_ESCAPES[char]) if _ESCAPES[char] else "")
                return 1
            out.append("\\\\")
            return 0
        if char not in HEX_DIGITS:
            out.append("\\\\" + self._escape)
            self._state = _At.STRING
            return 0
        self._escape += char
        if len(self._escape) > _HEX_LENGTHS[self._escape[0]]:
            code = int(self._escape[1:], 16)
            # a JSON-minded model writes a surrogate pair: as two \u escapes it is whole again in JSON
            out.append(f"\\u{code:04x}" if code < 0x10000 else _json_char(chr(code) if code < 0x110000 else "�"))
            self._state = _At.STRING
        return 1

    def _atom_ended(self, out: list[str]) -> None:
        atom, self._atom = self._atom, ""
        written = _WORDS.get(atom) or _number(atom)
        if written is None:
            self._state = _At.BROKEN
        else:
            out.append(written)
            self._value_ended()

    def _string_ended(self) -> None:
        if self._in_key:
            self._in_key, self._state = False, _At.COLON
        else:
            self._value_ended()

    def _value_ended(self) -> None:
        self._state = _At.COMMA_OR_END if self._wanted else _At.DONE


def _json_char(char: str) -> str:
    return json.dumps(char, ensure_ascii=not char.isprintable())[1:-1]


def _number(atom: str) -> str | None:
    if _JSON_NUMBER.fullmatch(atom):
        return atom
    try:
        return str(int(atom, 0))
    except ValueError:
        pass
    try:
        return json.dumps(float(atom), allow_nan=False)
    except ValueError:
        return None
