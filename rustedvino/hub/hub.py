"""All models of one server: their actors, the workers, memory, and the order in which they end."""

import logging
from collections.abc import Iterator
from typing import Final, Literal

import attrs
import trio
from attrs import define, field

from rustedvino.config.types import ModelSettings, ServerSettings
from rustedvino.hub import memory
from rustedvino.hub.actor import Grant, ModelActor
from rustedvino.hub.admission import DeviceQueue
from rustedvino.hub.calls import Calls
from rustedvino.hub.compile_cache import CompileCache, Usage
from rustedvino.hub.containment import contained
from rustedvino.hub.errors import HubError, NotReady, UnknownModel
from rustedvino.hub.eviction import LoadPlan, LoadRequest, Refusal, Resident
from rustedvino.hub.footprint import KV_POOL_KINDS, SPARE_WORKER_BYTES, UTILITY_WORKER_BYTES
from rustedvino.hub.inventory import SYSTEM_RAM, Inventory, UnknownDevice, from_facts, missing_devices
from rustedvino.hub.kv_pressure import KvPressureMonitor, pool_bytes, used_percent
from rustedvino.hub.ledger import open_ledger
from rustedvino.hub.model_files import ModelFiles, ModelProblem, inspect_folder
from rustedvino.hub.poisoning import PoisonRecord
from rustedvino.hub.process import WorkerProcess, WorkerStartError
from rustedvino.hub.residency import NoRoom, Residency, Wish
from rustedvino.hub.runtime_tokenizer import RuntimeTokenizer
from rustedvino.hub.schemas import ConstraintProver
from rustedvino.hub.spares import SparePool
from rustedvino.hub.states import WITH_WORKER, State
from rustedvino.hub.text_assets import TextAssets, TextModel
from rustedvino.hub.utility import UtilityWorker
from rustedvino.hub.voice_sessions import VoiceSessions
from rustedvino.observe.metrics import MemorySnapshot, Metrics, ModelSnapshot, ServerSnapshot
from rustedvino.observe.watchdog import RunningGeneration

log = logging.getLogger(__name__)

HOUSEKEEPING_SECS: Final = 5.0
"""How often memory is measured and idle models are looked for."""
INVENTORY_SECS: Final = 60.0
_RESIDENT_STATES: Final[dict[State, Literal["loading", "ready", "draining", "restarting"]]] = {
    State.LOADING: "loading",
    State.READY: "ready",
    State.DRAINING: "draining",
    State.RESTARTING: "restarting",
}


@define(eq=False)
class Model:
    """A registered model: its actor and its text side."""

    actor: ModelActor
    text: TextModel
    scope: trio.CancelScope = field(factory=trio.CancelScope)

    async def assets(self) -> TextAssets:
        """The text side, ready for use: a model that its worker must tokenize for is loaded first.

        Raises ModelProblem and NotReady.
        """
        assets = await self.text.assets()
        if isinstance(assets.tokenizer, RuntimeTokenizer):
            await self.actor.ready()
            assets = await self.text.assets()
        return assets


@define(eq=False)
class Hub:
    """Start with ``await nursery.start(hub.run)``. Worker processes outlive the actors, and end with the hub.

    ``given_inventory`` stands for this machine's devices, for tests and dry runs; else a worker is asked for them.
    """

    settings: ServerSettings
    given_inventory: Inventory | None = None
    spares: SparePool = field(init=False)
    utility: UtilityWorker = field(init=False)
    inventory: Inventory = field(init=False)
    residency: Residency = field(init=False)
    prover: ConstraintProver = field(init=False)
    metrics: Metrics = field(init=False)
    kv_pressure: KvPressureMonitor | None = field(init=False)
    """None when the monitor is off."""
    cache: CompileCache | None = field(init=False)
    """None without ``ov_cache_dir``."""
    voice_sessions: VoiceSessions = field(factory=VoiceSessions, init=False)
    poisoned: PoisonRecord = field(factory=PoisonRecord, init=False)
    _models: dict[str, Model] = field(factory=dict)
    _queues: dict[str, DeviceQueue] = field(factory=dict)
    _actors: trio.Nursery = field(init=False)
    _changed: trio.Event = field(factory=trio.Event)
    _line: trio.Lock = field(factory=trio.Lock)
    _start_order: list[ModelActor] = field(factory=list)
    _inventoried: trio.Event = field(factory=trio.Event)

    def __attrs_post_init__(self) -> None:
        self.metrics = Metrics(self)
        self.cache = CompileCache.from_settings(self.settings, self._cache_usage, self._cache_pruned)
        self.kv_pressure = KvPressureMonitor.from_settings(
            self.settings, lambda: (model.actor for model in self._models.values())
        )

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run everything until cancelled."""
        if self.given_inventory is not None:
            self._open(self.given_inventory)
        async with trio.open_nursery() as processes:
            stall_secs = self.settings.worker_stall_secs
            self.spares = SparePool(processes, self.settings.spare_workers, stall_secs)
            self.utility = UtilityWorker(processes, stall_secs)
            self.prover = ConstraintProver(self.utility)
            async with trio.open_nursery() as actors:
                self._actors = actors
                for model_id, entry in self.settings.models.items():
                    self._add(model_id, entry)
                actors.start_soon(self.spares.run)
                actors.start_soon(self._start_utility)
                actors.start_soon(self._take_inventory)
                self._start_models()
                actors.start_soon(self._keep_house)
                if self.cache is not None:
                    actors.start_soon(self.cache.run)
                if self.kv_pressure is not None:
                    actors.start_soon(self.kv_pressure.run)
                task_status.started()
                await trio.sleep_forever()

    # The registry.

    def get(self, model_id: str) -> Model:
        """The model of that id, never another. Raises UnknownModel."""
        model = self._models.get(model_id)
        if model is None:
            raise UnknownModel(f"the model {model_id!r} does not exist")
        return model

    def __iter__(self) -> Iterator[tuple[str, Model]]:
        return iter(self._models.items())

    async def register(self, model_id: str, settings: ModelSettings) -> Model:
        """Add a model; it is not loaded. Raises ValueError when the id is taken."""
        if model_id in self._models:
            raise ValueError(f"the model {model_id!r} exists already")
        await trio.lowlevel.checkpoint()
        return self._add(model_id, settings)

    async def deregister(self, model_id: str) -> None:
        """Take a model out: what runs on it ends, its memory is freed. Raises UnknownModel."""
        actor = self.get(model_id).actor
        actor.deregister()
        await actor.wait_unloaded()
        self._models.pop(model_id, None)
        self.metrics.forget(model_id)
        if self.cache is not None:
            self.cache.forget(model_id)

    def update(self, model_id: str, settings: ModelSettings) -> None:
        """Replace a model's settings. What is asked for per request or per eviction acts at once, the rest at the
        next load. Raises UnknownModel."""
        model = self.get(model_id)
        model.actor.settings = model.text.settings = settings
        model.actor.queue.pump()

    def eager(self) -> list[Model]:
        """The models that are loaded at start: the eager ones and those of ``preload``."""
        return [
            model
            for model_id, model in self._models.items()
            if model.actor.settings.load == "eager" or model_id in self.settings.preload
        ]

    def not_ready(self) -> list[ModelActor]:
        """The models that should be ready by themselves and are not."""
        return [model.actor for model in self.eager() if model.actor.wanted and model.actor.state is not State.READY]

    # Loading and unloading.

    async def load(self, model_id: str, *, force: bool = False, kv_cache_gb: float | None = None) -> None:
        """Load a model and wait until it is ready; one that is ready already is left as it is.

        ``kv_cache_gb`` is the size of the pool for this residence. Raises UnknownModel, NoRoom, NotReady.
        """
        actor = self.get(model_id).actor
        if actor.state is State.DRAINING:
            await actor.wait_unloaded()
        if actor.state in (State.NOT_LOADED, State.FAILED, State.RESTARTING):
            actor.kv_cache_gb = kv_cache_gb
        actor.load("admin", force=force)
        state = await actor.wait_state(State.READY, State.FAILED, State.NOT_LOADED, State.RESTARTING, State.GONE)
        if state is not State.READY:
            raise NoRoom(actor.refusal) if actor.refusal is not None else actor.not_ready_error()

    async def check(
        self, model_id: str, *, force: bool = False, kv_cache_gb: float | None = None
    ) -> LoadPlan | Refusal:
        """What ``load`` would do now. Raises UnknownModel and ModelProblem."""
        actor = self.get(model_id).actor
        folder = self.settings.models_dir / model_id
        files = await trio.to_thread.run_sync(inspect_folder, folder, actor.settings.kind)
        await self._inventoried.wait()
        request = LoadRequest(model_id=model_id, trigger="admin", force=force)
        return self._planned(self._wish(actor, files, request, kv_cache_gb))

    async def evict(self, model_id: str) -> bool:
        """Drain a model, end its worker and wait until both are gone. False when it was not loaded.

        Raises UnknownModel.
        """
        actor = self.get(model_id).actor
        resident = actor.state in WITH_WORKER or actor.state is State.RESTARTING
        actor.unload(self.settings.drain_timeout_secs)
        await actor.wait_unloaded()
        return resident

    async def resize(self, model_id: str, kv_cache_gb: float) -> None:
        """Evict a model and load it with another pool; when that fails it stays unloaded. Raises as ``load`` does."""
        await self.evict(model_id)
        await self.load(model_id, kv_cache_gb=kv_cache_gb)

    def abort(self, reason: str) -> None:
        """End every request on every model now, and every load under way: who waits for one is told."""
        for model in self._models.values():
            model.actor.abort(reason)
            if model.actor.state in (State.LOADING, State.RESTARTING):
                model.actor.unload(0)

    # What is shown.

    def snapshot(self) -> ServerSnapshot:
        """What gauges show now (see metrics.MetricsSource)."""
        models = tuple(self._model_snapshot(model_id, model.actor) for model_id, model in self._models.items())
        cache_bytes = None if self.cache is None else self.cache.total_bytes
        if not self._inventoried.is_set():
            return ServerSnapshot(models=models, ov_cache_bytes=cache_bytes)
        view = self.residency.ledger.view()
        return ServerSnapshot(
            models=models,
            ov_cache_bytes=cache_bytes,
            memory=tuple(
                MemorySnapshot(
                    label="domain", name=domain.domain, total_bytes=domain.budget_bytes, used_bytes=domain.used_bytes
                )
                for domain in view.domains.values()
            ),
        )

    def _model_snapshot(self, model_id: str, actor: ModelActor) -> ModelSnapshot:
        statistics = actor.statistics()
        loaded = actor.state in (State.READY, State.DRAINING)
        charges = None
        if self._inventoried.is_set() and (reservation := self.residency.ledger.get(model_id)) is not None:
            charges = reservation.charges
        gpu = [size for domain, size in (charges or {}).items() if domain != SYSTEM_RAM]
        pressure = None if self.kv_pressure is None else self.kv_pressure.pressure(actor)
        return ModelSnapshot(
            model=model_id,
            device=actor.device,
            kind=actor.files.kind if actor.files is not None else actor.settings.kind or "unknown",
            loaded=loaded,
            pinned=actor.settings.pinned,
            priority=actor.settings.priority,
            running=statistics.running,
            waiting=statistics.waiting,
            max_running=actor.slots,
            load_secs=actor.load_secs if loaded else None,
            memory_bytes=None if actor.memory is None else actor.memory.held_bytes,
            process_gpu_bytes=actor.gpu_bytes,
            estimate_bytes=sum(gpu) if gpu else None,
            kv_pool_bytes=pool_bytes(actor),
            kv_usage_percent=used_percent(actor),
            kv_pressure_flagged=pressure is not None and pressure.flagged_at is not None,
        )

    def running(self) -> Iterator[RunningGeneration]:
        """Every sequence in a worker's batch (see watchdog.Watchdog)."""
        for model_id, model in self._models.items():
            yield from model.actor.running_generations(model_id)

    # What actors ask (see actor.Gate).

    async def acquire(self, actor: ModelActor, files: ModelFiles) -> Grant:
        """Reserve the memory of a load. Raises NoRoom and ModelProblem."""
        await self._inventoried.wait()
        if actor in self._start_order:
            for earlier in self._start_order[: self._start_order.index(actor)]:
                await earlier.wait_placed()
        request = LoadRequest(model_id=actor.model_id, trigger=actor.trigger, force=actor.force)
        try:
            plan = await self._acquire_patiently(actor, self._wish(actor, files, request, actor.kv_cache_gb))
        except UnknownDevice as error:
            raise ModelProblem(str(error)) from error
        for reason in plan.reasons:
            log.debug("model %s: %s", actor.model_id, reason)
        return Grant(plan.device, plan.kv_pool_bytes if files.kind in KV_POOL_KINDS else None)

    def release(self, actor: ModelActor) -> None:
        """An actor's process has been reaped."""
        self.residency.release(actor.model_id)
        if self.cache is not None:
            self.cache.nudge()

    def changed(self) -> None:
        """Some model changed its state or became idle."""
        changed, self._changed = self._changed, trio.Event()
        changed.set()

    async def _acquire_patiently(self, actor: ModelActor, wish: Wish) -> LoadPlan:
        """Reserve memory; a load that requests wait for waits with them while others hold it for a time.

        Such loads stand in one line, so that of several models that make room for each other none is always last.
        """
        if actor.trigger != "on_demand":
            return await self.residency.acquire(wish)
        if isinstance(plan := self._planned(wish), LoadPlan) and not plan.victims:
            try:
                return await self.residency.acquire(wish)
            except NoRoom as error:  # another load was planned at the same moment, and came first
                log.debug("model %s: %s", actor.model_id, error)
        async with self._line:
            deadline = trio.current_time() + self.settings.load_wait_secs
            while True:
                changed = self._changed
                try:
                    return await self.residency.acquire(wish)
                except NoRoom as error:
                    retry_secs = error.refusal.retry_after_secs
                    if retry_secs is None or not actor.wanted_by_requests:
                        raise
                    if trio.current_time() + retry_secs > deadline:
                        raise  # whoever waits will have given up by then
                if changed is self._changed:
                    with trio.move_on_after(retry_secs):
                        await changed.wait()

    @property
    def inventoried(self) -> bool:
        """Whether the devices are known; ``inventory`` and ``residency`` are there from then on."""
        return self._inventoried.is_set()

    # Inside.

    def _add(self, model_id: str, entry: ModelSettings) -> Model:
        text = TextModel(model_id, entry, self.settings, self.utility)
        device = entry.device or self.settings.device
        actor = ModelActor(
            model_id,
            entry,
            self.settings,
            device,
            self._queue(device),
            self.spares,
            text.prepare,
            text.accept,
            gate=self,
            queue_of=self._queue,
            tally=self.metrics.model(model_id),
            poisoned=self.poisoned,
            cache=self.cache,
        )
        model = self._models[model_id] = Model(actor, text)
        self._actors.start_soon(actor.run)
        return model

    def _cache_usage(self) -> Usage:
        """Which models the compile cache has to spare. See CompileCache."""
        return Usage(
            registered=frozenset(self._models),
            in_use=frozenset(
                model_id
                for model_id, model in self._models.items()
                if model.actor.worker is not None or model.actor.state in _RESIDENT_STATES
            ),
        )

    def _cache_pruned(self, files: int, size: int) -> None:
        self.metrics.ov_cache_pruned_files += files
        self.metrics.ov_cache_pruned_bytes += size

    def _queue(self, device: str) -> DeviceQueue:
        if device not in self._queues:
            self._queues[device] = DeviceQueue(self.settings.device_budgets.get(device))
        return self._queues[device]

    def _wish(self, actor: ModelActor, files: ModelFiles, request: LoadRequest, kv_cache_gb: float | None) -> Wish:
        settings = actor.settings
        if kv_cache_gb is not None:
            settings = attrs.evolve(settings, kv_cache_gb=kv_cache_gb)
        draft_bytes = 0
        if settings.speculative is not None:
            draft = self.settings.models_dir / settings.speculative.draft_model
            draft_bytes = sum(path.stat().st_size for path in draft.glob("*.bin"))
        return Wish(request=request, files=files, settings=settings, draft_disk_bytes=draft_bytes)

    def _planned(self, wish: Wish) -> LoadPlan | Refusal:
        try:
            return self.residency.plan(wish)
        except UnknownDevice as error:
            raise ModelProblem(str(error)) from error

    def _residents(self) -> list[Resident]:
        return [
            Resident(
                model_id=model_id,
                charges=reservation.charges,
                last_used=actor.last_used,
                loaded_at=actor.loaded_at,
                pinned=actor.settings.pinned,
                evictable=actor.settings.evictable,
                priority=actor.settings.priority,
                busy=actor.busy,
                state=_RESIDENT_STATES[actor.state],
                loaded_on_demand=actor.trigger == "on_demand",
                eviction_grace_secs=actor.settings.eviction_grace_secs,
            )
            for model_id, model in self._models.items()
            if (actor := model.actor).state in _RESIDENT_STATES
            and (reservation := self.residency.ledger.get(model_id)) is not None
        ]

    def _open(self, inventory: Inventory) -> None:
        """Open the ledger for a machine of these devices."""
        self.inventory = inventory
        ledger, warnings = open_ledger(self.settings, inventory)
        for warning in warnings:
            log.warning("%s", warning)
        for message in missing_devices(self.settings, inventory):
            log.error("%s", message)
        ledger.set_overhead("spare workers", self.settings.spare_workers * SPARE_WORKER_BYTES)
        ledger.set_overhead("utility worker", UTILITY_WORKER_BYTES)
        self.residency = Residency(self.settings, inventory, ledger, self._residents, self.evict)
        self._inventoried.set()

    async def _take_inventory(self) -> None:
        if not self._inventoried.is_set():
            self._open(await read_inventory(self.spares.nursery))

    def _start_models(self) -> None:
        """Load the models of the start: in their order as to memory (see acquire), side by side as to time."""
        self._start_order = [model.actor for model in self.eager()]
        for actor in self._start_order:
            actor.load("startup")

    async def _start_utility(self) -> None:
        """Have the utility worker ready before the first request needs it."""
        try:
            await self.utility.start()
        except WorkerStartError as error:
            log.error("the utility worker does not start: %s", error)

    def _note_spill(self, actor: ModelActor, gpu: memory.GpuMemory | None) -> None:
        """Warn, once a load, when the driver keeps weights of a card's model in system memory."""
        assert actor.files is not None
        spilled = self.residency.spilled_bytes(actor.device, actor.files.weights_bytes, gpu)
        if spilled and not actor.spilled_bytes:
            log.warning(
                "model %s: %d bytes of its weights are not on %s but in system memory, which is slow",
                actor.model_id,
                spilled,
                actor.device,
            )
        actor.spilled_bytes = spilled

    async def _measure(self, actor: ModelActor, worker: WorkerProcess) -> None:
        """Note what a worker uses of the system's memory and the cards', as far as it has changed."""
        process, now = actor.memory, trio.current_time()
        if process is None or memory.is_outdated(process, now - actor.memory_at, memory.resident_bytes(worker.pid)):
            process = await trio.to_thread.run_sync(memory.process_memory, worker.pid)
            actor.memory_at = now
        gpu = None
        draft = actor.settings.speculative
        if actor.device != "CPU" or (draft is not None and draft.draft_device not in (None, "CPU")):
            gpu = await trio.to_thread.run_sync(memory.gpu_memory, worker.pid)
        if process is None or worker is not actor.worker:
            return
        actor.memory = process
        actor.gpu_bytes = None if gpu is None else gpu.local_bytes
        self.residency.note(actor.model_id, process, gpu)
        self._note_spill(actor, gpu)

    async def _keep_house(self) -> None:
        """Measure memory and unload idle models, now and then."""
        await self._inventoried.wait()
        while True:
            await trio.sleep(HOUSEKEEPING_SECS)
            for model in list(self._models.values()):
                with contained(f"looking after model {model.actor.model_id}"):
                    await self._look_after(model.actor)

    async def _look_after(self, actor: ModelActor) -> None:
        worker = actor.worker
        if actor.state is not State.READY or worker is None:
            return
        await self._measure(actor, worker)
        own = actor.settings.idle_unload_secs
        limit = self.settings.idle_unload_secs if own is None else own
        idle_secs = trio.current_time() - max(actor.last_used, actor.loaded_at)
        if limit and not actor.busy and not actor.settings.pinned and idle_secs >= limit:
            log.info("model %s was idle for %g s", actor.model_id, idle_secs)
            actor.unload(self.settings.drain_timeout_secs)


async def read_inventory(processes: trio.Nursery) -> Inventory:
    """Ask a short-lived worker for this machine's devices; the CPU alone when none can be started."""
    calls = Calls()
    worker = WorkerProcess(role="model", stall_secs=INVENTORY_SECS, label="inventory", handler=calls.handle)
    try:
        await worker.start(processes)
        with trio.fail_after(INVENTORY_SECS):
            return from_facts(await calls.make(worker, "read_inventory", {}))
    except (WorkerStartError, HubError, trio.TooSlowError, ValueError) as error:
        log.error("the devices of this machine could not be read: %s", error)
        return from_facts([{"name": "CPU", "full_name": "CPU", "type": "cpu"}])
    finally:
        worker.kill("killed", "its one question was answered")


__all__ = ["Hub", "Model", "NotReady", "read_inventory"]
