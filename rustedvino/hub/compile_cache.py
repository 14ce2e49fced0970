"""The compile cache: which models get it, what is pruned when it outgrows its cap, and the task that prunes.

See ``cache_files`` for how it lies on the disk.
"""

import logging
from collections.abc import Callable, Collection, Iterable
from functools import partial
from pathlib import Path
from typing import Final

import trio
from attrs import define, field, frozen

from rustedvino.config.types import ServerSettings, gb_to_bytes
from rustedvino.hub.cache_files import (
    Blob,
    Listing,
    Removal,
    close_after_load,
    list_cache,
    open_cache,
    open_for_load,
    remove_blobs,
)
from rustedvino.hub.containment import contained

log = logging.getLogger(__name__)

BATCH: Final = 64
"""Blobs removed before it is asked again which models are in use. A load waits for one batch at most."""

_WITHOUT: Final[tuple[tuple[str, str], ...]] = (("stt", "NPU"),)
"""Kinds and devices whose compiled models are not to be cached."""


def uses_cache(kind: str, device: str) -> bool:
    """Whether models of a kind are cached on a device."""
    return not any(kind == without and device.startswith(prefix) for without, prefix in _WITHOUT)


# What is pruned.


@frozen(kw_only=True)
class Usage:
    """Model ids: all that are registered, and those with a worker or about to have one again."""

    registered: frozenset[str]
    in_use: frozenset[str]


def owner(blob: Blob, registered: Collection[str]) -> str | None:
    """The model a blob belongs to, None for nobody. The folder decides where it is a registered model's own: that is
    what the runtime was told. Elsewhere the manifest says whose blobs they were."""
    return blob.folder if blob.folder in registered else blob.manifest_model


def plan(blobs: Iterable[Blob], usage: Usage, max_bytes: int) -> list[Blob]:
    """The blobs to remove, in order, so that the rest has ``max_bytes`` at most, or is all in use.

    First those of models that are no longer registered, then of models that are not in use, then what is nobody's;
    among equals those that were used longest ago. Never one of a model in use, and none more than needed.
    """
    total = 0
    candidates: list[tuple[int, int, str, str, Blob]] = []
    for blob in blobs:
        total += blob.size
        model = owner(blob, usage.registered)
        if model in usage.in_use:
            continue
        rank = 2 if model is None else int(model in usage.registered)
        candidates.append((rank, blob.used_ns, blob.folder, blob.name, blob))
    candidates.sort(key=lambda candidate: candidate[:4])
    doomed: list[Blob] = []
    for *_, blob in candidates:
        if total <= max_bytes:
            break
        doomed.append(blob)
        total -= blob.size
    return doomed


def _prune(root: Path, blobs: Collection[Blob], usage: Usage, max_bytes: int) -> Removal:
    """Remove the first blobs of the plan. Runs in a thread: the plan of a large cache takes its time too."""
    return remove_blobs(root, plan(blobs, usage, max_bytes)[:BATCH])


# The task.


@define(eq=False)
class CompileCache:
    """The compile cache of one server. ``usage`` is called on the event loop; ``pruned`` is told files and bytes.

    A problem of the disk is logged once and costs speed only: models load without the cache.
    """

    folder: Path
    max_bytes: int
    """0: no cap."""
    sweep_interval_secs: float
    usage: Callable[[], Usage]
    pruned: Callable[[int, int], None]
    total_bytes: int | None = None
    """Size of all blobs at the last look; None when that is not known."""
    _lock: trio.Lock = field(factory=trio.Lock)
    """Held while files are changed: no load begins among them."""
    _wake: trio.Event = field(factory=trio.Event)
    _readable: dict[str, bool] = field(factory=dict)
    """By model whose load is under way: whether there are blobs that it may read."""
    _distrusted: set[str] = field(factory=set)
    _told: set[str] = field(factory=set)
    _load_problems: dict[str, list[str]] = field(factory=dict)

    @classmethod
    def from_settings(
        cls, settings: ServerSettings, usage: Callable[[], Usage], pruned: Callable[[int, int], None]
    ) -> "CompileCache | None":
        """The cache that is configured, if one is."""
        if settings.ov_cache_dir is None:
            return None
        return cls(
            settings.ov_cache_dir,
            gb_to_bytes(settings.ov_cache_max_gb),
            settings.ov_cache_sweep_interval_secs,
            usage,
            pruned,
        )

    async def run(self) -> None:
        """Sweep now, at each interval and after each nudge, until cancelled."""
        problem = await trio.to_thread.run_sync(open_cache, self.folder)
        if problem is not None:
            log.error("compile cache: %s", problem)
        while True:
            self._wake = trio.Event()
            with contained("a sweep of the compile cache"):
                await self.sweep()
            with trio.move_on_after(self.sweep_interval_secs):
                await self._wake.wait()

    def nudge(self) -> None:
        """A model was unloaded or removed, or has new blobs: look at the cache soon."""
        self._wake.set()

    async def sweep(self) -> None:
        """Measure the cache and prune it to its cap."""
        registered = self.usage().registered
        async with self._lock:
            listing = await trio.to_thread.run_sync(list_cache, self.folder, registered)
        problems = list(listing.problems)
        self.total_bytes = listing.total_bytes
        if self.max_bytes:
            problems += await self._prune_to_cap(listing)
        for problem in problems:
            if problem not in self._told:
                log.warning("compile cache: %s", problem)
        self._told = set(problems)

    async def _prune_to_cap(self, listing: Listing) -> list[str]:
        left = {(blob.folder, blob.name): blob for blob in listing.blobs}
        prunable = sum(blob.size for blob in listing.blobs)
        # What this sweep cannot free: blobs that were not listed, and later those that cannot be removed.
        fixed = max(0, (listing.total_bytes or 0) - prunable)
        files = size = 0
        problems: dict[str, None] = {}
        while prunable + fixed > self.max_bytes:
            async with self._lock:
                target = max(0, self.max_bytes - fixed)
                removal = await trio.to_thread.run_sync(_prune, self.folder, left.values(), self.usage(), target)
            handled = (*removal.removed, *removal.gone, *removal.kept)
            if not handled:
                problems["it is larger than ov_cache_max_gb; what is left is in use or cannot be removed"] = None
                break
            for blob in handled:
                del left[blob.folder, blob.name]
                prunable -= blob.size
            problems |= dict.fromkeys(removal.problems)
            fixed += sum(blob.size for blob in removal.kept)
            freed = sum(blob.size for blob in removal.removed)
            if self.total_bytes is not None:
                self.total_bytes -= freed + sum(blob.size for blob in removal.gone)
            if removal.removed:
                self.pruned(len(removal.removed), freed)
                files, size = files + len(removal.removed), size + freed
        if files:
            log.info("compile cache: removed %d files, %d bytes, to keep ov_cache_max_gb", files, size)
        return list(problems)

    # Around a load.

    async def open(self, model_id: str) -> Path | None:
        """The folder for a load of the model that begins now; None when it must do without.

        Nothing in it is pruned while ``usage`` says that the model is in use.
        """
        self._readable.pop(model_id, None)
        async with self._lock:
            opened = await trio.to_thread.run_sync(
                partial(open_for_load, self.folder, model_id, distrusted=model_id in self._distrusted)
            )
        for note in opened.notes:
            log.warning("model %s: %s", model_id, note)
        if opened.problems != self._load_problems.get(model_id, []):  # once, not at each load
            for problem in opened.problems:
                log.error("model %s: %s", model_id, problem)
        self._load_problems[model_id] = opened.problems
        if opened.place is not None:
            self._distrusted.discard(model_id)
            self._readable[model_id] = opened.before > 0
        return opened.place

    async def loaded(self, model_id: str) -> None:
        """The load got ready: what it left behind is whole."""
        if self._readable.pop(model_id, None) is None:
            return
        async with self._lock:
            problems = await trio.to_thread.run_sync(close_after_load, self.folder, model_id)
        for problem in problems:
            log.error("model %s: %s", model_id, problem)
        self.nudge()

    def failed(self, model_id: str) -> bool:
        """The load failed. True when blobs were there that it may have read, so that the blame may be theirs: they
        are removed before the next load, which may therefore go better."""
        if not self._readable.pop(model_id, False):
            return False
        self._distrusted.add(model_id)
        log.warning("model %s: its load failed with blobs of the compile cache; the next one removes them", model_id)
        return True

    def forget(self, model_id: str) -> None:
        """The model was taken out: its blobs are the first to be pruned."""
        self._readable.pop(model_id, None)
        self._load_problems.pop(model_id, None)
        self.nudge()
