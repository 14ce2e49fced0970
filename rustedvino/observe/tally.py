"""Counts on the path of every token, kept as plain numbers: no locks, no look-ups by label.

Everything is counted on the event loop. A scrape may read from a thread: the sets of keys never change, so the
worst it sees is one observation half counted.
"""

from bisect import bisect_left
from typing import Final, get_args

from attrs import define, field

from rustedvino.observe.families import (
    DURATION_BUCKETS,
    INTER_TOKEN_BUCKETS,
    RTF_BUCKETS,
    SCHEMA_COMPILE_BUCKETS,
    TTFT_BUCKETS,
    ContextGate,
    Modality,
    RestartReason,
    SentenceResult,
    TurnResult,
)

RATE_WINDOW_SECS: Final = 5.0
KEY_SUFFIX_CHARS: Final = 6
MIN_SHOWN_KEY_CHARS: Final = 12


@define(eq=False)
class Histogram:
    """Observations by bucket; the last count is of those above all bounds."""

    bounds: tuple[float, ...]
    counts: list[int] = field(init=False)
    sum: float = field(default=0.0, init=False)

    def __attrs_post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


@define(eq=False)
class TokenClock:
    """When a sequence was asked for and when it last got tokens, in seconds of the metrics' clock."""

    requested_at: float
    last_at: float | None = None


@define(eq=False)
class ModelTally:
    """What happened on one model since it was registered."""

    tokens_generated: int = 0
    prompt_tokens: int = 0
    pool_capacity_rejected: int = 0
    own_budget_rejected: int = 0
    ttft: Histogram = field(factory=lambda: Histogram(TTFT_BUCKETS))
    inter_token: Histogram = field(factory=lambda: Histogram(INTER_TOKEN_BUCKETS))
    rtf: Histogram = field(factory=lambda: Histogram(RTF_BUCKETS))
    schema_compile: Histogram = field(factory=lambda: Histogram(SCHEMA_COMPILE_BUCKETS))
    requests: dict[Modality, int] = field(factory=lambda: dict.fromkeys(get_args(Modality), 0))
    durations: dict[Modality, Histogram] = field(
        factory=lambda: {modality: Histogram(DURATION_BUCKETS) for modality in get_args(Modality)}
    )
    restarts: dict[RestartReason, int] = field(factory=lambda: dict.fromkeys(get_args(RestartReason), 0))
    context_length_exceeded: dict[ContextGate, int] = field(factory=lambda: dict.fromkeys(get_args(ContextGate), 0))
    _rate: float = 0.0
    _window_start: float = 0.0
    _window_end: float = 0.0
    _window_tokens: int = 0

    def tokens(self, clock: TokenClock, count: int, now: float) -> None:
        """A step gave a sequence ``count`` tokens, at least one."""
        self.tokens_generated += count
        last = clock.last_at
        clock.last_at = now
        if last is None:
            self.ttft.observe(now - clock.requested_at)
        else:
            gap = now - last
            histogram = self.inter_token
            histogram.counts[bisect_left(histogram.bounds, gap / count)] += count
            histogram.sum += gap
        if now >= self._window_end:
            self._begin_window(now)

    def admitted(self, modality: Modality, prompt_tokens: int = 0) -> None:
        """A request was admitted."""
        self.requests[modality] += 1
        self.prompt_tokens += prompt_tokens

    def answered(self, modality: Modality, duration_secs: float) -> None:
        """An admitted request has ended, however it did."""
        self.durations[modality].observe(duration_secs)

    def restarted(self, reason: RestartReason) -> None:
        """The worker is being replaced."""
        self.restarts[reason] += 1

    def rate(self, now: float) -> float:
        """Tokens per second over the last whole window, which is RATE_WINDOW_SECS or up to now."""
        if now >= self._window_end:
            self._begin_window(now)
        return self._rate

    def _begin_window(self, now: float) -> None:
        elapsed = now - self._window_start
        self._rate = (self.tokens_generated - self._window_tokens) / elapsed if elapsed > 0 else 0.0
        self._window_start = now
        self._window_end = now + RATE_WINDOW_SECS
        self._window_tokens = self.tokens_generated


@define(eq=False)
class RealtimeTally:
    """What happened in voice sessions."""

    connections: int = 0
    turns: dict[TurnResult, int] = field(factory=lambda: dict.fromkeys(get_args(TurnResult), 0))
    sentences: dict[SentenceResult, int] = field(factory=lambda: dict.fromkeys(get_args(SentenceResult), 0))
    stt: Histogram = field(factory=lambda: Histogram(DURATION_BUCKETS))
    llm: Histogram = field(factory=lambda: Histogram(DURATION_BUCKETS))


@define(eq=False)
class KeyTally:
    """Use of keys by their last characters. Short keys are left out: their end would be most of them."""

    uses: dict[str, int] = field(factory=dict)
    last_seen: dict[str, float] = field(factory=dict)

    def set_keys(self, keys: "frozenset[str] | set[str] | tuple[str, ...] | list[str]") -> None:
        """These are the valid keys now: each is shown, from 0; those that are no longer valid are forgotten."""
        suffixes = {suffix for key in keys if (suffix := key_suffix(key)) is not None}
        self.uses = {suffix: self.uses.get(suffix, 0) for suffix in sorted(suffixes)}
        self.last_seen = {suffix: at for suffix, at in self.last_seen.items() if suffix in suffixes}

    def used(self, key: str, unix_secs: float) -> None:
        """A request was authenticated by this key. A key that ``set_keys`` did not give is not counted."""
        suffix = key_suffix(key)
        if suffix in self.uses:
            self.uses[suffix] += 1
            self.last_seen = {**self.last_seen, suffix: unix_secs}


def key_suffix(key: str) -> str | None:
    """The part of a key that may be shown, None when none may."""
    return key[-KEY_SUFFIX_CHARS:] if len(key) >= MIN_SHOWN_KEY_CHARS else None


def restart_reason(end_kind: str | None, fault_kind: str | None) -> RestartReason:
    """The label for how a worker ended: the kind of its WorkerEnd and of its fault, if any.

    ``end_kind`` None: it never started.
    """
    if fault_kind == "out_of_memory":
        return "oom"
    if end_kind is None:
        return "start_failed"
    if fault_kind is not None:
        return "gpu_poisoned" if fault_kind == "gpu_poisoned" else "engine_fault"
    return "stall" if end_kind == "stall" else "protocol" if end_kind == "protocol" else "crash"
