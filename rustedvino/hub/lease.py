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
    _lot: trio.lowlevel.ParkingLot = field(factory=trio.lowlevel.ParkingLot)

    async def wait(self) -> None:
        """Sleep until a sequence got tokens or ended since the last call. Returns at once if one already has."""
        if not self._changed:
            await self._lot.park()
        self._changed = False

    def notify(self) -> None:
        """Wake the reader."""
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
