"""How old the running generations are, and how long they have been silent."""

from collections.abc import Callable, Iterable

import trio
from attrs import define, frozen


@frozen(kw_only=True)
class RunningGeneration:
    """One sequence in a worker's batch. Times are of the watchdog's clock.

    ``progressed_at``: when its worker last gave a sign of work on it: tokens, or a step of its prefill.
    """

    model: str
    started_at: float
    progressed_at: float


@frozen(kw_only=True)
class WatchdogReport:
    """``/v1/admin/health/watchdog``. Ages are None when nothing runs.

    A long answer is old and no trouble; ``oldest_silence_secs`` above ``hang_ceiling_secs`` is one: the model's own
    recovery should have ended it long before.
    """

    running: int
    oldest_age_secs: float | None
    oldest_age_model: str | None
    oldest_silence_secs: float | None
    oldest_silence_model: str | None
    hang_ceiling_secs: float
    hung: bool

    def as_json(self) -> dict[str, object]:
        """The body of the answer."""
        return {
            "status": "hung" if self.hung else "ok",
            "running": self.running,
            "oldest_generation_age_secs": _rounded(self.oldest_age_secs),
            "oldest_generation_model": self.oldest_age_model,
            "oldest_silence_secs": _rounded(self.oldest_silence_secs),
            "oldest_silence_model": self.oldest_silence_model,
            "hang_ceiling_secs": self.hang_ceiling_secs,
        }


@define(eq=False)
class Watchdog:
    """Looks at what runs when it is asked; keeps nothing."""

    running: Callable[[], Iterable[RunningGeneration]]
    hang_ceiling_secs: float
    clock: Callable[[], float] = trio.current_time

    def report(self) -> WatchdogReport:
        """Now."""
        now = self.clock()
        generations = list(self.running())
        oldest = min(generations, key=lambda generation: generation.started_at, default=None)
        silent = min(generations, key=lambda generation: generation.progressed_at, default=None)
        silence = None if silent is None else max(0.0, now - silent.progressed_at)
        return WatchdogReport(
            running=len(generations),
            oldest_age_secs=None if oldest is None else max(0.0, now - oldest.started_at),
            oldest_age_model=None if oldest is None else oldest.model,
            oldest_silence_secs=silence,
            oldest_silence_model=None if silent is None else silent.model,
            hang_ceiling_secs=self.hang_ceiling_secs,
            hung=silence is not None and silence > self.hang_ceiling_secs,
        )


def _rounded(secs: float | None) -> float | None:
    return None if secs is None else round(secs, 3)
