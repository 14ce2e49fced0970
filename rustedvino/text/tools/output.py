"""One parser for a whole answer: reasoning, content and tool calls from the decoder's pieces."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

from rustedvino.text.reasoning import GPT_OSS, THINK_TAGS, ReasoningParser, SplitPiece
from rustedvino.text.tools import gemma, hermes, llama3_json, mistral, phi4, pythonic
from rustedvino.text.tools.calls import CallWriter, Tools
from rustedvino.text.tools.events import Content, Event, Reasoning, ToolCallEnd
from rustedvino.text.tools.framed import Frame, FramedToolParser
from rustedvino.text.tools.gpt_oss import HarmonyParser
from rustedvino.text.tools.pieces import ControlToken, Piece
from rustedvino.text.tools.qwen3_coder import Qwen3CoderParser

QWEN3_CODER: Final = "qwen3_coder"
FRAMES: Final[dict[str, Frame]] = {
    "hermes": hermes.FRAME,
    "mistral": mistral.FRAME,
    "llama3_json": llama3_json.FRAME,
    "pythonic": pythonic.FRAME,
    "phi4": phi4.FRAME,
    "gemma": gemma.FRAME,
}
TOOL_DIALECTS: Final = (*FRAMES, QWEN3_CODER, GPT_OSS)
"""Every name the setting ``tool_parser`` can have."""


class ToolParser(Protocol):
    """Incremental parser of content into content and calls."""

    writer: CallWriter

    def push(self, piece: Piece) -> list[Event]: ...

    def finish(self) -> list[Event]: ...


def make_tool_parser(
    dialect: str, tools: Tools, *, control_tokens: frozenset[str] = frozenset(), parallel: bool = True
) -> ToolParser:
    """Return a parser of one answer's content. Raises KeyError for a dialect that has none (gpt_oss is whole)."""
    if dialect == QWEN3_CODER:
        return Qwen3CoderParser(tools, control_tokens=control_tokens, parallel=parallel)
    return FramedToolParser(FRAMES[dialect], tools, control_tokens=control_tokens, parallel=parallel)


class OutputParser:
    """What a route uses: one ``push`` per piece, one ``finish``, events in order. Never raises on any output.

    ``calls`` counts the calls delivered (``finish_reason`` is ``tool_calls`` if the model stopped by
    itself and it is not 0). ``satisfied`` turns true when no further call can be delivered, so the
    sequence may be stopped. After ``finish``, ``cut_in`` says within what the output ended.
    """

    def __init__(
        self,
        *,
        reasoning: str | None = None,
        dialect: str | None = None,
        tools: Tools | None = None,
        control_tokens: frozenset[str] = frozenset(),
        inside_reasoning: bool = False,
        parallel: bool = True,
    ) -> None:
        """Without tools (or with an empty mapping) nothing is a call, whatever it looks like.

        Raises KeyError for an unknown parser name.
        """
        self.cut_in: str | None = None
        self._harmony: HarmonyParser | None = None
        self._reasoning: ReasoningParser | None = None
        self._tools: ToolParser | None = None
        if GPT_OSS in (reasoning, dialect):
            self._harmony = HarmonyParser(
                tools or {}, control_tokens=control_tokens, inside=inside_reasoning, parallel=parallel
            )
            return
        if reasoning is not None:
            self._reasoning = ReasoningParser(
                THINK_TAGS[reasoning], control_tokens=control_tokens, inside=inside_reasoning
            )
        if tools and dialect is not None:
            self._tools = make_tool_parser(dialect, tools, control_tokens=control_tokens, parallel=parallel)

    @property
    def calls(self) -> int:
        writer = self._writer()
        return 0 if writer is None else writer.delivered

    @property
    def satisfied(self) -> bool:
        writer = self._writer()
        return writer is not None and writer.satisfied

    @property
    def transparent(self) -> bool:
        """Whether plain text is content as it is from here on, so that a caller need not push it."""
        if self._harmony is not None or self._tools is not None:
            return False
        return self._reasoning is None or self._reasoning.answering

    def push(self, piece: Piece) -> list[Event]:
        """Take the next piece; an empty list means that all of it is held back or means nothing."""
        if self._harmony is not None:
            return self._harmony.push(piece)
        if self._reasoning is None or (self._reasoning.answering and type(piece) is str):
            return self._content(piece)
        return self._settle(self._reasoning.push(piece))

    def finish(self) -> list[Event]:
        """End of the output, for whatever reason it ended."""
        if self._harmony is not None:
            events = self._harmony.finish()
            inside = self._harmony.inside_at_end
        else:
            events = [] if self._reasoning is None else self._settle(self._reasoning.finish())
            inside = self._reasoning is not None and self._reasoning.inside_at_end
            if self._tools is not None:
                events += self._tools.finish()
        if inside:
            self.cut_in = "reasoning"
        elif any(isinstance(event, ToolCallEnd) and not event.complete for event in events):
            self.cut_in = "tool_call"
        return events

    def _writer(self) -> CallWriter | None:
        if self._harmony is not None:
            return self._harmony.writer
        return None if self._tools is None else self._tools.writer

    def _settle(self, split: Iterable[SplitPiece]) -> list[Event]:
        events: list[Event] = []
        for part in split:
            if isinstance(part, Reasoning):
                events.append(part)
            else:
                events += self._content(part)
        return events

    def _content(self, piece: Piece) -> list[Event]:
        if self._tools is not None:
            return self._tools.push(piece)
        if not isinstance(piece, ControlToken):
            return [Content(piece)] if piece else []
        return [] if piece.special else [Content(piece.text)]
