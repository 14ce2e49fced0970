"""From the token ids of one sequence to what its client sees: text, reasoning, tool calls, the end."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from rustedvino.text.decoding import TokenDecoder
from rustedvino.text.stops import StopMatcher
from rustedvino.text.tools.events import Content, Event, Reasoning
from rustedvino.text.tools.pieces import ControlToken, Piece


class Parser(Protocol):
    """Splits a model's output into events, incrementally."""

    def push(self, piece: Piece) -> list[Event]:
        """Take the next piece."""

    def finish(self) -> list[Event]:
        """The output has ended: give what was held back."""

    @property
    def transparent(self) -> bool:
        """Whether plain text is content as it is from here on."""

    @property
    def calls(self) -> int:
        """Tool calls delivered so far."""

    @property
    def satisfied(self) -> bool:
        """Whether nothing more of the output can matter."""


class AnswerReader:
    """Reads one sequence, token by token; the same for streamed and whole answers, so that they are equal.

    ``controls`` are the added tokens by id; special ones mean something to a parser or are dropped, the others are
    text. ``eos_token_ids`` end a sequence and are never text. ``stops`` are looked for in the answer's content,
    not in its reasoning: a reasoning model would otherwise stop before it answers. ``controls_are_text`` is for an
    output that a grammar constrains: it matches text, so a control token in it stands for its letters.
    """

    def __init__(
        self,
        decoder: TokenDecoder,
        controls: Mapping[int, ControlToken],
        eos_token_ids: frozenset[int],
        *,
        stops: Sequence[str] = (),
        parser: Parser | None = None,
        controls_are_text: bool = False,
    ) -> None:
        self._decoder = decoder
        self._controls = controls
        self._eos = eos_token_ids
        self._matcher = StopMatcher(stops) if stops else None
        self._parser = parser
        self._controls_are_text = controls_are_text
        self.tokens_read = 0
        self.reasoning_tokens = 0
        """Tokens of the thinking; those of a closing tag belong to what follows."""
        self.reasoning_end = 0
        """Which token is the first behind the thinking and its closing tag."""
        self._thinking = False
        self._attributed = 0
        self._piece_start = 0
        self.stopped = False
        """Whether the answer ended before its sequence: by a stop string, or by the last tool call allowed."""

    @property
    def tool_calls(self) -> int:
        """Tool calls in the answer so far."""
        return 0 if self._parser is None else self._parser.calls

    def read(self, ids: Iterable[int]) -> list[Event]:
        """The events of further token ids, adjacent content joined. Nothing after a stop string."""
        text = ""
        events: list[Event] = []
        plain = self._plain
        push = self._decoder.push
        for token_id in ids:
            if self.stopped:
                break
            self.tokens_read += 1
            control = self._controls.get(token_id)
            if control is None:
                piece = push(token_id)
                if plain:
                    text += piece
                elif piece:
                    self._take(piece, events)
                    self._piece_start = self.tokens_read
                continue
            held = self._decoder.flush()
            if plain:
                text += held
            elif held:
                self._take(held, events)
            if token_id in self._eos:
                continue
            if text:
                self._content(text, events)
                text = ""
            self._take(control.text if self._controls_are_text else control, events)
            self._piece_start = self.tokens_read
            plain = self._plain
        if text:
            if plain and not events:
                return [Content(text)]
            self._content(text, events)
        return events

    @property
    def _plain(self) -> bool:
        """Whether text of the decoder is content as it is: the common case, and the cheap one."""
        return self._matcher is None and (self._parser is None or self._parser.transparent)

    def end(self) -> list[Event]:
        """The sequence has ended: the events of what was held back."""
        events: list[Event] = []
        if self.stopped:
            return events
        held = self._decoder.flush()
        if held:
            self._take(held, events)
        if self._parser is not None:
            self._accept(self._parser.finish(), events)
        if self._matcher is not None and not self.stopped:
            rest = self._matcher.flush().text_to_emit
            if rest:
                events.append(Content(rest))
        return events

    def _take(self, piece: Piece, events: list[Event]) -> None:
        if self._parser is not None:
            self._accept(self._parser.push(piece), events)
        elif isinstance(piece, str):
            self._content(piece, events)
        elif not piece.special:
            self._content(piece.text, events)

    def _accept(self, new: list[Event], events: list[Event]) -> None:
        for event in new:
            if self.stopped:
                return
            if isinstance(event, Reasoning):
                self._thinking = True
                self.reasoning_tokens += self.tokens_read - self._attributed
                self.reasoning_end = self.tokens_read
            elif self._thinking:
                self._thinking = False
                self.reasoning_end = self._piece_start
            self._attributed = self.tokens_read
            if isinstance(event, Content):
                self._content(event.text, events)
                continue
            events.append(event)
        if self._parser is not None and self._parser.satisfied:
            self.stopped = True

    def _content(self, text: str, events: list[Event]) -> None:
        if self._matcher is not None:
            result = self._matcher.push(text)
            text = result.text_to_emit
            self.stopped = result.hit is not None
        if text:
            last = events[-1] if events else None
            if isinstance(last, Content):
                events[-1] = Content(last.text + text)
            else:
                events.append(Content(text))
