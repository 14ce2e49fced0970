"""The registry and the config file: applying the file to a running hub, and telling where the two differ."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import attrs
import trio
from attrs import define, field

from rustedvino.config.model_table import MODEL
from rustedvino.config.problems import ConfigError
from rustedvino.config.store import ConfigStore, set_preload
from rustedvino.config.types import ModelSettings
from rustedvino.hub.actor import ModelActor
from rustedvino.hub.admin_errors import BadSetting
from rustedvino.hub.admin_views import has_ledger, model_kind
from rustedvino.hub.hub import Hub
from rustedvino.hub.states import WITH_WORKER, State

DEREGISTER_BOUND_SECS: Final = 30.0
"""How long a removal that must not stop half-way goes on after its client has left."""
MODEL_FIELDS: Final = tuple(row.name for row in MODEL)
LIVE_FIELDS: Final = frozenset(row.name for row in MODEL if row.live)
"""Fields of a loaded model that act at once; the others do at its next load."""


@define(kw_only=True)
class Reload:
    """What a reload did. ``updated`` acts now, ``next_load`` when the model is next loaded, ``next_start`` names
    global settings; ``retried`` had failed."""

    added: list[str] = field(factory=list)
    updated: list[dict[str, Any]] = field(factory=list)
    next_load: list[dict[str, Any]] = field(factory=list)
    removed: list[str] = field(factory=list)
    retried: list[str] = field(factory=list)
    skipped: list[dict[str, str]] = field(factory=list)
    next_start: list[str] = field(factory=list)

    def skip(self, model_id: str, reason: str) -> None:
        """Note that a model was left as it is."""
        self.skipped.append({"model_id": model_id, "reason": reason})


@define(eq=False)
class ConfigSync:
    """Applies the file of ``store`` to ``hub``, one change at a time under ``changes``. Each method raises
    ConfigNotWritable, reload and preload ConfigError too (the file as it stands is not valid)."""

    hub: Hub
    store: ConfigStore
    changes: trio.Lock
    _started_with: Mapping[str, object] = field(init=False)
    """Global settings as the file had them when they took effect."""

    def __attrs_post_init__(self) -> None:
        self._started_with = dict(self.store.config.raw)

    async def preload(self, model_ids: Iterable[str] | None) -> dict[str, Any]:
        """Save the models to load at the next start, in this order; None: those that are loaded now, oldest first."""
        async with self.changes:
            registered = dict(self.hub)
            if model_ids is None:
                loaded = [model.actor for model in registered.values() if _is_loaded(model.actor)]
                wanted = [actor.model_id for actor in sorted(loaded, key=lambda actor: actor.loaded_at)]
            else:
                wanted = list(model_ids)
            for index, model_id in enumerate(wanted):
                if model_id not in registered:
                    message = f"model_ids[{index}]: the model {model_id!r} does not exist"
                    raise BadSetting(f"model_ids[{index}]", message, "model_not_found")
            await self.store.change(set_preload(wanted))
        eager = [model_id for model_id, model in registered.items() if model.actor.settings.load == "eager"]
        return {"preload": wanted, "eager": eager}

    async def reload(self) -> dict[str, Any]:
        """Apply what the file says now, as far as that disturbs no loaded model. See `Reload`."""
        async with self.changes:
            file = (await self.store.read()).settings
            report = Reload()
            live = {model_id: model.actor for model_id, model in self.hub}
            for model_id, settings in file.models.items():
                fault = device_fault(self.hub, settings)
                if fault is not None:
                    report.skip(model_id, fault[1])
                elif model_id in live:
                    await self._refresh(live[model_id], settings, report)
                else:
                    await self.hub.register(model_id, settings)
                    self._start(model_id)
                    report.added.append(model_id)
            for model_id, actor in live.items():
                if model_id in file.models:
                    continue
                if actor.state in (State.NOT_LOADED, State.FAILED):
                    await remove(self.hub, model_id)
                    report.removed.append(model_id)
                else:
                    report.skip(model_id, f"is no longer in the file, but {actor.state}: evict or deregister it")
            report.next_start += self._changed_globals(file, self.store.config.raw)
            return attrs.asdict(report)

    async def _refresh(self, actor: ModelActor, settings: ModelSettings, report: "Reload") -> None:
        """Bring a registered model in line with its entry."""
        model_id, before = actor.model_id, actor.settings
        differing = [name for name in MODEL_FIELDS if getattr(before, name) != getattr(settings, name)]
        if "kind" in differing and settings.kind not in (None, model_kind(actor)):
            if actor.state not in (State.NOT_LOADED, State.FAILED):
                report.skip(model_id, f"its kind cannot be changed while it is {actor.state}: evict it first")
                return
            await remove(self.hub, model_id)
            await self.hub.register(model_id, settings)
        elif differing:
            self.hub.update(model_id, settings)
        if actor.state is State.FAILED:
            give_another_chance(actor)
            report.retried.append(model_id)
        waiting = [name for name in differing if name not in LIVE_FIELDS] if waits_for_load(actor) else []
        if waiting:
            report.next_load.append({"model_id": model_id, "fields": waiting})
        acting = [name for name in differing if name not in waiting]
        if acting:
            report.updated.append({"model_id": model_id, "fields": acting})

    def _start(self, model_id: str) -> None:
        """Begin the load of a model that was added to the file, as at start: nobody is evicted for it."""
        actor = self.hub.get(model_id).actor
        if actor.settings.load == "eager" or model_id in self.hub.settings.preload:
            actor.load("startup")

    async def audit(self) -> dict[str, Any]:
        """Where the file and the server differ; a file that is not valid is reported, not raised."""
        answer: dict[str, Any] = {
            "path": str(self.store.path),
            "in_sync": False,
            "problems": [],
            "only_in_file": [],
            "only_registered": [],
            "differing": [],
            "next_start": [],
        }
        try:
            config = await self.store.read()
        except ConfigError as error:
            return answer | {"problems": [str(problem) for problem in error.problems]}
        live = {model_id: model.actor.settings for model_id, model in self.hub}
        file = config.settings.models
        answer["only_in_file"] = [model_id for model_id in file if model_id not in live]
        answer["only_registered"] = [model_id for model_id in live if model_id not in file]
        for model_id, settings in file.items():
            if model_id in live and settings != live[model_id]:
                differing = [name for name in MODEL_FIELDS if getattr(live[model_id], name) != getattr(settings, name)]
                answer["differing"].append({"model_id": model_id, "fields": differing})
        answer["next_start"] = self._changed_globals(config.settings, config.raw)
        compared = ("only_in_file", "only_registered", "differing", "next_start")
        return answer | {"in_sync": not any(answer[name] for name in compared)}

    def _changed_globals(self, file: object, raw: Mapping[str, object]) -> list[str]:
        """Global settings that the next start would change. What the command line replaced at this start is no
        change, nor is another spelling of the same value; ``preload`` only ever speaks of the next start."""
        return [
            name
            for name in attrs.asdict(self.hub.settings, recurse=False)
            if name not in ("models", "preload")
            and getattr(file, name) != getattr(self.hub.settings, name)
            and raw.get(name) != self._started_with.get(name)
        ]


async def remove(hub: Hub, model_id: str) -> None:
    """Take a model out of the registry, also when the one who asked has left meanwhile. Raises UnknownModel."""
    with trio.move_on_after(DEREGISTER_BOUND_SECS, shield=True):
        await hub.deregister(model_id)


def device_fault(hub: Hub, settings: ModelSettings) -> tuple[str, str] | None:
    """The field that names a device this machine has not, and what to say about it."""
    if not has_ledger(hub):
        return None  # a load will tell
    named = {"device": settings.device}
    if settings.speculative is not None:
        named["speculative.draft_device"] = settings.speculative.draft_device
    inventory = hub.inventory
    for place, device in named.items():
        if device is not None and inventory.find(device) is None:
            return place, f"{place}: {inventory.unknown_device_message(device)}"
    return None


def waits_for_load(actor: ModelActor) -> bool:
    """Whether a worker runs with settings of before."""
    return actor.state in WITH_WORKER or actor.state is State.RESTARTING


def give_another_chance(actor: ModelActor) -> None:
    """A failed model whose entry was changed is not failed any more: it loads, now or at its next request."""
    if actor.state is not State.FAILED:
        return
    if actor.settings.load == "eager":
        actor.load("startup")  # nobody waits for it, so nobody is evicted for it
    else:
        actor.unload(0)


def _is_loaded(actor: ModelActor) -> bool:
    return actor.state in (State.LOADING, State.READY, State.RESTARTING)
