"""Incremental check of one JSON value, and incremental decoding of JSON text inside a JSON string.

Both take text in any cuts, never look back and never recurse. What models commonly get wrong in
strings is put right on the way: a raw control character (usually a newline) is escaped, and a
backslash in front of a character that needs none is doubled (dropped before an apostrophe).
Everything else must be JSON.
"""

from __future__ import annotations

import json
import re
from enum import IntEnum, auto

MAX_DEPTH = 200
"""Nesting of arrays and objects that is still accepted (a client's JSON reader has limits too)."""

WHITESPACE = " \t\n\r"
SIMPLE_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
HEX_DIGITS = frozenset("0123456789abcdefABCDEF")

_STRING_RUN = re.compile(r'[^"\\\x00-\x1f]+')
_NUMBER_STEPS = {
    # state: (digit, '.', 'e', sign); 0 is no way on. 1 after the minus, 2 a lone zero, 3 digits, 4 after
    # the point, 5 fraction, 6 after e, 7 after its sign, 8 exponent
    2: {".": 4, "e": 6},
    3: {"d": 3, ".": 4, "e": 6},
    4: {"d": 5},
    5: {"d": 5, "e": 6},
    6: {"d": 8, "s": 7},
    7: {"d": 8},
    8: {"d": 8},
}
_NUMBER_ENDS = frozenset({2, 3, 5, 8})
_LITERALS = {"t": "rue", "f": "alse", "n": "ull"}


class _At(IntEnum):
    VALUE = auto()
    ITEM_OR_END = auto()
    KEY_OR_END = auto()
    KEY = auto()
    COLON = auto()
    COMMA_OR_END = auto()
    STRING = auto()
    ESCAPE = auto()
    HEX = auto()
    NUMBER = auto()
    LITERAL = auto()
    DONE = auto()
    BROKEN = auto()


class JsonScanner:
    """Follows one JSON value through a stream of text.

    ``feed(text, pos, out)`` appends the accepted text to ``out`` and returns the position of the
    first character it did not take: behind the value when ``done``, the offending one when
    ``broken``, else the end. A number is only done when the character behind it has been seen.
    """

    def __init__(self) -> None:
        self._state = _At.VALUE
        self._wanted: list[str] = []  # the closing brackets still to come
        self._in_key = False
        self._hex = 0
        self._number = 0
        self._tail = ""

    @property
    def done(self) -> bool:
        return self._state is _At.DONE

    @property
    def broken(self) -> bool:
        return self._state is _At.BROKEN

    @property
    def in_string(self) -> bool:
        return self._state in (_At.STRING, _At.ESCAPE, _At.HEX)

    def feed(self, text: str, pos: int, out: list[str]) -> int:
        end = len(text)
        while pos < end:
            state = self._state
            if state is _At.STRING:
                run = _STRING_RUN.match(text, pos)
                if run is not None:
                    out.append(run.group())
                    pos = run.end()
                    continue
                self._string_mark(text[pos], out)
                pos += 1
            elif state >= _At.DONE:
                break
            elif state >= _At.ESCAPE:
                pos += self._inside(state, text[pos], out)
            else:
                char = text[pos]
                if char in WHITESPACE or self._structure(state, char):
                    out.append(char)
                else:
                    self._state = _At.BROKEN
                    break
                pos += 1
        return pos

    def _string_mark(self, char: str, out: list[str]) -> None:
        if char == '"':
            out.append(char)
            if self._in_key:
                self._in_key = False
                self._state = _At.COLON
            else:
                self._value_ended()
        elif char == "\\":
            self._state = _At.ESCAPE
        else:
            out.append(json.dumps(char)[1:-1])

    def _inside(self, state: _At, char: str, out: list[str]) -> int:
        """Take one character within an escape, a number or a literal; 0 when it is not part of it."""
        if state is _At.ESCAPE:
            if char == "u":
                self._state, self._hex, self._tail = _At.HEX, 4, ""
                return 1
            self._state = _At.STRING
            if char in SIMPLE_ESCAPES:
                out.append("\\" + char)
                return 1
            if char == "'":
                out.append(char)
                return 1
            out.append("\\\\")
            return 0
        if state is _At.HEX:
            if char not in HEX_DIGITS:
                out.append("\\\\u" + self._tail)
                self._state = _At.STRING
                return 0
            self._tail += char
            self._hex -= 1
            if self._hex == 0:
                out.append("\\u" + self._tail)
                self._state = _At.STRING
            return 1
        if state is _At.NUMBER:
            kind = "d" if char in "0123456789" else "e" if char in "eE" else "s" if char in "+-" else char
            if self._number == 1:
                step = 0 if kind != "d" else 2 if char == "0" else 3
            else:
                step = _NUMBER_STEPS[self._number].get(kind, 0)
            if step:
                self._number = step
                out.append(char)
                return 1
            if self._number in _NUMBER_ENDS:
                self._value_ended()
            else:
                self._state = _At.BROKEN
            return 0
        if char != self._tail[0]:
            self._state = _At.BROKEN
            return 0
        out.append(char)
        self._tail = self._tail[1:]
        if not self._tail:
            self._value_ended()
        return 1

    def _structure(self, state: _At, char: str) -> bool:
        """Take a character between the scalars; False when it must not stand here."""
        if state is _At.COMMA_OR_END:
            if char == ",":
                self._state = _At.KEY if self._wanted[-1] == "}" else _At.VALUE
                return True
            return self._close(char)
        if state is _At.COLON:
            self._state = _At.VALUE
            return char == ":"
        if state in (_At.KEY_OR_END, _At.KEY):
            if char == '"':
                self._state, self._in_key = _At.STRING, True
                return True
            return state is _At.KEY_OR_END and self._close(char)
        if state is _At.ITEM_OR_END and char == "]":
            return self._close(char)
        return self._value(char)

    def _value(self, char: str) -> bool:
        if char == '"':
            self._state = _At.STRING
        elif char in "{[":
            if len(self._wanted) >= MAX_DEPTH:
                return False
            self._wanted.append("}" if char == "{" else "]")
            self._state = _At.KEY_OR_END if char == "{" else _At.ITEM_OR_END
        elif char in "-0123456789":
            self._state = _At.NUMBER
            self._number = 1 if char == "-" else 2 if char == "0" else 3
        elif char in _LITERALS:
            self._state, self._tail = _At.LITERAL, _LITERALS[char]
        else:
            return False
        return True

    def _close(self, char: str) -> bool:
        if char != self._wanted[-1]:
            return False
        self._wanted.pop()
        self._value_ended()
        return True

    def _value_ended(self) -> None:
        self._state = _At.COMMA_OR_END if self._wanted else _At.DONE


class StringDecoder:
    """Decodes the inside of a JSON string (behind its opening quote) as it arrives.

    ``feed`` appends plain text to ``out`` and returns the position behind the closing quote once
    ``done``. Half a surrogate pair becomes U+FFFD.
    """

    def __init__(self) -> None:
        self.done = False
        self._escape = ""
        self._high = 0

    def feed(self, text: str, pos: int, out: list[str]) -> int:
        end = len(text)
        while pos < end and not self.done:
            char = text[pos]
            if self._escape:
                pos += self._escaped(char, out)
                continue
            run = _STRING_RUN.match(text, pos)
            if run is not None:
                self._drop_high(out)
                out.append(run.group())
                pos = run.end()
                continue
            pos += 1
            if char == "\\":
                self._escape = "\\"
                continue
            self._drop_high(out)
            if char == '"':
                self.done = True
            else:
                out.append(char)
        return pos

    def _escaped(self, char: str, out: list[str]) -> int:
        if self._escape == "\\" and char != "u":
            self._drop_high(out)
            self._escape = ""
            if char in SIMPLE_ESCAPES:
                out.append(SIMPLE_ESCAPES[char])
                return 1
            if char == "'":
                out.append(char)
                return 1
            out.append("\\")
            return 0
        if len(self._escape) >= 2 and char not in HEX_DIGITS:
            self._drop_high(out)
            out.append(self._escape)
            self._escape = ""
            return 0
        self._escape += char
        if len(self._escape) == 6:
            self._code(int(self._escape.removeprefix("\\u"), 16), out)
            self._escape = ""
        return 1

    def _code(self, code: int, out: list[str]) -> None:
        if self._high and 0xDC00 <= code < 0xE000:
            out.append(chr(0x10000 + ((self._high - 0xD800) << 10) + (code - 0xDC00)))
            self._high = 0
            return
        self._drop_high(out)
        if 0xD800 <= code < 0xDC00:
            self._high = code
        else:
            out.append("�" if 0xDC00 <= code < 0xE000 else chr(code))

    def _drop_high(self, out: list[str]) -> None:
        if self._high:
            out.append("�")
            self._high = 0
