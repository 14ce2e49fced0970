"""Splitting a model's thinking from its answer, for models that put it between two tags.

What is decided here:

- Thinking is only looked for at the start of the answer. A model that never thinks is not held back
  by a single token (only whitespace in front of the first text waits for what follows it).
- A prompt may already end inside an open block (the template wrote the opening tag): the parser then
  starts inside.
- Line ends next to the tags belong to the tags: they are stripped behind the opening tag, in front of
  the closing tag and behind it. Spaces and everything else stay.
- A closing tag that closes nothing is dropped if it is a control token or the first thing written.
- An output that ends inside the block is all thinking.

The harmony format of gpt-oss interleaves thinking, answers and calls; its parser is
``rustedvino.text.tools.gpt_oss``.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final, TypeAlias

import attrs

from rustedvino.text.tools.events import Reasoning
from rustedvino.text.tools.pieces import ControlToken, Piece, TagFinder, letter_tags

GPT_OSS: Final = "gpt_oss"


@attrs.frozen
class ThinkTags:
    """The two tags around a block of thinking."""

    opening: str
    closing: str


THINK_TAGS: Final[Mapping[str, ThinkTags]] = {
    "qwen3": ThinkTags("<think>", "</think>"),
    "phi": ThinkTags("<think>", "</think>"),
    "mistral": ThinkTags("[THINK]", "[/THINK]"),
}
"""The tags of each reasoning parser that works by tags."""

REASONING_PARSERS: Final = (*THINK_TAGS, GPT_OSS)
"""Every name the setting ``reasoning_parser`` can have."""

_OPEN_ENDS: Final = ("<think>", "[THINK]", "<|channel|>analysis<|message|>")
_LINE_ENDS: Final = "\r\n"


def detect_reasoning_parser(template_source: str) -> str | None:
    """Return the reasoning parser a chat template asks for, None if its model does not think."""
    if "<|channel|>" in template_source and "<|message|>" in template_source:
        return GPT_OSS
    if "[THINK]" in template_source:
        return "mistral"
    if "<think>" in template_source or "</think>" in template_source:
        phi = "<|im_sep|>" in template_source or ("<|assistant|>" in template_source and "<|end|>" in template_source)
        return "phi" if phi else "qwen3"
    return None


def starts_in_reasoning(rendered_prompt_tail: str) -> bool:
    """Return whether the prompt ends with an open block of thinking (whitespace behind the tag counts not)."""
    return rendered_prompt_tail.rstrip().endswith(_OPEN_ENDS)


SplitPiece: TypeAlias = Reasoning | str | ControlToken
"""Thinking as an event, everything else as the piece it came in (or a part of it)."""


class _State(Enum):
    START = auto()
    """Nothing of the answer yet: a block may begin."""
    INSIDE = auto()
    CONTENT = auto()


class ReasoningParser:
    """Incremental splitter of one answer. Neither method raises, whatever the model wrote."""

    def __init__(self, tags: ThinkTags, *, control_tokens: frozenset[str] = frozenset(), inside: bool = False) -> None:
        self._tags = tags
        self._letters = letter_tags((tags.opening, tags.closing), control_tokens)
        self._control = frozenset((tags.opening, tags.closing))
        self._finder = TagFinder(self._letters)
        self._state = _State.INSIDE if inside else _State.START
        self._behind_block = False  # line ends at the start of the answer belong to the closing tag
        self._spaces: list[str] = []  # whitespace at the start of the answer
        self._head = ""  # what may become a tag at the start of the answer
        self._bare = True  # inside a block with nothing written yet
        self._line_ends: list[str] = []  # held inside a block: the closing tag may follow
        self._flowing = False  # inside a block, nothing held back
        self.answering = False
        """The answer has begun: text is content from here on."""
        self.inside_at_end = False
        """After ``finish``: the output ended inside a block."""

    def push(self, piece: Piece) -> list[SplitPiece]:
        """Take one piece and return what it settles."""
        if type(piece) is str and piece:
            if self.answering:
                return [piece]
            if self._flowing and piece[-1] not in _LINE_ENDS and self._finder.is_clear(piece):
                return [Reasoning(piece)]
        split = self._push(piece)
        self.answering = self._state is _State.CONTENT
        self._flowing = self._state is _State.INSIDE and not self._bare and not self._line_ends
        return split

    def finish(self) -> list[SplitPiece]:
        """End of the output: give back what was held."""
        out: list[SplitPiece] = []
        if self._state is _State.INSIDE:
            self.inside_at_end = True
            self._think(self._finder.flush(), out)
            if self._line_ends and not self._bare:
                out.append(Reasoning("".join(self._line_ends)))
            self._line_ends.clear()
        elif self._state is _State.START:
            self._begin_content(out)
        return out

    def _push(self, piece: Piece) -> list[SplitPiece]:
        out: list[SplitPiece] = []
        if isinstance(piece, ControlToken):
            self._control_token(piece, out)
            return out
        while piece:
            if self._state is _State.INSIDE:
                piece = self._feed_inside(piece, out)
            elif self._state is _State.START:
                piece = self._feed_start(piece, out)
            else:
                out.append(piece)
                break
        return out

    def _control_token(self, token: ControlToken, out: list[SplitPiece]) -> None:
        if token.text in self._control:
            if self._state is _State.START:
                self._head_to_content(out)
            if self._state is _State.INSIDE:
                self._think(self._finder.flush(), out)
                self._tag_inside(token.text, out)
            elif self._state is _State.START:
                self._tag_at_start(token.text)
            elif token.text == self._tags.opening:
                out.append(token)
        elif self._state is _State.INSIDE:
            self._think(self._finder.flush(), out)
            if not token.special:
                self._think(token.text, out)
        else:
            if self._state is _State.START:
                self._begin_content(out)
            out.append(token)

    # at the start

    def _feed_start(self, text: str, out: list[SplitPiece]) -> str:
        if not self._head:
            bare = text.lstrip()
            if len(bare) < len(text):
                self._spaces.append(text[: len(text) - len(bare)])
            if not bare:
                return ""
            text = bare
        self._head += text
        for tag in self._letters:
            if self._head.startswith(tag):
                rest = self._head[len(tag) :]
                self._head = ""
                self._tag_at_start(tag)
                return rest
        if not any(tag.startswith(self._head) for tag in self._letters):
            self._begin_content(out)
        return ""

    def _tag_at_start(self, tag: str) -> None:
        self._spaces.clear()
        if tag == self._tags.opening:
            self._state, self._bare = _State.INSIDE, True
        else:
            self._behind_block = True

    def _head_to_content(self, out: list[SplitPiece]) -> None:
        if self._head:
            self._begin_content(out)

    def _begin_content(self, out: list[SplitPiece]) -> None:
        text = "".join(self._spaces) + self._head
        if self._behind_block:
            text = text.lstrip(_LINE_ENDS)
        self._spaces.clear()
        self._head = ""
        self._state = _State.CONTENT
        if text:
            out.append(text)

    # inside a block

    def _feed_inside(self, text: str, out: list[SplitPiece]) -> str:
        if not self._finder:
            self._think(text, out)
            return ""
        before, tag, rest = self._finder.feed(text)
        self._think(before, out)
        if tag is not None:
            self._tag_inside(tag, out)
        return rest

    def _tag_inside(self, tag: str, out: list[SplitPiece]) -> None:
        if tag == self._tags.closing:
            self._line_ends.clear()
            self._state, self._behind_block = _State.START, True
        elif not self._bare:
            self._think(tag, out)  # the opening tag again, in the middle of a thought: a word of it

    def _think(self, text: str, out: list[SplitPiece]) -> None:
        if self._bare:
            text = text.lstrip(_LINE_ENDS)
        kept = text.rstrip(_LINE_ENDS)
        if kept:
            self._bare = False
            if self._line_ends:
                kept = "".join(self._line_ends) + kept
                self._line_ends.clear()
            out.append(Reasoning(kept))
            text = text[len(text.rstrip(_LINE_ENDS)) :]
        if text:
            self._line_ends.append(text)
