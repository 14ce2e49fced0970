"""Following one call written as Python: ``name(key=literal, …)``."""

from __future__ import annotations

import json
import re

from rustedvino.text.tools.calls import CallWriter, Status
from rustedvino.text.tools.json_scan import WHITESPACE
from rustedvino.text.tools.python_literal import PythonLiteral

_IDENTIFIER = re.compile(r"[A-Za-z0-9_.\-]+")


class PythonCall:
    """``name(key=literal, …)``, delivered as JSON. Values without a key take the schema's names in order."""

    def __init__(self, writer: CallWriter) -> None:
        self.status = Status.OPEN
        self.valid = True
        self.keeps_rest = False
        self._writer = writer
        self._at = "name"
        self._word = ""
        self._literal: PythonLiteral | None = None
        self._given: set[str] = set()
        self._positions: list[str] = []
        self._written = False  # the value being read goes out (a repeated key's does not)

    @property
    def in_string(self) -> bool:
        return self._literal is not None and self._literal.in_string

    def feed(self, text: str, pos: int) -> int:
        end = len(text)
        while pos < end and self.status is Status.OPEN:
            if self._literal is not None:
                pos = self._feed_literal(self._literal, text, pos)
                continue
            word = _IDENTIFIER.match(text, pos) if self._at in ("name", "key", "in key") else None
            if word is not None and (self._at != "key" or text[pos].isalpha() or text[pos] == "_"):
                self._word += word.group()
                self._at = "name" if self._at == "name" else "in key"
                pos = word.end()
            elif text[pos] in WHITESPACE:
                pos += 1
                if self._word:  # a name or key is over at the first space
                    self._at = "open" if self._at == "name" else "equals"
            else:
                pos += self._structure(text[pos])
        return pos

    def _structure(self, char: str) -> int:
        at = self._at
        if at in ("name", "open") and char == "(" and self._word in self._writer.tools:
            self._writer.start(self._word)
            self._positions = list(self._writer.tools[self._word].get("properties") or ())
            self._word, self._at = "", "key"
        elif at in ("in key", "equals") and char == "=":
            self._begin_value(self._word)
            self._word = ""
        elif at in ("key", "behind") and char == ")":
            self._writer.arguments("}" if self._given else "{}")
            self.status = Status.COMPLETE
        elif at == "behind" and char == ",":
            self._at = "key"
        elif at == "key" and len(self._given) < len(self._positions) and char in "'\"[{(-0123456789":
            self._begin_value(self._positions[len(self._given)])
            return 0
        else:
            self.status = Status.BROKEN
            return 0
        return 1

    def _begin_value(self, key: str) -> None:
        self._literal = PythonLiteral()
        self._written = key not in self._given
        if self._written:
            self._writer.arguments(("," if self._given else "{") + json.dumps(key, ensure_ascii=False) + ":")
            self._given.add(key)

    def _feed_literal(self, literal: PythonLiteral, text: str, pos: int) -> int:
        out: list[str] = []
        pos = literal.feed(text, pos, out)
        if self._written:
            self._writer.arguments("".join(out))
        if literal.broken:
            self.status = Status.BROKEN
        elif literal.done:
            self._literal, self._at = None, "behind"
        return pos
