"""Writing call events, and following one call in each of the notations that models use.

A body follows one call: ``feed(text, pos)`` takes what belongs to it, reports to the CallWriter
and returns the position of the first character it did not take. Nothing is reported before the
name is known to be a tool of the request and the arguments have begun to be an object, so up to
then the text can still turn out to be plain content.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import Enum, auto
from typing import Any, Protocol

from rustedvino.text.tools.events import Content, Event, ToolCallArguments, ToolCallEnd, ToolCallStart
from rustedvino.text.tools.json_scan import WHITESPACE, JsonScanner, StringDecoder

Tools = Mapping[str, Mapping[str, Any]]
"""The tools of a request: name to JSON schema of the parameters (empty when it has none)."""


class Status(Enum):
    OPEN = auto()
    COMPLETE = auto()
    BROKEN = auto()


class CallWriter:
    """Collects the events of one answer: counts calls, joins fragments, drops calls beyond the first if told."""

    def __init__(self, tools: Tools, *, parallel: bool = True) -> None:
        self.tools = tools
        self.delivered = 0
        self.begun = False  # a call has started and not ended
        self._parallel = parallel
        self._muted = False
        self._events: list[Event] = []
        self._content: list[str] = []
        self._fragments: list[str] = []

    @property
    def satisfied(self) -> bool:
        """No further call will be delivered: only one was allowed and it is over."""
        return not self._parallel and self.delivered > 0 and not self.begun

    def start(self, name: str) -> None:
        self.begun = True
        self._muted = not self._parallel and self.delivered > 0
        if not self._muted:
            self._flush()
            self._events.append(ToolCallStart(self.delivered, name))
            self.delivered += 1

    def arguments(self, fragment: str) -> None:
        if fragment and not self._muted:
            self._fragments.append(fragment)

    def end(self, *, complete: bool) -> None:
        if not self._muted:
            self._flush()
            self._events.append(ToolCallEnd(self.delivered - 1, complete))
        self.begun = self._muted = False

    def content(self, text: str) -> None:
        if text:
            self._content.append(text)

    def take(self) -> list[Event]:
        """The events since the last time; neighbours of one kind are one event."""
        self._flush()
        events, self._events = self._events, []
        return events

    def _flush(self) -> None:
        if self._content:
            self._events.append(Content("".join(self._content)))
            self._content.clear()
        if self._fragments:
            self._events.append(ToolCallArguments(self.delivered - 1, "".join(self._fragments)))
            self._fragments.clear()


class Body(Protocol):
    """One call being followed."""

    status: Status
    keeps_rest: bool
    """Whether text behind a break is still the arguments' text (JSON) or plain content."""
    valid: bool
    """Whether the arguments delivered are JSON, once the call is complete."""

    @property
    def in_string(self) -> bool:
        """Inside a string of the call, where tags are only letters."""
        ...

    def feed(self, text: str, pos: int) -> int: ...


_NAME_KEYS = ("name", "function")
_ARGUMENT_KEYS = ("arguments", "parameters")
_CALL_KEYS = frozenset({*_NAME_KEYS, *_ARGUMENT_KEYS, "type", "id"})


class ArgumentsValue:
    """The value of the arguments: a JSON object, null, or either of them inside a JSON string.

    A value that cannot become an object is ``broken`` at its first character. A string that begins
    as an object and then stops being JSON is read to its end, and is not ``valid``.
    """

    def __init__(self) -> None:
        self.done = False
        self.broken = False
        self.valid = True
        self._scanner: JsonScanner | None = None
        self._decoder: StringDecoder | None = None
        self._empty = False

    @property
    def in_string(self) -> bool:
        return self._decoder is not None or (self._scanner is not None and self._scanner.in_string)

    def feed(self, text: str, pos: int, out: list[str]) -> int:
        if self._decoder is not None:
            return self._unwrap(self._decoder, text, pos, out)
        if self._scanner is None:
            while pos < len(text) and text[pos] in WHITESPACE:
                pos += 1
            if pos == len(text):
                return pos
            if text[pos] == '"':
                self._decoder = StringDecoder()
                return self._unwrap(self._decoder, text, pos + 1, out)
            if not self._begin(text[pos]):
                return pos
        assert self._scanner is not None
        pos = self._scanner.feed(text, pos, [] if self._empty else out)
        self.done, self.broken = self._scanner.done, self._scanner.broken
        if self.done and self._empty:
            out.append("{}")
        return pos

    def _begin(self, first: str) -> bool:
        self.broken = first not in "{n"
        self._empty = first == "n"
        self._scanner = JsonScanner()
        return not self.broken

    def _unwrap(self, decoder: StringDecoder, text: str, pos: int, out: list[str]) -> int:
        # one character at a time while it can still turn out not to be an object
        while pos < len(text) and not decoder.done and (self._scanner is None or self._empty):
            plain: list[str] = []
            decoder.feed(text[pos], 0, plain)
            pos += 1
            self._begin_inner("".join(plain), out)
            if self.broken:
                return pos
        rest: list[str] = []
        pos = decoder.feed(text, pos, rest)
        if self._scanner is not None:
            self._feed_inner(self._scanner, "".join(rest), out)
        if decoder.done:
            if self._scanner is None or self._empty:
                self.broken = self._scanner is not None and not self._scanner.done
                if not self.broken:
                    out.append("{}")
            else:
                self.valid &= self._scanner.done
            self.done = not self.broken
        return pos

    def _begin_inner(self, inner: str, out: list[str]) -> None:
        if self._scanner is None:
            inner = inner.lstrip(WHITESPACE)
            if not inner or not self._begin(inner[0]):
                return
        assert self._scanner is not None
        if self._empty:
            at = self._scanner.feed(inner, 0, [])
            self.broken = self._scanner.broken or bool(inner[at:].strip(WHITESPACE))
        else:
            self._feed_inner(self._scanner, inner, out)

    def _feed_inner(self, scanner: JsonScanner, inner: str, out: list[str]) -> None:
        at = scanner.feed(inner, 0, out) if self.valid else 0
        rest = inner[at:]
        if rest.strip(WHITESPACE) or not self.valid:
            self.valid = False
            out.append(rest)


class JsonCall:
    """``{"name": …, "arguments": {…}}``: keys in any order, ``parameters`` for ``arguments``, also one level
    deeper under ``function``. Other keys are skipped, or with ``strict`` mean that it is no call."""

    def __init__(self, writer: CallWriter, *, strict: bool = False) -> None:
        self.status = Status.OPEN
        self.valid = True
        self.keeps_rest = True
        self._writer = writer
        self._strict = strict
        self._at = "open"
        self._depth = 0
        self._key = ""
        self._name: str | None = None
        self._scanner: JsonScanner | None = None
        self._raw: list[str] = []
        self._arguments: ArgumentsValue | None = None
        self._buffer: list[str] = []

    @property
    def in_string(self) -> bool:
        if self._at == "arguments":
            return self._arguments is not None and self._arguments.in_string
        return self._scanner is not None and self._scanner.in_string

    def feed(self, text: str, pos: int) -> int:
        end = len(text)
        while pos < end and self.status is Status.OPEN:
            if self._at == "arguments":
                pos = self._feed_arguments(text, pos)
            elif self._scanner is not None:
                pos = self._feed_scalar(self._scanner, text, pos)
            elif text[pos] in WHITESPACE:
                pos += 1
            else:
                pos += self._structure(text[pos])
        return pos

    def _structure(self, char: str) -> int:
        at = self._at
        if at == "open" and char == "{":
            self._at = "first key"
        elif at in ("first key", "key") and char == '"':
            self._scanner, self._raw = JsonScanner(), []
            self._at = "in key"
            return 0
        elif at == "colon" and char == ":":
            self._at = "value"
        elif at == "value":
            return self._value(char)
        elif at == "behind" and char == ",":
            self._at = "key"
        elif at in ("first key", "key", "behind") and char == "}":
            return self._object_ended()
        else:
            self.status = Status.BROKEN
            return 0
        return 1

    def _value(self, char: str) -> int:
        if self._key in _ARGUMENT_KEYS and self._arguments is None:
            self._arguments = ArgumentsValue()
            self._at = "arguments"
            return 0
        if self._key in _NAME_KEYS and self._name is None:
            if self._key == "function" and char == "{" and not self._depth:
                self._depth, self._at = 1, "first key"
                return 1
            if char != '"':
                self.status = Status.BROKEN
                return 0
        self._scanner, self._raw = JsonScanner(), []
        self._at = "in value"
        return 0

    def _feed_scalar(self, scanner: JsonScanner, text: str, pos: int) -> int:
        pos = scanner.feed(text, pos, self._raw)
        if scanner.broken:
            self.status = Status.BROKEN
        elif scanner.done:
            self._scanner = None
            raw, self._raw = "".join(self._raw), []
            if self._at == "in key":
                self._key = json.loads(raw)
                self._at = "colon"
                if self._strict and self._key not in _CALL_KEYS and not self._writer.begun:
                    self.status = Status.BROKEN
            else:
                self._at = "behind"
                if self._key in _NAME_KEYS and self._name is None:
                    self._set_name(json.loads(raw))
        return pos

    def _set_name(self, name: str) -> None:
        self._name = name
        if name not in self._writer.tools:
            self.status = Status.BROKEN
        elif self._buffer:
            self._writer.start(name)
            self._writer.arguments("".join(self._buffer))
            self._buffer.clear()

    def _feed_arguments(self, text: str, pos: int) -> int:
        assert self._arguments is not None
        out: list[str] = []
        pos = self._arguments.feed(text, pos, out)
        if out:
            if self._name is None:
                self._buffer += out
            else:
                if not self._writer.begun:
                    self._writer.start(self._name)
                self._writer.arguments("".join(out))
        if self._arguments.broken:
            self.status = Status.BROKEN
        elif self._arguments.done:
            self.valid = self._arguments.valid
            self._at = "behind"
        return pos

    def _object_ended(self) -> int:
        if self._depth:
            self._depth, self._at = 0, "behind"
            return 1
        if self._name is None:
            self.status = Status.BROKEN
            return 0
        if not self._writer.begun:
            self._writer.start(self._name)
            self._writer.arguments("{}")
        self.status = Status.COMPLETE
        return 1


_MAX_BETWEEN = 200
"""Characters between a call's name and its arguments, where some models write an id."""


class NamedJsonCall:
    """``name{…}``, ``name[ARGS]{…}`` or ``name[CALL_ID]id[ARGS]{…}``: a plain name, then the arguments object."""

    def __init__(self, writer: CallWriter) -> None:
        self.status = Status.OPEN
        self.valid = True
        self.keeps_rest = True
        self._writer = writer
        self._head = ""
        self._arguments = ArgumentsValue()

    @property
    def in_string(self) -> bool:
        return self._arguments.in_string

    def feed(self, text: str, pos: int) -> int:
        while not self._writer.begun:
            if pos == len(text):
                return pos
            if text[pos] == "{":
                name = self._name()
                if name not in self._writer.tools:
                    self.status = Status.BROKEN
                    return pos
                self._writer.start(name)
            else:
                self._head += text[pos]
                pos += 1
                if not self._plausible():
                    self.status = Status.BROKEN
                    return pos
        out: list[str] = []
        pos = self._arguments.feed(text, pos, out)
        self._writer.arguments("".join(out))
        if self._arguments.broken:
            self.status = Status.BROKEN
        elif self._arguments.done:
            self.status = Status.COMPLETE
        return pos

    def _name(self) -> str:
        return self._head.partition("[")[0].strip()

    def _plausible(self) -> bool:
        """Whether the head can still be a tool's name and what may follow it."""
        name, bracket, between = self._head.partition("[")
        if bracket:
            return name.strip() in self._writer.tools and len(between) <= _MAX_BETWEEN
        return any(tool.startswith(name.rstrip()) for tool in self._writer.tools)
