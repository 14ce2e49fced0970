"""gpt-oss (harmony): messages in channels.

    <|channel|>analysis<|message|>…<|end|>
    <|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{…}<|call|>
    <|start|>assistant<|channel|>final<|message|>…<|return|>

The prompt ends with ``<|start|>assistant``, so an answer begins inside a header. The analysis channel
is reasoning, a message to ``functions.NAME`` in any channel is a call if NAME is a tool of the request,
everything else is content. Headers are markup and never content. An answer that begins with no header
is content as it stands.
"""

from __future__ import annotations

import re
from enum import Enum, auto

from rustedvino.text.tools.calls import ArgumentsValue, CallWriter, Tools
from rustedvino.text.tools.events import Event, Reasoning
from rustedvino.text.tools.json_scan import WHITESPACE
from rustedvino.text.tools.pieces import ControlToken, Piece, TagFinder, letter_tags

START, END, RETURN, CALL = "<|start|>", "<|end|>", "<|return|>", "<|call|>"
CHANNEL, MESSAGE, CONSTRAIN = "<|channel|>", "<|message|>", "<|constrain|>"
TAGS = (START, END, RETURN, CALL, CHANNEL, MESSAGE, CONSTRAIN)

_MAX_HEADER = 500
_RECIPIENT = re.compile(r"(?:^|\s)to=(?:functions\.)?(\S+)")
_FIRST_WORDS = ("to=", "assistant")


class _At(Enum):
    HEADER = auto()
    REASONING = auto()
    CONTENT = auto()
    CALL = auto()
    BROKEN_CALL = auto()


class HarmonyParser:
    """Incremental parser of one whole answer: reasoning, content and calls."""

    def __init__(
        self,
        tools: Tools,
        *,
        control_tokens: frozenset[str] = frozenset(),
        inside: bool = False,
        parallel: bool = True,
    ) -> None:
        self.writer = CallWriter(tools, parallel=parallel)
        self.inside_at_end = False
        self._control = frozenset(TAGS)
        self._finder = TagFinder(letter_tags(TAGS, control_tokens))
        self._at = _At.REASONING if inside else _At.HEADER
        self._header = ""
        self._first = True  # no tag seen yet
        self._name = ""
        self._arguments = ArgumentsValue()
        self._behind = ""  # whitespace behind a call's arguments
        self._raw: list[str] = []  # a call's text until it is known to be one
        self._events: list[Event] = []

    def push(self, piece: Piece) -> list[Event]:
        if isinstance(piece, ControlToken):
            if piece.text in self._control:
                self._plain(self._finder.flush())
                self._tag(piece.text)
            elif not piece.special:
                self._plain(self._finder.flush())
                self._plain(piece.text)
        elif self._finder:
            self._letters(piece)
        else:
            self._plain(piece)
        return self._take()

    def finish(self) -> list[Event]:
        """End of the output: an open call ends as incomplete, a header that was cut is dropped."""
        self._plain(self._finder.flush())
        self.inside_at_end = self._at is _At.REASONING
        if self._at is _At.HEADER and self._first:
            self.writer.content(self._header)
        elif self._at in (_At.CALL, _At.BROKEN_CALL):
            if not self._arguments.done and not self.writer.begun and not "".join(self._raw).strip(WHITESPACE):
                self.writer.start(self._name)
            self._end_message()
        return self._take()

    def _take(self) -> list[Event]:
        self._events += self.writer.take()
        events, self._events = self._events, []
        return events

    def _letters(self, text: str) -> None:
        while text:
            if self._at is _At.CALL and not self._arguments.done and not self._finder.holding:
                # read by the rules of JSON, so that within a string a tag is only letters
                text = self._feed_arguments(text)
            else:
                before, tag, text = self._finder.feed(text)
                self._plain(before)
                if tag is not None:
                    self._tag(tag)

    def _plain(self, text: str) -> None:
        if not text:
            return
        if self._at is _At.CONTENT:
            self.writer.content(text)
        elif self._at is _At.REASONING:
            self._events += self.writer.take()
            self._events.append(Reasoning(text))
        elif self._at is _At.HEADER:
            self._feed_header(text)
        else:
            if self._at is _At.CALL and not self._arguments.done:
                text = self._feed_arguments(text)
            if self._at is _At.CALL and text:
                self._behind += text
                if text.strip(WHITESPACE):  # something behind the arguments
                    text, self._at = self._behind, _At.BROKEN_CALL
            if self._at is _At.BROKEN_CALL:
                if self.writer.begun:
                    self.writer.arguments(text)
                else:
                    self._raw.append(text)

    # headers

    def _feed_header(self, text: str) -> None:
        self._header += text
        start = self._header.lstrip()
        headed = not self._first or any(start.startswith(word[: len(start)]) for word in _FIRST_WORDS)
        if not headed or len(self._header) > _MAX_HEADER:
            self._begin_text(_At.CONTENT)

    def _begin_text(self, at: _At) -> None:
        """No header after all: what was taken for one is text."""
        text, self._header, self._at = self._header, "", at
        self._plain(text)

    def _tag(self, tag: str) -> None:
        if self._at is _At.HEADER and tag == MESSAGE:
            self._message()
        elif self._at is _At.HEADER and tag in (CHANNEL, CONSTRAIN):
            self._header += f" {tag} "
        else:
            self._end_message()
            self._at, self._header = _At.HEADER, f" {CHANNEL} " if tag == CHANNEL else ""
        self._first = False

    def _message(self) -> None:
        header, self._header = self._header, ""
        recipient = _RECIPIENT.search(header)
        if recipient is not None and recipient[1] in self.writer.tools:
            self._name, self._arguments, self._at = recipient[1], ArgumentsValue(), _At.CALL
            self._raw.clear()
            self._behind = ""
            return
        _, _, channel = header.partition(CHANNEL)
        thinking = recipient is None and channel.split()[:1] == ["analysis"]
        self._at = _At.REASONING if thinking else _At.CONTENT

    # calls

    def _feed_arguments(self, text: str) -> str:
        """Feed the arguments; returns the text behind them, or from where they stop being JSON."""
        out: list[str] = []
        pos = self._arguments.feed(text, 0, out)
        if out and not self.writer.begun:
            self.writer.start(self._name)
        self.writer.arguments("".join(out))
        if self._arguments.broken:
            self._at = _At.BROKEN_CALL
        if not self.writer.begun:
            self._raw.append(text[:pos])
        return text[pos:]

    def _end_message(self) -> None:
        if self._at not in (_At.CALL, _At.BROKEN_CALL):
            return
        raw = "".join(self._raw)
        complete = self._at is _At.CALL and self._arguments.done and self._arguments.valid
        if not self.writer.begun:
            if raw.strip(WHITESPACE):
                self.writer.content(raw)
                return
            self.writer.start(self._name)
            self.writer.arguments("{}")
            complete = True
        self.writer.end(complete=complete)
