"""Qwen3-Coder: calls as XML-like tags around bare values.

    <tool_call>
    <function=NAME>
    <parameter=KEY>
    VALUE
    </parameter>
    </function>
    </tool_call>

A value is delivered as the type the tool's schema gives it; strings stream as they come. There is
no escaping, so ``</parameter>`` only ends a value when the next tag (``<parameter=`` or
``</function>``) follows; otherwise it is part of the value. The model at times leaves out tags:
``<function=NAME>`` counts without the outer tag, and ``</function></tool_call>`` ends a value too.
"""

from __future__ import annotations

import json
from enum import Enum, auto

from rustedvino.text.tools.calls import CallWriter, Tools
from rustedvino.text.tools.events import Content, Event
from rustedvino.text.tools.json_scan import WHITESPACE
from rustedvino.text.tools.pieces import ControlToken, Piece, TagFinder, letter_tags
from rustedvino.text.tools.schema_types import allowed_types, is_text, json_of

OPEN, CLOSE = "<tool_call>", "</tool_call>"
FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"
TAGS = (OPEN, CLOSE, FUNCTION, FUNCTION_END, PARAMETER, PARAMETER_END)

_MAX_NAME = 300


class _State(Enum):
    CONTENT = auto()
    OPENED = auto()
    """Behind the outer tag; ``<function=`` must follow."""
    NAME = auto()
    BETWEEN = auto()
    """Between parameters."""
    KEY = auto()
    VALUE = auto()
    MAYBE_END = auto()
    """Behind a closing tag that ends the value if the right tag follows."""
    BEHIND = auto()


class Qwen3CoderParser:
    """Incremental parser of one answer, see FramedToolParser for the rules it shares."""

    def __init__(self, tools: Tools, *, control_tokens: frozenset[str] = frozenset(), parallel: bool = True) -> None:
        self.writer = CallWriter(tools, parallel=parallel)
        self._control = frozenset(TAGS)
        self._control_tokens = control_tokens
        self._finder = TagFinder(letter_tags((OPEN, FUNCTION), control_tokens))
        self._value_end = TagFinder((PARAMETER_END, FUNCTION_END))
        self._ending = ""  # which of the two was found
        self._state = _State.CONTENT
        self._after_call = False
        self._raw: list[str] = []
        self._spaces: list[str] = []
        self._partial = ""
        self._name = ""
        self._key = ""
        self._given: set[str] = set()
        self._types: frozenset[str] = frozenset()
        self._value: list[str] = []
        self._written = False  # the value being read is delivered (a repeated key's is not)
        self._started = False  # the first newline of the value has been looked at
        self._newline = False  # a newline is held that is dropped if the value ends behind it
        self._fast = False

    def push(self, piece: Piece) -> list[Event]:
        if self._fast and type(piece) is str and piece and piece[-1] not in WHITESPACE and self._finder.is_clear(piece):
            return [Content(piece)]
        if not isinstance(piece, ControlToken):
            self._text(piece)
        elif piece.text in self._control and self._state is not _State.VALUE:
            self._tag_token(piece.text)
        elif piece.text in self._control or not piece.special:
            # inside a value a tag is only letters, and elsewhere so is a token of no meaning
            if self._state is _State.CONTENT:
                self._plain(self._finder.flush())
                self._plain(piece.text)
            else:
                self._text(piece.text)
        self._fast = self._state is _State.CONTENT and not self._spaces and not self._after_call
        return self.writer.take()

    def finish(self) -> list[Event]:
        """End of the output: what was held back is content, an open call ends as incomplete."""
        if self._state is _State.CONTENT:
            self._plain(self._finder.flush())
        elif self._state is _State.BEHIND:
            if not CLOSE.startswith(self._partial):
                self._plain(self._partial)
        elif self.writer.begun:
            if self._state is _State.VALUE:
                self._put_value(self._value_end.flush())
            self.writer.end(complete=False)
        else:
            self._raw.append(self._partial)
            self._release()
        if not self._after_call:
            self._put_spaces()
        return self.writer.take()

    # content

    def _plain(self, text: str) -> None:
        if self._after_call:
            text = text.lstrip(WHITESPACE)
            if not text:
                return
            self._after_call = False
        kept = text.rstrip(WHITESPACE)
        if kept:
            self._put_spaces()
            self.writer.content(kept)
        if len(kept) < len(text):
            self._spaces.append(text[len(kept) :])

    def _put_spaces(self) -> None:
        if self._spaces:
            self.writer.content("".join(self._spaces))
            self._spaces.clear()

    def _release(self) -> None:
        self._state, self._partial = _State.CONTENT, ""
        raw = "".join(self._raw)
        self._raw.clear()
        self._plain(raw)

    def _text(self, text: str) -> None:
        while text:
            state = self._state
            if state is _State.CONTENT:
                text = self._feed_content(text)
            elif state in (_State.NAME, _State.KEY):
                text = self._feed_label(text)
            elif state is _State.VALUE:
                text = self._feed_value(text)
            else:
                text = self._feed_tags(text)

    def _feed_content(self, text: str) -> str:
        before, tag, rest = self._finder.feed(text)
        self._plain(before)
        if tag is not None:
            self._open(tag)
        return rest

    def _open(self, tag: str) -> None:
        self._raw = [*self._spaces, tag]
        self._spaces.clear()
        self._state = _State.OPENED if tag == OPEN else _State.NAME
        self._partial = self._name = ""

    # tags

    def _feed_tags(self, text: str) -> str:
        """Between tags: whitespace, or the beginning of one of the tags that may stand here."""
        for pos, char in enumerate(text):
            if not self._partial and char in WHITESPACE:
                self._raw.append(char)
                continue
            self._partial += char
            tags = self._tags_here()
            if self._partial in tags:
                tag, self._partial = self._partial, ""
                self._tag(tag)
                return text[pos + 1 :]
            if not any(tag.startswith(self._partial) for tag in tags):
                return self._no_tag(text[pos + 1 :])
        return ""

    def _tags_here(self) -> tuple[str, ...]:
        if self._state is _State.OPENED:
            return (FUNCTION,)
        if self._state is _State.BEHIND:
            return letter_tags((CLOSE, OPEN, FUNCTION), self._control_tokens)
        if self._state is _State.MAYBE_END:
            if self._ending == FUNCTION_END:
                return letter_tags((CLOSE,), self._control_tokens)
            return (PARAMETER, FUNCTION_END)
        return (PARAMETER, FUNCTION_END, *letter_tags((CLOSE,), self._control_tokens))

    def _tag(self, tag: str) -> None:
        if self._state is _State.MAYBE_END:
            self._value_over()
        self._raw.append(tag)
        if tag == FUNCTION and self._state is _State.OPENED:
            self._state, self._name = _State.NAME, ""
        elif tag in (OPEN, FUNCTION):
            self._raw.clear()
            self._open(tag)
        elif tag == PARAMETER:
            self._state, self._key = _State.KEY, ""
        elif tag == FUNCTION_END:
            self._call_over(complete=True)
        else:  # the closing tag: behind a call the end, within one the end of a call with no </function>
            if self._state is not _State.BEHIND:
                self._call_over(complete=True)
            self._state, self._after_call = _State.CONTENT, True

    def _no_tag(self, rest: str) -> str:
        """What stands here is no tag that may: it belongs to the value, or the call is broken, or content follows."""
        partial, self._partial = self._partial, ""
        if self._state is _State.MAYBE_END:
            self._state = _State.VALUE
            text = "".join(self._raw)
            self._raw.clear()
            # the first closing tag is now known to be text; the rest is looked at again
            self._newline = False
            self._put_value(text)
            return partial + rest
        if self._state is _State.OPENED:
            self._release()
        elif self._state is _State.BEHIND:
            self._raw.clear()
            self._state, self._after_call = _State.CONTENT, True
        else:
            self._raw.clear()
            self.writer.end(complete=False)
            self._state, self._after_call = _State.CONTENT, True
        return partial + rest

    def _tag_token(self, tag: str) -> None:
        if self._state is _State.CONTENT:
            self._plain(self._finder.flush())
            if tag in (OPEN, FUNCTION):
                self._open(tag)
            else:
                self._plain(tag)
        elif self._state is _State.MAYBE_END and (tag, self._ending) == (CLOSE, FUNCTION_END) and not self._partial:
            self._tag(tag)
        elif self._state is _State.MAYBE_END:
            # not the tag that ends the value: text of the value, and so is this
            self._text(self._no_tag("") + tag)
        elif tag in self._tags_of_state():
            self._partial = ""
            self._tag(tag)
        elif self.writer.begun:
            self.writer.end(complete=False)
            self._raw.clear()
            self._state, self._after_call = _State.CONTENT, True
            if tag == OPEN:
                self._open(tag)
        elif tag == OPEN:
            self._release()
            self._open(tag)
        else:
            self._raw.append(tag)
            self._release()

    def _tags_of_state(self) -> tuple[str, ...]:
        if self._state is _State.BEHIND:
            return (CLOSE, OPEN, FUNCTION)
        if self._state is _State.BETWEEN:
            return (PARAMETER, FUNCTION_END, CLOSE)
        return ()

    # the call

    def _feed_label(self, text: str) -> str:
        """The name of the function or of a parameter, up to the bracket."""
        label, bracket, rest = text.partition(">")
        self._raw.append(label + bracket)
        if self._state is _State.NAME:
            self._name += label
            over = bool(bracket) and self._name.strip() in self.writer.tools
            if over:
                self.writer.start(self._name.strip())
                self._raw.clear()
                self._given.clear()
                self._state = _State.BETWEEN
            elif bracket or len(self._name) > _MAX_NAME:
                self._release()
        else:
            self._key += label
            if bracket:
                self._begin_value(self._key.strip())
            elif len(self._key) > _MAX_NAME:
                self.writer.end(complete=False)
                self._raw.clear()
                self._state, self._after_call = _State.CONTENT, True
        return rest

    def _begin_value(self, key: str) -> None:
        self._raw.clear()
        properties = self.writer.tools[self._name.strip()].get("properties")
        self._types = allowed_types(properties.get(key)) if isinstance(properties, dict) else frozenset()
        self._written = key not in self._given
        self._value.clear()
        self._started = self._newline = False
        self._state = _State.VALUE
        if self._written:
            opening = "," if self._given else "{"
            self._given.add(key)
            quote = '"' if is_text(self._types) else ""
            self.writer.arguments(f"{opening}{json.dumps(key, ensure_ascii=False)}:{quote}")

    def _feed_value(self, text: str) -> str:
        if not self._started:
            self._started = True
            if text[0] == "\n":
                return text[1:]
        before, tag, rest = self._value_end.feed(text)
        self._put_value(before)
        if tag is not None:
            self._state, self._partial, self._ending = _State.MAYBE_END, "", tag
            self._raw = ["\n" + tag if self._newline else tag]
        return rest

    def _put_value(self, text: str) -> None:
        if not text:
            return
        if self._newline:
            text = "\n" + text
        self._newline = text[-1] == "\n"
        if self._newline:
            text = text[:-1]
        if not is_text(self._types):
            self._value.append(text)
        elif self._written:
            self.writer.arguments(json.dumps(text, ensure_ascii=False)[1:-1])

    def _value_over(self) -> None:
        self._raw.clear()
        if self._written:
            self.writer.arguments('"' if is_text(self._types) else json_of("".join(self._value), self._types))

    def _call_over(self, *, complete: bool) -> None:
        self.writer.arguments("}" if self._given else "{}")
        self.writer.end(complete=complete)
        self._raw.clear()
        self._state = _State.BEHIND
