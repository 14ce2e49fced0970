"""What an administrator may do: changes of the registry that are saved in the config file, loads, evictions.

A change that is to be saved is saved before it acts, or is undone when it cannot be saved: what is answered as done is
in the file, and what is refused has changed nothing.
"""

import logging
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any

import attrs
import trio
from attrs import define, field

from rustedvino.config.load import read_model_settings
from rustedvino.config.problems import ConfigError
from rustedvino.config.store import ConfigStore, EntryExists, add_model, remove_model, set_model
from rustedvino.config.types import ModelSettings, gb_to_bytes
from rustedvino.hub.actor import ModelActor
from rustedvino.hub.admin_errors import BadSetting, Cooldown, WrongState, check_model_id
from rustedvino.hub.admin_views import changed_settings, model_view
from rustedvino.hub.config_sync import (
    LIVE_FIELDS,
    ConfigSync,
    device_fault,
    give_another_chance,
    remove,
    waits_for_load,
)
from rustedvino.hub.errors import HubError, NotReady, UnknownModel
from rustedvino.hub.eviction import Refusal
from rustedvino.hub.footprint import KV_POOL_KINDS
from rustedvino.hub.hub import Hub
from rustedvino.hub.model_files import ModelProblem, WrongKind, inspect_folder
from rustedvino.hub.pool import whole_blocks
from rustedvino.hub.residency import NoRoom, plan_details, refusal_details
from rustedvino.hub.states import State

log = logging.getLogger(__name__)


@define(eq=False)
class Admin:
    """Operations on a running hub and its config. Each raises UnknownModel, AdminRefusal and, where it saves,
    ConfigNotWritable and ConfigError (the file as it stands is not valid)."""

    hub: Hub
    store: ConfigStore
    config: ConfigSync = field(init=False)
    """The operations on the file as a whole."""
    _changes: trio.Lock = field(factory=trio.Lock, init=False)
    _resized_at: dict[str, float] = field(factory=dict, init=False)
    _loading: Counter[str] = field(factory=Counter, init=False)
    """How many wait for a load, by model."""

    def __attrs_post_init__(self) -> None:
        self.config = ConfigSync(self.hub, self.store, self._changes)

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
                await remove(self.hub, model_id)
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
            setting = "kind" if isinstance(error, WrongKind) else "model_id"
            raise BadSetting(setting, f"the model cannot be loaded: {error}", "model_unusable") from error
        if isinstance(decision, Refusal) and settings.load == "eager":
            raise NoRoom(decision)

    async def _load_added(self, model_id: str) -> None:
        try:
            await self._load(model_id)
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
        give_another_chance(actor)
        differing = [name for name in changes if getattr(before, name) != getattr(after, name)]
        waits = waits_for_load(actor)
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
            await remove(self.hub, model_id)
        self._resized_at.pop(model_id, None)
        return {"model_id": model_id, "deregistered": True}

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
        fault = device_fault(self.hub, settings)
        if fault is not None:
            raise BadSetting(*fault)
        return settings

    # Memory.

    async def load(self, model_id: str, *, force: bool, kv_cache_gb: float | None) -> dict[str, Any]:
        """Load a model and wait until it is ready. Raises NoRoom and NotReady."""
        check_model_id(model_id)
        actor = self.hub.get(model_id).actor
        if kv_cache_gb is not None:
            if actor.state in (State.READY, State.LOADING):
                message = f"{model_id!r} is {actor.state} already; its pool can be changed by a resize"
                raise WrongState(message, "model_loaded")
            await self._check_pool(actor, kv_cache_gb)
        if actor.state is State.DRAINING:
            await actor.wait_state(State.NOT_LOADED, State.LOADING, State.GONE)
        await self._load(model_id, force=force, kv_cache_gb=kv_cache_gb)
        return model_view(self.hub, model_id)

    async def _load(self, model_id: str, *, force: bool = False, kv_cache_gb: float | None = None) -> None:
        """Load a model. When the last one who asked for that leaves and no request waits for it, the load ends."""
        actor = self.hub.get(model_id).actor
        self._loading[model_id] += 1
        try:
            await self.hub.load(model_id, force=force, kv_cache_gb=kv_cache_gb)
        except NotReady as error:
            raise _ended(model_id, error) from error
        except trio.Cancelled:
            unwanted = self._loading[model_id] == 1 and not actor.busy and actor.trigger == "admin"
            if unwanted and actor.state is State.LOADING:
                log.info("the load of %s is given up: who asked for it has left", model_id)
                actor.unload(0)
            raise
        finally:
            self._loading[model_id] -= 1

    async def check(self, model_id: str, *, force: bool, kv_cache_gb: float | None) -> dict[str, Any]:
        """What a load would do now, or for a model that is loaded a resize to ``kv_cache_gb``."""
        check_model_id(model_id)
        actor = self.hub.get(model_id).actor
        state = actor.state.value
        if kv_cache_gb is not None:
            await self._check_pool(actor, kv_cache_gb)
        try:
            decision = await self.hub.check(model_id, force=force, kv_cache_gb=kv_cache_gb)
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
        await self._check_pool(actor, kv_cache_gb)
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
            ended = _ended(model_id, error)
            if isinstance(ended, NotReady):
                message = f"{ended.message}; {model_id!r} is not loaded now"
                ended = NotReady(ended.reason, message, retry_after_secs=ended.retry_after_secs)
            raise ended from error
        return model_view(self.hub, model_id)

    async def _planned_resize(self, model_id: str, kv_cache_gb: float) -> object:
        try:
            return await self.hub.check(model_id, kv_cache_gb=kv_cache_gb)
        except ModelProblem as error:
            del self._resized_at[model_id]
            raise WrongState(f"{model_id!r} cannot be loaded again: {error}", "model_unusable") from error

    async def _check_pool(self, actor: ModelActor, kv_cache_gb: float) -> None:
        """Refuse a pool for a model that has none, and one too small to work with."""
        folder = self.hub.settings.models_dir / actor.model_id
        try:
            files = await trio.to_thread.run_sync(inspect_folder, folder, actor.settings.kind)
        except ModelProblem as error:
            raise WrongState(f"{actor.model_id!r} cannot be loaded: {error}", "model_unusable") from error
        if files.kind not in KV_POOL_KINDS:
            raise BadSetting("kv_cache_gb", f"a model of kind {files.kind} has no KV pool")
        if kv_cache_gb:
            try:
                whole_blocks(files, self.hub.settings, actor.settings, actor.device, gb_to_bytes(kv_cache_gb))
            except ModelProblem as error:
                raise BadSetting("kv_cache_gb", str(error)) from error

    async def evict(self, model_id: str) -> dict[str, Any]:
        """Drain a model and end its worker. WrongState when it is not loaded."""
        check_model_id(model_id)
        if self.hub.get(model_id).actor.state in (State.NOT_LOADED, State.GONE):
            raise WrongState(f"{model_id!r} is not loaded", "model_not_loaded")
        await self.hub.evict(model_id)
        return model_view(self.hub, model_id)


def _ended(model_id: str, error: NotReady) -> HubError:
    """What a load that did not come to its end is answered with."""
    if error.reason == "model_not_found":
        return UnknownModel(f"the model {model_id!r} was deregistered meanwhile")
    if error.reason == "model_not_loaded":
        return NotReady("model_unloading", f"{model_id!r} was unloaded before it was ready", retry_after_secs=1.0)
    return error
