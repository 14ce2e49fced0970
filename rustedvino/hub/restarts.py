"""When a model whose worker died is started again, and which requests are to blame."""

from collections import OrderedDict, deque
from collections.abc import Iterable
from typing import Final

from attrs import define, field, frozen

MAX_SUSPECTS: Final = 1024


@frozen
class RestartPolicy:
    """Bounds of the restarts of one model's worker.

    ``max_memory_retries`` is how often a load that ended for lack of memory is tried again: what lacked may have been
    on its way back. A model too large for what is left meets the same wall each time, and its loads push others out.
    """

    backoff_base_secs: float
    backoff_max_secs: float
    max_restarts: int
    window_secs: float
    max_memory_retries: int = 1

    def backoff_secs(self, deaths: int) -> float:
        """Wait before the restart that follows the ``deaths``-th death of the window: none after the first."""
        if deaths <= 1:
            return 0.0
        return min(self.backoff_base_secs * 2.0 ** (deaths - 2), self.backoff_max_secs)


@define(eq=False)
class DeathRecord:
    """Deaths within the window, and the fingerprints of the requests that were running in them.

    A fingerprint seen in two deaths is a culprit. Deaths that share a fingerprint count once, so that one client
    repeating a deadly request cannot use up the restarts of a model that others use.
    """

    policy: RestartPolicy
    _deaths: deque[float] = field(factory=deque)
    _loads_without_memory: int = 0
    _suspects: OrderedDict[bytes, int] = field(factory=OrderedDict)

    def died(self, now: float, running: Iterable[bytes]) -> None:
        """Record a death at ``now`` (seconds, any monotonic clock) with the fingerprints that were running."""
        fingerprints = set(running)
        known = any(fingerprint in self._suspects for fingerprint in fingerprints)
        for fingerprint in fingerprints:
            self._suspects[fingerprint] = self._suspects.pop(fingerprint, 0) + 1
        while len(self._suspects) > MAX_SUSPECTS:
            self._suspects.popitem(last=False)
        if not known:
            self._deaths.append(now)

    def load_lacked_memory(self) -> None:
        """A load ended for lack of memory."""
        self._loads_without_memory += 1

    def loaded(self) -> None:
        """A load came to its end: there was memory."""
        self._loads_without_memory = 0

    @property
    def loads_without_memory(self) -> int:
        """How many loads ended for lack of memory since one succeeded, whenever that was."""
        return self._loads_without_memory

    @property
    def out_of_memory(self) -> bool:
        """Whether loads have ended for lack of memory more often than they may be tried again."""
        return self._loads_without_memory > self.policy.max_memory_retries

    def completed(self, fingerprint: bytes) -> None:
        """A request ran to its end: it did not kill the worker, whatever it was near before."""
        self._suspects.pop(fingerprint, None)

    def is_culprit(self, fingerprint: bytes) -> bool:
        """Whether the request was running in two deaths."""
        return self._suspects.get(fingerprint, 0) >= 2

    def count(self, now: float) -> int:
        """Deaths that count towards max_restarts at ``now``."""
        while self._deaths and self._deaths[0] <= now - self.policy.window_secs:
            self._deaths.popleft()
        return len(self._deaths)

    def exhausted(self, now: float) -> bool:
        """Whether the model has died more often than it may be restarted."""
        return self.count(now) > self.policy.max_restarts

    def forgive(self) -> None:
        """Somebody asked for a fresh start: forget the deaths, not the culprits."""
        self._deaths.clear()
        self._loads_without_memory = 0
