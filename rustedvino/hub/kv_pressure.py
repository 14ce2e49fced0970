"""KV pools that stay nearly full: they are flagged, nothing else is done about them.

Each sweep looks at the use of every ready model's pool, as its engine last reported it. A model whose use was at or
above the threshold in every look for the sustained time is flagged, until a look finds it below, or not ready any more.
There is no second, lower threshold: a model whose use swings around the one there is has to stay above it for the whole
time anew, so it is logged at most twice per sustained time.

What the runtime counts as used are blocks of sequences in the batch. Blocks that only the prefix cache keeps count as
free, since they are taken when needed, and an idle model's use is 0 (measured with 2026.4.1, with the cache and
without).
"""

import logging
from collections.abc import Callable, Iterable
from typing import Final, Literal

import trio
from attrs import define, field, frozen

from rustedvino.config.types import ServerSettings
from rustedvino.hub.actor import ModelActor
from rustedvino.hub.containment import contained
from rustedvino.hub.states import State

log = logging.getLogger(__name__)

_WITH_POOL: Final = frozenset({State.READY, State.DRAINING})


@frozen(kw_only=True)
class PoolUse:
    """The pool of a ready model now. ``residence`` tells one load of the model from the next."""

    model_id: str
    residence: float
    used_percent: float


@frozen(kw_only=True)
class Pressure:
    """What is known of a model's pool since its use reached the threshold. Times are of trio's clock.

    ``flagged_at`` None: not for long enough yet.
    """

    residence: float
    above_since: float
    flagged_at: float | None


@frozen(kw_only=True)
class Change:
    """A model was flagged or is no longer. ``used_percent`` None: it is not ready any more."""

    model_id: str
    change: Literal["flagged", "cleared"]
    used_percent: float | None
    lasted_secs: float
    """How long the use has been at or above the threshold, or the model was flagged."""


@define(eq=False)
class PressureTracker:
    """The decision, without clock or log."""

    threshold_percent: float
    sustained_secs: float
    _pressure: dict[str, Pressure] = field(factory=dict)

    def look(self, pools: Iterable[PoolUse], now: float) -> list[Change]:
        """Take in the pools of all ready models. Returns what changed by it."""
        before, self._pressure = self._pressure, {}
        changes: list[Change] = []
        seen: set[str] = set()
        for pool in pools:
            seen.add(pool.model_id)
            known = before.get(pool.model_id)
            if known is not None and known.residence != pool.residence:
                changes += _cleared(pool.model_id, known, None, now)
                known = None
            if pool.used_percent < self.threshold_percent:
                if known is not None:
                    changes += _cleared(pool.model_id, known, pool.used_percent, now)
                continue
            since = now if known is None else known.above_since
            flagged_at = None if known is None else known.flagged_at
            if flagged_at is None and now - since >= self.sustained_secs:
                flagged_at = now
                changes.append(
                    Change(
                        model_id=pool.model_id,
                        change="flagged",
                        used_percent=pool.used_percent,
                        lasted_secs=now - since,
                    )
                )
            self._pressure[pool.model_id] = Pressure(residence=pool.residence, above_since=since, flagged_at=flagged_at)
        for model_id, known in before.items():
            if model_id not in seen:
                changes += _cleared(model_id, known, None, now)
        return changes

    def get(self, model_id: str, residence: float) -> Pressure | None:
        """What is known of this load of a model; None while its use is below the threshold."""
        known = self._pressure.get(model_id)
        return known if known is not None and known.residence == residence else None


def _cleared(model_id: str, known: Pressure, used_percent: float | None, now: float) -> list[Change]:
    if known.flagged_at is None:
        return []
    lasted = now - known.flagged_at
    return [Change(model_id=model_id, change="cleared", used_percent=used_percent, lasted_secs=lasted)]


@define(eq=False)
class KvPressureMonitor:
    """Looks at ``actors`` every ``sweep_secs`` and logs each change once."""

    tracker: PressureTracker
    sweep_secs: float
    actors: Callable[[], Iterable[ModelActor]]

    @classmethod
    def from_settings(
        cls, settings: ServerSettings, actors: Callable[[], Iterable[ModelActor]]
    ) -> "KvPressureMonitor | None":
        """The monitor as it is configured; None when it is off."""
        if not settings.kv_pressure_monitor_enabled:
            return None
        threshold, sustained = settings.kv_pressure_threshold_pct, settings.kv_pressure_sustained_secs
        assert threshold is not None  # a configuration without them is refused
        assert sustained is not None
        return cls(PressureTracker(threshold, sustained), settings.kv_pressure_sweep_interval_secs, actors)

    async def run(self) -> None:
        """Sweep until cancelled."""
        while True:
            await trio.sleep(self.sweep_secs)
            with contained("the watch over KV pools"):
                self.sweep()

    def sweep(self) -> None:
        """One look at every ready model that has a pool."""
        pools = [
            PoolUse(model_id=actor.model_id, residence=actor.loaded_at, used_percent=used)
            for actor in self.actors()
            if actor.state is State.READY and (used := used_percent(actor)) is not None
        ]
        for change in self.tracker.look(pools, trio.current_time()):
            self._tell(change)

    def pressure(self, actor: ModelActor) -> Pressure | None:
        """What was found at the last sweep, if it is still about the model as it is loaded now."""
        return self.tracker.get(actor.model_id, actor.loaded_at) if actor.state is State.READY else None

    def _tell(self, change: Change) -> None:
        threshold = self.tracker.threshold_percent
        if change.change == "flagged":
            log.warning(
                "model %s: its KV pool has been at least %g %% full for %.0f s, now %.1f %%",
                change.model_id,
                threshold,
                change.lasted_secs,
                change.used_percent,
            )
        elif change.used_percent is None:
            log.info(
                "model %s is not under KV pressure any more: it is not loaded as it was (flagged for %.0f s)",
                change.model_id,
                change.lasted_secs,
            )
        else:
            log.info(
                "model %s is not under KV pressure any more: its pool is below %g %% full, now %.1f %% (flagged for "
                "%.0f s)",
                change.model_id,
                threshold,
                change.used_percent,
                change.lasted_secs,
            )


def pool_bytes(actor: ModelActor) -> int | None:
    """Size of a loaded model's KV pool as the runtime reports it.

    None for a kind without one, and on an NPU, where the cache is part of the compiled model and has no known size.
    """
    reported = actor.facts.get("kv_cache_bytes") if actor.state in _WITH_POOL else None
    return reported if isinstance(reported, int) and reported > 0 else None


def used_percent(actor: ModelActor) -> float | None:
    """Use of a loaded model's KV pool, 0 to 100; None where the runtime does not report it."""
    return None if pool_bytes(actor) is None else actor.statistics().cache_usage_percent
