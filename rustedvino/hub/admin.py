"""What an administrator may do: changes of the registry that are saved in the config file, loads, evictions.

A change that is to be saved is saved before it acts, or is undone when it cannot be saved: what is answered as done is
in the file, and what is refused has changed nothing.
"""

import logging
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Final

import attrs
import trio
from attrs import define, field

from rustedvino.config.kinds import model_id_fault
from rustedvino.config.load import read_model_settings
from rustedvino.config.model_table import MODEL
from rustedvino.config.problems import ConfigError
from rustedvino.config.store import ConfigStore, EntryExists, add_model, remove_model, set_model, set_preload
from rustedvino.config.types import ModelSettings
from rustedvino.hub.actor import ModelActor
from rustedvino.hub.admin_views import changed_settings, has_ledger, model_kind, model_view
from rustedvino.hub.errors import NotReady
from rustedvino.hub.eviction import Refusal
from rustedvino.hub.footprint import KV_POOL_KINDS
from rustedvino.hub.hub import Hub
from rustedvino.hub.model_files import ModelProblem, inspect_folder
from rustedvino.hub.residency import NoRoom, plan_details, refusal_details
from rustedvino.hub.states import WITH_WORKER, State

log = logging.getLogger(__name__)

DEREGISTER_BOUND_SECS: Final = 30.0
"""How long a removal that must not stop half-way goes on after its client has left."""
MODEL_FIELDS: Final = tuple(row.name for row in MODEL)
LIVE_FIELDS: Final = frozenset(row.name for row in MODEL if row.live)
"""Fields of a loaded model that act at once; the others do at its next load."""


class AdminRefusal(Exception):
    """An operation that was not carried out. ``code`` is the wire code."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.message = message
        self.code = code


class BadSetting(AdminRefusal):
    """Something given is wrong: correct it. ``field`` is its path."""

    def __init__(self, field: str, message: str, code: str = "invalid_value") -> None:
        super().__init__(message, code)
        self.field = field


class WrongState(AdminRefusal):
    """The model's state, or the file's, does not allow it."""


class Cooldown(AdminRefusal):
    """It was done too short a time ago."""

    def __init__(self, message: str, retry_after_secs: float) -> None:
        super().__init__(message, "resize_cooldown")
        self.retry_after_secs = retry_after_secs


@define(eq=False)
class Admin:
    """Operations on a running hub and its config. Each raises UnknownModel, AdminRefusal and, where it saves,
    ConfigNotWritable and ConfigError (the file as it stands is not valid)."""

    hub: Hub
    store: ConfigStore
    _started_with: Mapping[str, object] = field(init=False)
    """Global settings as the file had them when they took effect."""
    _changes: trio.Lock = field(factory=trio.Lock, init=False)
    _resized_at: dict[str, float] = field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self._started_with = dict(self.store.config.raw)

    # The registry.

    async def add(self, model_id: str, raw: Mapping[str, Any]) -> dict[str, Any]:
        """Register a model, save it and, unless it loads on demand, load it.

        A model whose files are not complete or for which there is no memory now is not registered (BadSetting,
        NoRoom). When the load fails after that, it stays registered, and the error says so (NotReady, NoRoom).
        """
        check_model_id(model_id)
        entry = {name: value for name, value in raw.items() if value is not None}
        settings = await self._read_entry(entry)
        async with self._changes:
            if model_id in dict(self.hub):
                raise WrongState(f"the model {model_id!r} is registered already", "model_exists")
            await self.hub.register(model_id, settings)
            try:
                await self._check_loadable(model_id, settings)
                await self.store.change(add_model(model_id, entry))
            except BaseException as error:
                await self._remove(model_id)
                if isinstance(error, EntryExists):
                    raise WrongState(str(error), "model_exists") from error
                raise
        if settings.load == "eager":
            await self._load_added(model_id)
        return model_view(self.hub, model_id)

    async def _check_loadable(self, model_id: str, settings: ModelSettings) -> None:
        try:
            decision = await self.hub.check(model_id)
        except ModelProblem as error:
            raise BadSetting("model_id", f"the model cannot be loaded: {error}", "model_unusable") from error
        if isinstance(decision, Refusal) and settings.load == "eager":
            raise NoRoom(decision)

    async def _load_added(self, model_id: str) -> None:
        try:
            await self.hub.load(model_id)
        except NotReady as error:
            message = f"{model_id!r} is registered and saved, but was not loaded: {error.message}"
            raise NotReady(error.reason, message, retry_after_secs=error.retry_after_secs) from error
        except NoRoom as error:
            message = f"{model_id} is registered and saved, but was not loaded: {error.refusal.message}"
            raise NoRoom(attrs.evolve(error.refusal, message=message)) from error

    async def patch(self, model_id: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Change fields of a model's entry, None back to its default, and save them.

        Fields marked live act at once, others at the model's next load. A failed model is given another chance.
        """
        check_model_id(model_id)
        self.hub.get(model_id)
        given = await self._read_entry({name: value for name, value in changes.items() if value is not None})
        async with self._changes:
            actor = self.hub.get(model_id).actor
            before = actor.settings
            after = attrs.evolve(before, **{name: getattr(given, name) for name in changes})
            await self.store.change(set_model(model_id, changes, changed_settings(before)))
            # No checkpoint between saving and this: a cancellation cannot separate them.
            self.hub.update(model_id, after)
        _give_another_chance(actor)
        differing = [name for name in changes if getattr(before, name) != getattr(after, name)]
        waits = _waits_for_load(actor)
        return {
            "model_id": model_id,
            "live": [name for name in differing if name in LIVE_FIELDS or not waits],
            "next_load": [name for name in differing if name not in LIVE_FIELDS and waits],
            "unchanged": [name for name in changes if name not in differing],
            "settings": changed_settings(after),
            "state": actor.state.value,
        }

    async def deregister(self, model_id: str) -> dict[str, Any]:
        """Take a model out of the registry and of the file; what runs on it ends."""
        check_model_id(model_id)
        async with self._changes:
            self.hub.get(model_id)
            await self.store.change(remove_model(model_id))
            await self._remove(model_id)
        self._resized_at.pop(model_id, None)
        return {"model_id": model_id, "deregistered": True}

    async def _remove(self, model_id: str) -> None:
        """Take a model out of the registry, also when the one who asked has left meanwhile."""
        with trio.move_on_after(DEREGISTER_BOUND_SECS, shield=True):
            await self.hub.deregister(model_id)

    async def _read_entry(self, entry: Mapping[str, Any]) -> ModelSettings:
        """Check fields of an entry. Raises BadSetting with everything that is wrong."""
        work = partial(
            read_model_settings,
            dict(entry),
            "",
            folder=self.store.config.folder,
            models_dir=self.hub.settings.models_dir,
            keys_path=self.store.config.keys_path,
        )
        try:
            settings = await trio.to_thread.run_sync(work)
        except ConfigError as error:
            raise BadSetting(error.problems[0].path, "; ".join(map(str, error.problems))) from error
        fault = self._device_fault(settings)
        if fault is not None:
            raise BadSetting(*fault)
        return settings

    def _device_fault(self, settings: ModelSettings) -> tuple[str, str] | None:
        """The field that names a device this machine has not, and what to say about it."""
        if not has_ledger(self.hub):
            return None  # a load will tell
        named = {"device": settings.device}
        if settings.speculative is not None:
            named["speculative.draft_device"] = settings.speculative.draft_device
        inventory = self.hub.inventory
        for place, device in named.items():
            if device is not None and inventory.find(device) is None:
                return place, f"{place}: {inventory.unknown_device_message(device)}"
        return None

    # Memory.

    async def load(self, model_id: str, *, force: bool, kv_cache_gb: float | None) -> dict[str, Any]:
        """Load a model and wait until it is ready. Raises NoRoom and NotReady."""
        check_model_id(model_id)
        actor = self.hub.get(model_id).actor
        if kv_cache_gb is not None:
            if actor.state in (State.READY, State.LOADING):
                message = f"{model_id!r} is {actor.state} already; its pool can be changed by a resize"
                raise WrongState(message, "model_loaded")
            await self._check_has_pool(actor)
        if actor.state is State.DRAINING:
            await actor.wait_unloaded()
        await self.hub.load(model_id, force=force, kv_cache_gb=kv_cache_gb)
        return model_view(self.hub, model_id)

    async def check(self, model_id: str, *, force: bool) -> dict[str, Any]:
        """What a load would do now."""
        check_model_id(model_id)
        state = self.hub.get(model_id).actor.state.value
        try:
            decision = await self.hub.check(model_id, force=force)
        except ModelProblem as error:
            raise WrongState(f"{model_id!r} cannot be loaded: {error}", "model_unusable") from error
        if isinstance(decision, Refusal):
            answer = {"would_evict": [], **refusal_details(decision), "message": decision.message}
            return {"model_id": model_id, "state": state, "fits": False, **answer} | {
                "retry_after_secs": decision.retry_after_secs
            }
        return {"model_id": model_id, "state": state, "fits": True, **plan_details(decision)}

    async def resize(self, model_id: str, kv_cache_gb: float) -> dict[str, Any]:
        """Evict a model and load it with another pool, which it keeps until it is unloaded; not saved.

        A pool for which there is no room is refused with the model still loaded (NoRoom); when the load fails, the
        model is unloaded, and the error says so.
        """
        check_model_id(model_id)
        actor = self.hub.get(model_id).actor
        if actor.state is not State.READY:
            raise WrongState(f"{model_id!r} is {actor.state}: only a loaded model can be resized", "model_not_loaded")
        await self._check_has_pool(actor)
        now = trio.current_time()
        cooldown_secs = self.hub.settings.kv_resize_cooldown_secs
        left_secs = self._resized_at.get(model_id, -cooldown_secs) + cooldown_secs - now
        if model_id in self._resized_at and left_secs > 0:
            raise Cooldown(f"{model_id!r} was resized within the last {cooldown_secs:g} s", left_secs)
        # Noted before anything is waited for: a second request meanwhile is refused.
        before, self._resized_at[model_id] = self._resized_at.get(model_id), now
        decision = await self._planned_resize(model_id, kv_cache_gb)
        if isinstance(decision, Refusal):
            if before is None:
                del self._resized_at[model_id]
            else:
                self._resized_at[model_id] = before
            raise NoRoom(decision)
        try:
            await self.hub.resize(model_id, kv_cache_gb)
        except NoRoom as error:
            message = f"{error.refusal.message}; {model_id} is unloaded now"
            raise NoRoom(attrs.evolve(error.refusal, message=message)) from error
        except NotReady as error:
            message = f"{error.message}; {model_id!r} is not loaded now"
            raise NotReady(error.reason, message, retry_after_secs=error.retry_after_secs) from error
        return model_view(self.hub, model_id)

    async def _planned_resize(self, model_id: str, kv_cache_gb: float) -> object:
        try:
            return await self.hub.check(model_id, kv_cache_gb=kv_cache_gb)
        except ModelProblem as error:
            del self._resized_at[model_id]
            raise WrongState(f"{model_id!r} cannot be loaded again: {error}", "model_unusable") from error

    async def _check_has_pool(self, actor: ModelActor) -> None:
        kind = model_kind(actor)
        if kind is None:
            folder = self.hub.settings.models_dir / actor.model_id
            try:
                kind = (await trio.to_thread.run_sync(inspect_folder, folder)).kind
            except ModelProblem as error:
                raise WrongState(f"{actor.model_id!r} cannot be loaded: {error}", "model_unusable") from error
        if kind not in KV_POOL_KINDS:
            raise BadSetting("kv_cache_gb", f"a model of kind {kind} has no KV pool")

    async def evict(self, model_id: str) -> dict[str, Any]:
        """Drain a model and end its worker. WrongState when it is not loaded."""
        check_model_id(model_id)
        if self.hub.get(model_id).actor.state in (State.NOT_LOADED, State.GONE):
            raise WrongState(f"{model_id!r} is not loaded", "model_not_loaded")
        await self.hub.evict(model_id)
        return model_view(self.hub, model_id)

    # The file.

    async def preload(self, model_ids: Iterable[str] | None) -> dict[str, Any]:
        """Save the models to load at the next start, in this order; None: those that are loaded now, oldest first."""
        async with self._changes:
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
        async with self._changes:
            file = (await self.store.read()).settings
            report = Reload()
            live = {model_id: model.actor for model_id, model in self.hub}
            for model_id, settings in file.models.items():
                fault = self._device_fault(settings)
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
                    await self._remove(model_id)
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
            await self._remove(model_id)
            await self.hub.register(model_id, settings)
        elif differing:
            self.hub.update(model_id, settings)
        if actor.state is State.FAILED:
            _give_another_chance(actor)
            report.retried.append(model_id)
        waiting = [name for name in differing if name not in LIVE_FIELDS] if _waits_for_load(actor) else []
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


def check_model_id(model_id: str) -> None:
    """Raise BadSetting for a text that cannot be a model id."""
    fault = model_id_fault(model_id)
    if fault is not None:
        raise BadSetting("model_id", fault)


def _is_loaded(actor: ModelActor) -> bool:
    return actor.state in (State.LOADING, State.READY, State.RESTARTING)


def _waits_for_load(actor: ModelActor) -> bool:
    """Whether a worker runs with settings of before."""
    return actor.state in WITH_WORKER or actor.state is State.RESTARTING


def _give_another_chance(actor: ModelActor) -> None:
    """A failed model whose entry was changed is not failed any more: it loads, now or at its next request."""
    if actor.state is not State.FAILED:
        return
    if actor.settings.load == "eager":
        actor.load("admin")
    else:
        actor.unload(0)
