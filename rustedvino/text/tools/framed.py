"""One parser for every dialect whose calls stand between tags or begin the answer.

A dialect is a Frame: which tags open and close, which characters may begin an answer that is a
call without a tag, and in which notations calls are written. Rules for all of them:

- A call is delivered when it names a tool of the request; anything else is content, as written.
- Whitespace next to a delivered call is not content.
- Inside a string of a call every tag is only letters.
- A call that stops being JSON after its start is delivered with what the model wrote, up to the
  closing tag, and ends with ``complete`` false.
"""

from __future__ import annotations

from enum import Enum, auto

import attrs

from rustedvino.text.tools.calls import Body, CallWriter, JsonCall, NamedJsonCall, Status, Tools
from rustedvino.text.tools.events import Content, Event
from rustedvino.text.tools.json_scan import WHITESPACE
from rustedvino.text.tools.pieces import ControlToken, Piece, TagFinder, letter_tags
from rustedvino.text.tools.python_call import PythonCall


class Notation(Enum):
    """How a call is written where its first character is no brace."""

    NAMED_JSON = auto()
    PYTHON = auto()


@attrs.frozen
class Frame:
    """The marks of one dialect.

    ``inner`` are tags within a call; ``bare`` the characters with which an answer may begin a
    call without an opening tag; ``array`` says that calls may stand in square brackets; ``strict``
    that the opening tag is common in plain answers too, so a JSON object with other keys is no call.
    """

    openers: tuple[str, ...] = ()
    closers: tuple[str, ...] = ()
    inner: tuple[str, ...] = ()
    bare: str = ""
    array: bool = False
    json: bool = True
    strict: bool = False
    named: Notation | None = None

    @property
    def tags(self) -> tuple[str, ...]:
        return (*self.openers, *self.closers, *self.inner)


class _State(Enum):
    CONTENT = auto()
    OPENED = auto()
    CALL = auto()
    BEHIND = auto()
    """Behind a complete call, where the next one, the closing tag or content may come."""
    BROKEN = auto()


class FramedToolParser:
    """Incremental parser of one answer. ``push`` and ``finish`` never raise, whatever the model wrote."""

    def __init__(
        self, frame: Frame, tools: Tools, *, control_tokens: frozenset[str] = frozenset(), parallel: bool = True
    ) -> None:
        self.writer = CallWriter(tools, parallel=parallel)
        self._frame = frame
        self._control = frozenset(frame.tags)
        self._openers = self._finder = TagFinder(letter_tags(frame.openers, control_tokens))
        self._closers = TagFinder(letter_tags(frame.closers, control_tokens))
        # a closing tag that begins an opening one (a fence) cannot be told from it in plain content
        self._awaits_close = bool(frame.closers) and not any(o.startswith(frame.closers) for o in frame.openers)
        self._open_or_close = TagFinder(letter_tags((*frame.openers, *frame.closers), control_tokens))
        self._tags_behind = letter_tags((*frame.closers, *frame.openers), control_tokens)
        self._state = _State.CONTENT
        self._body: Body | None = None
        self._framed = False  # the current call has an opening tag
        self._in_array = False
        self._fresh = True  # no content but whitespace so far
        self._after_call = False  # nothing but whitespace since a delivered call
        self._unclosed = False  # content follows a call whose closing tag has not come
        self._raw: list[str] = []  # text since content ended that may turn out to be content
        self._spaces: list[str] = []  # whitespace that ends the content so far
        self._partial = ""  # the beginning of a tag written as letters, behind a call
        self._fast = False

    def push(self, piece: Piece) -> list[Event]:
        if self._fast and type(piece) is str and piece and piece[-1] not in WHITESPACE and self._finder.is_clear(piece):
            return [Content(piece)]
        if isinstance(piece, ControlToken):
            self._control_token(piece)
        else:
            self._text(piece)
        self._fast = self._state is _State.CONTENT and not self._fresh and not self._spaces and not self._after_call
        return self.writer.take()

    def finish(self) -> list[Event]:
        """End of the output: what was held back is content, an open call ends as incomplete."""
        if self._state is _State.CONTENT:
            self._plain(self._finder.flush())
            self._put_spaces()
        elif self._state is _State.BEHIND:
            if not any(tag.startswith(self._partial) for tag in self._frame.closers if self._partial):
                self._raw.append(self._partial)
            self.writer.content("".join(self._raw).strip(WHITESPACE + ",;}"))
        else:
            self.writer.arguments(self._closers.flush())
            self._abandon("")
            self._put_spaces()
        self._raw.clear()
        return self.writer.take()

    # text

    def _text(self, text: str) -> None:
        pos, end = 0, len(text)
        while pos < end:
            if self._state is _State.CONTENT:
                pos = self._feed_content(text, pos)
            elif self._state is _State.OPENED:
                pos = self._feed_opened(text, pos)
            elif self._state is _State.CALL:
                pos = self._feed_call(text, pos)
            elif self._state is _State.BEHIND:
                pos = self._feed_behind(text, pos)
            else:
                pos = self._feed_broken(text, pos)

    def _feed_content(self, text: str, pos: int) -> int:
        if self._fresh and self._frame.bare:
            first = _skip_whitespace(text, pos)
            if first < len(text) and text[first] in self._frame.bare and not self._finder.holding:
                self._open(text[pos:first], framed=False)
                return first
        before, tag, rest = self._finder.feed(text[pos:]) if self._finder else (text[pos:], None, "")
        self._plain(before)
        if tag is not None and tag in self._frame.openers:
            self._open(tag, framed=True)
        elif tag is not None:
            self._closed()
        return len(text) - len(rest)

    def _plain(self, text: str) -> None:
        """Content as it stands, its last whitespace held until it is known what follows."""
        if self._after_call:
            text = text.lstrip(WHITESPACE)
            if not text:
                return
            self._after_call = False
        kept = text.rstrip(WHITESPACE)
        if kept:
            self._put_spaces()
            self._fresh = False
            self.writer.content(kept)
        if len(kept) < len(text):
            self._spaces.append(text[len(kept) :])

    def _put_spaces(self) -> None:
        if self._spaces:
            self.writer.content("".join(self._spaces))
            self._spaces.clear()

    def _open(self, mark: str, *, framed: bool) -> None:
        self._raw = [*self._spaces, mark]
        self._spaces.clear()
        self._closed()
        self._state, self._framed, self._in_array = _State.OPENED, framed, framed and mark.endswith("[")

    def _closed(self) -> None:
        self._unclosed, self._finder = False, self._openers

    def _feed_opened(self, text: str, pos: int) -> int:
        first = _skip_whitespace(text, pos)
        if first == len(text):
            self._raw.append(text[pos:])
            return first
        char = text[first]
        if char == "[" and self._frame.array and not self._in_array:
            self._in_array = True
            self._raw.append(text[pos : first + 1])
            return first + 1
        self._raw.append(text[pos:first])
        if not self._begin_call(char, opened=True):
            self._release()
        return first

    def _begin_call(self, char: str, *, opened: bool) -> bool:
        """Choose the notation by the first character; False when no call begins so."""
        if char == "{" and self._frame.json:
            self._body = JsonCall(self.writer, strict=self._frame.strict or not self._framed)
        elif not (char.isalnum() or char == "_"):
            return False
        elif self._frame.named is Notation.PYTHON and (self._framed or self._in_array):
            self._body = PythonCall(self.writer)
        elif self._frame.named is Notation.NAMED_JSON and opened and not self._in_array:
            self._body = NamedJsonCall(self.writer)
        else:
            return False
        self._state = _State.CALL
        return True

    def _feed_call(self, text: str, pos: int) -> int:
        assert self._body is not None
        start = pos
        pos = self._body.feed(text, pos)
        if self.writer.begun:
            self._raw.clear()
        else:
            self._raw.append(text[start:pos])
        if self._body.status is Status.COMPLETE:
            self.writer.end(complete=self._body.valid)
            self._state, self._partial, self._fresh = _State.BEHIND, "", False
        elif self._body.status is Status.BROKEN:
            if not self.writer.begun:
                self._release()
            elif self._body.keeps_rest:
                self._state = _State.BROKEN
            else:
                self._call_over(complete=False)
        return pos

    def _release(self) -> None:
        """It was no call: give back the text as content."""
        self._state = _State.CONTENT
        raw = "".join(self._raw)
        self._raw.clear()
        self._plain(raw)

    def _feed_behind(self, text: str, pos: int) -> int:
        while pos < len(text):
            char = text[pos]
            if self._partial or any(tag[0] == char for tag in self._tags_behind):
                self._partial += char
                pos += 1
                if self._partial in self._tags_behind:
                    tag, self._partial = self._partial, ""
                    self._tag_behind(tag)
                    return pos
                if not any(tag.startswith(self._partial) for tag in self._tags_behind):
                    self._leave_behind()
                    return pos
            elif char == "]" and self._in_array:
                self._in_array = False
                pos += 1
            elif char in WHITESPACE or char in ",;" or (char == "}" and self._framed):
                self._raw.append(char)  # a closing brace too many is common
                pos += 1
            else:
                if not self._begin_call(char, opened=False):
                    self._leave_behind()
                return pos
        return pos

    def _leave_behind(self) -> None:
        """Content follows a call. What looked like a tag is content and may hold the beginning of another."""
        self._after_call = True
        if self._framed and self._awaits_close:
            self._unclosed, self._finder = True, self._open_or_close
        self._release()
        partial, self._partial = self._partial, ""
        self._text(partial)

    def _tag_behind(self, tag: str) -> None:
        self._raw.clear()
        if tag in self._frame.openers:
            self._open(tag, framed=True)
        else:
            self._after_call, self._state = True, _State.CONTENT

    def _feed_broken(self, text: str, pos: int) -> int:
        if not self._closers or not self._framed:
            self.writer.arguments(text[pos:])
            return len(text)
        before, tag, rest = self._closers.feed(text[pos:])
        self.writer.arguments(before)
        if tag is not None:
            self._call_over(complete=False)
        return len(text) - len(rest)

    def _call_over(self, *, complete: bool) -> None:
        self.writer.end(complete=complete)
        self._after_call, self._state = True, _State.CONTENT
        self._fresh = False

    # control tokens

    def _control_token(self, token: ControlToken) -> None:
        tag = token.text
        if tag not in self._control:
            # a token of no meaning here: text, unless the vocabulary marks it as never text
            if not token.special:
                self._plain_or_call(tag)
        elif self._state is _State.CALL and self._body is not None and self._body.in_string:
            self._text(tag)
        elif tag in self._frame.openers:
            self._plain(self._finder.flush())
            if self._state is not _State.CONTENT:
                self._abandon("")
            self._open(tag, framed=True)
        elif tag in self._frame.closers and self._unclosed:
            self._plain(self._finder.flush())
            self._closed()
        elif tag in self._frame.closers and self._state is not _State.CONTENT:
            if self._state is _State.BEHIND and self._framed:
                self._tag_behind(tag)
            else:
                self._abandon(tag)
        else:
            self._plain_or_call(tag)

    def _plain_or_call(self, text: str) -> None:
        if self._state is _State.CONTENT:
            self._plain(self._finder.flush())
            self._fresh = False
            self._plain(text)
        else:
            self._text(text)

    def _abandon(self, mark: str) -> None:
        """Leave a call in the middle: deliver it as incomplete, or give it back as content with the mark."""
        if self.writer.begun:
            self.writer.arguments(self._closers.flush())
            self._call_over(complete=False)
        elif self._state is _State.BEHIND:
            self._partial += mark
            self._leave_behind()
        else:
            self._raw.append(mark)
            self._release()


def _skip_whitespace(text: str, pos: int) -> int:
    while pos < len(text) and text[pos] in WHITESPACE:
        pos += 1
    return pos
