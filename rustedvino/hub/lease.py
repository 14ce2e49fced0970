"""A request's hold on a model: its sequences, and the one wake-up they share."""

from collections.abc import Callable
from typing import Any, Final, Literal

import trio
from attrs import define, field, frozen

from rustedvino.hub.errors import HubError
from rustedvino.observe.families import Modality
from rustedvino.observe.tally import TokenClock
from rustedvino.worker.protocol import ProtocolError

Finish = Literal["stop", "length"]
FINISHES: Final = frozenset({"stop", "length"})
MAX_TOKEN_ID: Final = 2**31 - 1

Sink = Callable[[], bool]
"""Deals with the news of a lease without waiting; False: its reader must go on."""


@frozen(kw_only=True)
class GenerationRequest:
    """What the hub needs to know of a generation.

    ``prompt``: token ids; ``options``: per sequence, the submit options but ``max_new_tokens``;
    ``shrinkable``: whether max_new_tokens is ours, not the client's, and may be cut to what the pool holds;
    ``prompt_field``: the field of the client's request that the prompt came from.
    """

    prompt: bytes
    prompt_tokens: int
    max_new_tokens: int
    shrinkable: bool
    options: tuple[dict[str, Any], ...]
    fingerprint: bytes
    modality: Modality = "text"
    prompt_field: str = "messages"

    @property
    def sequences(self) -> int:
        """How many choices are generated, each a sequence of its own."""
        return len(self.options)


@define(eq=False)
class Sequence:
    """One running generation: a growing list of token ids, bounded by its max_new_tokens.

    ``finish`` and ``failure`` are final; ``done`` also covers a sequence given up by its own client.
    """

    number: int
    max_new_tokens: int
    blocks: int
    with_logprobs: bool = False
    clock: TokenClock = field(factory=lambda: TokenClock(0.0))
    tokens: list[int] = field(factory=list)
    logprobs: list[float] = field(factory=list)
    finish: Finish | None = None
    failure: HubError | None = None
    cancelled: bool = False
    released: bool = False

    @property
    def done(self) -> bool:
        """Whether no more tokens will come."""
        return self.finish is not None or self.failure is not None or self.cancelled

    def take(self, ids: list[int], logprobs: list[float] | None) -> None:
        """Add what a step gave. Raises ProtocolError, with nothing added, for what no step may give."""
        if len(self.tokens) + len(ids) > self.max_new_tokens:
            raise ProtocolError("more tokens than were asked for")
        for token in ids:
            if type(token) is not int or not 0 <= token <= MAX_TOKEN_ID:
                raise ProtocolError("a token that is no token id")
        if self.with_logprobs:
            if logprobs is None or len(logprobs) != len(ids) or not all(type(value) is float for value in logprobs):
                raise ProtocolError("tokens without their log-probabilities")
            self.logprobs += logprobs
        self.tokens += ids


@define(eq=False)
class Lease:
    """An admitted request. ``close`` gives up whatever still runs; it never waits and may be called again."""

    request: GenerationRequest
    sequences: list[Sequence]
    _give_up: Callable[["Lease", Sequence], None]
    requested_at: float = 0.0
    admitted_at: float = 0.0
    _changed: bool = False
    _sink: Sink | None = None
    _sink_error: Exception | None = None
    _lot: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot)

    async def wait(self, sink: Sink | None = None) -> None:
        """Sleep until a sequence got tokens or ended since the last call. Returns at once if one already has.

        With a ``sink`` the reader lends what it owns, such as its client's socket, for the time of its sleep: the
        sink is called within whatever brings the news, and sleep goes on while it returns True. It is never called
        again once the reader has been woken, and what it raises is raised here.
        """
        if not self._changed:
            self._sink = sink
            try:
                await self._lot.park()
            finally:
                self._sink = None
        self._changed = False
        error, self._sink_error = self._sink_error, None
        if error is not None:
            raise error

    def notify(self) -> None:
        """There is news: it goes to the reader's sink, or wakes the reader. Never waits, never raises."""
        sink, self._sink = self._sink, None  # it may cancel a sequence, and so come here again
        if sink is not None:
            try:
                if sink() and not self._changed:
                    self._sink = sink
                    return
            except Exception as error:
                self._sink_error = error
        self._changed = True
        self._lot.unpark()

    def cancel(self, sequence: Sequence) -> None:
        """Give up one sequence, for instance after a stop string."""
        if not sequence.done:
            sequence.cancelled = True
            self._give_up(self, sequence)

    def close(self) -> None:
        """Give up every sequence that still runs."""
        for sequence in self.sequences:
            self.cancel(sequence)
