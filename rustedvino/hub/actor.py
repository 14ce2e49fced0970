"""One model: its state, its worker, its waiting line's target, its running sequences."""

import itertools
import logging
import math
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any, Final, Protocol

import trio
from attrs import define, field, frozen

from rustedvino.config.types import ModelSettings, ServerSettings
from rustedvino.hub.admission import DeviceQueue, Waiter
from rustedvino.hub.calls import Call, Calls
from rustedvino.hub.capacity import Capacity
from rustedvino.hub.compile_cache import CompileCache, uses_cache
from rustedvino.hub.drafts import inspect_draft
from rustedvino.hub.errors import (
    BadInput,
    Busy,
    DevicePoisoned,
    EngineFailed,
    HubError,
    NeverFits,
    NotReady,
    Suspect,
    Unloading,
    WorkerLost,
)
from rustedvino.hub.eviction import Refusal, Trigger
from rustedvino.hub.footprint import KV_POOL_KINDS
from rustedvino.hub.lease import FINISHES, GenerationRequest, Lease, Sequence
from rustedvino.hub.load_spec import load_spec
from rustedvino.hub.memory import ProcessMemory
from rustedvino.hub.model_files import ModelFiles, ModelProblem
from rustedvino.hub.poisoning import PoisonRecord
from rustedvino.hub.pool import pool_blocks, whole_blocks
from rustedvino.hub.process import EndKind, WorkerProcess, WorkerStartError, describe_end, ignore_message
from rustedvino.hub.residency import NoRoom
from rustedvino.hub.restarts import DeathRecord, RestartPolicy
from rustedvino.hub.schemas import NewSchemaLimit
from rustedvino.hub.spares import SparePool
from rustedvino.hub.states import WITH_WORKER, Event, State, next_state
from rustedvino.observe.tally import ModelTally, TokenClock, restart_reason
from rustedvino.observe.watchdog import RunningGeneration
from rustedvino.worker.out_of_memory import OUT_OF_MEMORY
from rustedvino.worker.protocol import Message, ProtocolError, encode_frame

log = logging.getLogger(__name__)

SHUTDOWN_GRACE_SECS: Final = 2.0
"""How long a worker that was told to end may take before it is killed."""
DEFAULT_RETRY_AFTER_SECS: Final = 2.0
MAX_RETRY_AFTER_SECS: Final = 60.0
NO_FAULT_OF_CACHE: Final = ("bad_input", "capacity", OUT_OF_MEMORY)
"""Kinds of a load's fault that no blob of the compile cache can be the cause of."""

_sequence_numbers = itertools.count(1)


@frozen(kw_only=True)
class ActorStatistics:
    """A snapshot for health pages, metrics and tests."""

    state: State
    running: int
    """Sequences in the worker's batch, those being cancelled included."""
    waiting: int
    blocks_reserved: int
    blocks_total: int
    cache_usage_percent: float
    restarts: int
    tokens_generated: int
    worker_pid: int | None
    last_error: str | None
    load_secs: float | None
    step_us: int
    overhead_us: int


@frozen
class Prepared:
    """What a load needs besides the settings: the model's files, token ids to warm up with, and strings whose
    encoding by the runtime the worker reports."""

    files: ModelFiles
    warmup_prompt: list[int]
    probe_strings: list[str]


@frozen
class Grant:
    """Where a load goes, its memory reserved. ``kv_pool_bytes`` None: sized by the settings alone."""

    device: str
    kv_pool_bytes: int | None


class Gate(Protocol):
    """Who decides about memory. An actor without one loads on its configured device, unasked."""

    async def acquire(self, actor: "ModelActor", files: ModelFiles) -> Grant:
        """Make room and reserve it. Raises NoRoom."""

    def release(self, actor: "ModelActor") -> None:
        """The actor's process has been reaped, or never was started."""

    def changed(self) -> None:
        """A model changed its state or became idle: what was refused may fit now."""


async def _accept_as_it_is(facts: dict[str, Any], call: Call) -> None:
    """Nothing of the text side is attached."""


@define(eq=False)
class ModelActor:
    """Owns everything about one model. Calls are made on the event loop; only ``run`` changes the worker.

    ``prepare`` reads the model's files anew; it runs before each load and raises ModelProblem. ``accept`` looks at
    the facts of a loaded worker before requests reach it, may call it, and raises HubError to refuse it.
    """

    model_id: str
    settings: ModelSettings
    server: ServerSettings
    device: str
    queue: DeviceQueue
    spares: SparePool
    prepare: Callable[[], Awaitable["Prepared"]]
    accept: Callable[[dict[str, Any], Call], Awaitable[None]] = _accept_as_it_is
    gate: Gate | None = None
    queue_of: Callable[[str], DeviceQueue] | None = None
    """The line of a device, for a model that its gate puts on another one."""
    state: State = State.NOT_LOADED
    files: ModelFiles | None = None
    facts: dict[str, Any] = field(factory=dict)
    last_error: str | None = None
    load_secs: float | None = None
    trigger: Trigger = "admin"
    """What the load under way, or the last one, was asked by."""
    force: bool = False
    """Whether that load may evict what is busy or was used just now."""
    kv_cache_gb: float | None = None
    """Size of the pool that replaces the configured one until the model is unloaded."""
    wanted: bool = False
    """Whether the model should be resident: asked for, and not unloaded since."""
    refusal: Refusal | None = None
    """Why the last load was refused, if it was."""
    last_used: float = -math.inf
    loaded_at: float = -math.inf
    """Times of trio's clock."""
    memory: ProcessMemory | None = None
    """What the worker used when last measured."""
    memory_at: float = 0.0
    """When that was, in seconds of trio's clock."""
    gpu_bytes: int | None = None
    """GPU memory of the worker when last measured, None where the system does not say."""
    spilled_bytes: int | None = None
    """Weights that are not on the model's card, when last measured; None where the system does not say."""
    restarts: int = 0
    tally: ModelTally = field(factory=ModelTally)
    schema_limit: NewSchemaLimit = field(factory=NewSchemaLimit)
    poisoned: PoisonRecord = field(factory=PoisonRecord)
    """Where devices that a worker lost are recorded; that of the whole server, if there is one."""
    cache: CompileCache | None = None
    calls: Calls = field(factory=Calls)
    deaths: DeathRecord = field(init=False)
    _sequences: dict[int, tuple[Lease, Sequence]] = field(factory=dict)
    _untold: dict[Lease, None] = field(factory=dict)
    """Leases whose readers are not told yet of what they got."""
    _waiters: dict[int, tuple[Waiter, "_Wait"]] = field(factory=dict)
    _awaiting: int = 0
    """Requests that need the model loaded before they can be prepared, and wait for that."""
    _blocks_reserved: int = 0
    _worker: WorkerProcess | None = None
    _loaded: dict[str, Any] | None = None
    _load_error: tuple[str, str] | None = None
    _retry_at: float = 0.0
    _drain_deadline: float = 0.0
    _on_trial: bool = False
    _holds_memory: bool = False
    _ends: int = 0
    """Processes of this model that have been reaped."""
    _loads: int = 0
    _cache_usage: float = 0.0
    _step_us: int = 0
    _overhead_us: int = 0
    _beginning: trio.CancelScope = field(factory=trio.CancelScope)
    """Around what a load does before its worker is told."""
    _news: trio.Event = field(factory=trio.Event)
    _state_changed: trio.Event = field(factory=trio.Event)

    def __attrs_post_init__(self) -> None:
        self.schema_limit.on_compiled = self.tally.schema_compile.observe
        supervisor = self.server.supervisor
        self.deaths = DeathRecord(
            RestartPolicy(
                backoff_base_secs=supervisor.backoff_base_secs,
                backoff_max_secs=supervisor.backoff_max_secs,
                max_restarts=supervisor.max_restarts,
                window_secs=supervisor.restart_window_secs,
            )
        )

    # What others ask of the model.

    @property
    def open(self) -> bool:
        """Whether waiting requests may be admitted now."""
        return self.state is State.READY and self._worker is not None and self._worker.alive

    @property
    def slots(self) -> int:
        """Sequences that may run at once."""
        configured = self.settings.max_concurrent_streams or self.server.max_running_seqs
        return min(configured, int(self.facts.get("max_sequences", configured)))

    @property
    def capacity(self) -> Capacity:
        """Room of the model as it is, or was last, loaded."""
        return Capacity(self.model_id, self.slots, self.facts)

    @property
    def blocks_total(self) -> int:
        """Blocks of the KV pool; 0 before the first load."""
        return self.capacity.blocks_total

    @property
    def worker(self) -> WorkerProcess | None:
        """The worker process, while there is one."""
        return self._worker

    @property
    def waits_for_load(self) -> bool:
        """Whether a request would first have to wait for an on-demand load."""
        return self.settings.load == "on_demand" and self.state in (State.NOT_LOADED, State.LOADING)

    def statistics(self) -> ActorStatistics:
        """A snapshot."""
        return ActorStatistics(
            state=self.state,
            running=len(self._sequences),
            waiting=len(self._waiters),
            blocks_reserved=self._blocks_reserved,
            blocks_total=self.blocks_total,
            cache_usage_percent=self._cache_usage,
            restarts=self.restarts,
            tokens_generated=self.tally.tokens_generated,
            worker_pid=None if self._worker is None else self._worker.pid,
            last_error=self.last_error,
            load_secs=self.load_secs,
            step_us=self._step_us,
            overhead_us=self._overhead_us,
        )

    @property
    def wanted_by_requests(self) -> bool:
        """Whether requests wait for the model."""
        return bool(self._waiters or self._awaiting)

    @property
    def busy(self) -> bool:
        """Whether requests run or wait."""
        return bool(self._sequences or self.wanted_by_requests)

    def running_generations(self, name: str) -> Iterator[RunningGeneration]:
        """Every sequence in the worker's batch, with its age and its last sign of work."""
        worked_at = -math.inf if self._worker is None else self._worker.last_frame
        for lease, sequence in self._sequences.values():
            started = lease.admitted_at
            progressed = max(started, sequence.clock.last_at or started, worked_at)
            yield RunningGeneration(model=name, started_at=started, progressed_at=progressed)

    def load(self, trigger: Trigger = "admin", *, force: bool = False) -> None:
        """Ask for the model to be resident. One load serves every asker."""
        self.wanted = True
        if self.state not in WITH_WORKER:
            self.trigger, self.force = trigger, force
        if self.state in (State.FAILED, State.RESTARTING):
            self.deaths.forgive()
            self._on_trial = False
        self._fire(Event.LOAD)

    def unload(self, drain_secs: float) -> None:
        """Refuse new requests, let running ones end within ``drain_secs``, then end the worker."""
        self.wanted = False
        self._drain_deadline = trio.current_time() + drain_secs
        self._fire(Event.DRAIN)
        self._tell()  # a drain under way has another bound now

    def deregister(self) -> None:
        """Take the model out for good; what runs is ended."""
        self._fire(Event.DEREGISTER)

    def abort(self, reason: str) -> None:
        """End every running and waiting request now; the worker frees its sequences as for any cancel."""

        def error() -> HubError:
            return Unloading(reason, retry_after_secs=self._reload_secs)

        self._refuse_waiting(error)
        for lease, sequence in list(self._sequences.values()):
            if not sequence.done:
                sequence.failure = error()
                self._give_up(lease, sequence)
            lease.notify()

    async def wait_placed(self) -> None:
        """Wait until the load under way has its memory, or is none any more."""
        while self.state is State.LOADING and not self._holds_memory:
            await self._state_changed.wait()

    def not_ready_error(self) -> NotReady:
        """Why the model is not ready now."""
        return self._not_ready()

    async def wait_unloaded(self) -> None:
        """Wait until the process that the model has now has been reaped and its memory given back.

        The model may be on its way back by then: a request that loads it on demand need not wait for us.
        """
        ends = self._ends
        while self._ends == ends and (self.state in WITH_WORKER or self._worker is not None or self._holds_memory):
            await self._state_changed.wait()

    async def wait_state(self, *wanted: State) -> State:
        """Wait until the model is in one of ``wanted``."""
        while self.state not in wanted:
            await self._state_changed.wait()
        return self.state

    async def lease(self, request: GenerationRequest) -> Lease:
        """Wait for a slot and start the request on the worker.

        The wait ends with Busy after ``admission_queue_timeout_ms`` (``device_admission_queue_timeout_ms`` while it is
        the device's budget that holds it up), or with NotReady when the model did not become
        ready in time (``load_wait_secs`` for a load that this request started or joined). It survives restarts.
        Raises HubError subclasses. Cancellation leaves nothing behind; an admitted lease must be closed.
        """
        if self.deaths.is_culprit(request.fingerprint):
            raise _suspect()
        _check_sendable(request)
        await self._load_on_demand()
        self._refuse_if_closed()
        if len(self._waiters) >= self.server.max_queue_depth:
            self.tally.pool_capacity_rejected += 1
            raise Busy(
                f"{len(self._waiters)} requests are waiting for {self.model_id!r} already",
                retry_after_secs=self._wait_estimate_secs(),
            )
        if self.state is State.READY:  # else by what the next load says
            try:
                self.capacity.check(request)
            except NeverFits:
                self.tally.own_budget_rejected += 1
                raise
        now = trio.current_time()
        loading = self.waits_for_load
        wait = _Wait(request, now, None if loading else now)
        waiter = Waiter(self, lambda: self._admit(waiter, wait))
        self._waiters[id(waiter)] = (waiter, wait)
        patience = self.server.load_wait_secs if loading else self._first_patience_secs
        try:
            self.queue.enter(waiter)
            while True:
                with trio.move_on_after(patience) as wait.scope:
                    await wait.done.wait()
                    break
                patience = self._more_patience_secs(wait)
                if patience <= 0:
                    break
        except trio.Cancelled:
            if wait.lease is not None:
                wait.lease.close()
            raise
        finally:
            self._leave(waiter)
        if wait.error is not None:
            raise wait.error
        if wait.lease is None:
            self._refuse_if_closed()
            if self.state is not State.READY:
                raise self._not_ready()
            self.tally.pool_capacity_rejected += 1
            raise Busy(self._no_slot_text(), retry_after_secs=self._wait_estimate_secs())
        return wait.lease

    async def _load_on_demand(self) -> None:
        """Start the load that a request is for, after an unload that is under way."""
        if self.settings.load == "on_demand" and self.state is State.DRAINING:
            with trio.move_on_after(self.server.load_wait_secs):
                await self.wait_unloaded()
        if self.settings.load == "on_demand" and self.state is State.NOT_LOADED:
            self.trigger, self.force = "on_demand", False
            self._fire(Event.REQUEST)

    async def ready(self) -> None:
        """Wait until the model is ready, starting an on-demand load. Raises NotReady as ``lease`` does."""
        await self._load_on_demand()
        self._refuse_if_closed()
        patience = self.server.load_wait_secs if self.waits_for_load else self._queue_patience_secs
        self._awaiting += 1
        try:
            with trio.move_on_after(patience):
                await self.wait_state(State.READY, State.FAILED, State.NOT_LOADED, State.GONE)
        finally:
            self._awaiting -= 1
        if self.state is not State.READY:
            raise self._wait_ended()

    async def call(self, method: str, arguments: dict[str, Any]) -> Any:
        """Ask the loaded worker something that is no generation. Raises NotReady and what Calls.make raises."""
        if self.state is not State.READY or self._worker is None:
            raise self._not_ready()
        return await self.calls.make(self._worker, method, arguments)

    # Admission, called by the device's queue.

    def fits(self, waiter: Waiter) -> bool:
        """Whether slots and blocks are free for the waiter now. See admission.Target."""
        request = self._waiters[id(waiter)][1].request
        capacity = self.capacity
        return (
            len(self._sequences) + request.sequences <= capacity.slots
            and self._blocks_reserved + capacity.blocks(request) * request.sequences <= capacity.blocks_total
        )

    def _admit(self, waiter: Waiter, wait: "_Wait") -> None:
        del self._waiters[id(waiter)]
        request = wait.request
        assert self._worker is not None
        capacity = self.capacity
        new_tokens = capacity.new_tokens(request)
        blocks = capacity.blocks(request)
        self.last_used = trio.current_time()
        self.tally.admitted(request.modality, request.prompt_tokens)
        lease = Lease(request, [], self._give_up, requested_at=wait.requested_at, admitted_at=self.last_used)
        if request.options[0].get("constraint") is not None:
            self.schema_limit.submitted(request.options[0]["constraint"])
        for options in request.options:
            sequence = Sequence(
                next(_sequence_numbers),
                new_tokens,
                blocks,
                clock=TokenClock(wait.requested_at),
                with_logprobs=bool(options.get("logprobs")),
            )
            lease.sequences.append(sequence)
            self._sequences[sequence.number] = (lease, sequence)
            self._blocks_reserved += blocks
            self._worker.send(
                "submit",
                sequence.number,
                request.prompt,
                {**options, "max_new_tokens": new_tokens},
                sequence=sequence.number,
            )
        self._worker.begin_work(self.server.worker_stall_secs)
        wait.lease = lease
        wait.done.set()

    def _give_up(self, lease: Lease, sequence: Sequence) -> None:
        """A client gave a sequence up. Its slot is free when the worker says so."""
        if sequence.released or self._worker is None:
            return
        if not self._worker.cancel(sequence.number):
            self._release(lease, sequence)  # it had not left yet and never will

    def _release(self, lease: Lease, sequence: Sequence) -> None:
        """The sequence has left the worker: free its slot and blocks."""
        sequence.released = True
        del self._sequences[sequence.number]
        self._blocks_reserved -= sequence.blocks
        if not self._sequences:
            self.last_used = trio.current_time()
            if self._worker is not None:
                self._worker.end_work()
            self._tell()
            self._announce()
        if all(other.released for other in lease.sequences):
            self.tally.answered(lease.request.modality, trio.current_time() - lease.requested_at)
            self.queue.release()
        else:
            self.queue.pump()
        lease.notify()

    # Messages of the worker, called by its reader.

    def _handle(self, message: Message) -> None:
        match message[0]:
            case "step":
                self._step(message[1], message[2])
            case "rejected":
                _, number, kind, text = message
                lease, sequence = self._sequences[number]
                if not sequence.done:
                    sequence.failure = BadInput(str(text)) if kind == "bad_input" else EngineFailed(str(text))
                self._release(lease, sequence)
            case "reply" | "call_error":
                self.calls.handle(message)
            case "loaded":
                _, facts = message
                self._check_facts(facts)
                self._loaded = facts
                self._tell()
            case "load_error":
                _, kind, text = message
                self._load_error = (str(kind), str(text))
                self._tell()

    def _check_facts(self, facts: Any) -> None:
        if self.state is not State.LOADING or self._loaded is not None:
            raise ProtocolError("loaded came twice or uncalled for")
        for name in ("block_size", "num_kv_blocks"):
            if not isinstance(facts.get(name), int) or facts[name] <= 0:
                raise ProtocolError(f"loaded without a valid {name}")

    def _step(self, deltas: list[Any], stats: list[Any]) -> None:
        usage, inside_us, total_us = stats
        self._cache_usage = float(usage)
        self._step_us = int(inside_us)
        self._overhead_us = int(total_us) - self._step_us
        self.schema_limit.step_ended(self._step_us / 1e6)
        finished: list[tuple[Lease, Sequence]] = []
        assert self._worker is not None
        now = self._worker.last_frame
        for number, ids, finish, logprobs in deltas:
            lease, sequence = self._sequences[number]
            if ids:
                sequence.take(ids, logprobs)
                self.tally.tokens(sequence.clock, len(ids), now)
            if finish is not None:
                self._finish(sequence, finish)
                finished.append((lease, sequence))
            self._untold[lease] = None
        # Freed after all deltas were taken: an admission may follow from each release.
        for lease, sequence in finished:
            self._release(lease, sequence)

    def _deliver(self) -> None:
        """Tell those that got something by the steps that arrived together, in one go: a server that is behind sends
        larger pieces instead of more. Last, for a sink writes to its client here: the worker is served by now."""
        if self._untold:
            news, self._untold = self._untold, {}
            for lease in news:
                lease.notify()

    def _finish(self, sequence: Sequence, finish: str) -> None:
        lease = self._sequences[sequence.number][0]
        if sequence.done and (finish in FINISHES or finish in ("ignored", "cancelled")):
            return  # it was given up before; how it ended is decided
        if finish in FINISHES:
            if sequence.tokens:
                sequence.finish = "stop" if finish == "stop" else "length"
            else:
                sequence.failure = EngineFailed("the model generated no token at all")
        elif finish == "ignored":
            sequence.failure = EngineFailed("the runtime dropped the sequence because its KV pool was full")
        else:
            raise ProtocolError(f"unknown or uncalled-for finish {finish!r}")
        if sequence.finish is not None:
            self.deaths.completed(lease.request.fingerprint)

    # The life of the model.

    async def run(self) -> None:
        """Live until deregistered. Cancellation ends the worker with the server; its process is reaped elsewhere."""
        while self.state is not State.GONE:
            if self.state not in WITH_WORKER and self.state is not State.RESTARTING:
                self._give_memory_back()
            try:
                await self._live()
            except Exception as error:
                if self.state not in WITH_WORKER:  # nothing of this model is left that could be ended
                    raise
                await self._break_down(error)
        self._give_memory_back()

    async def _live(self) -> None:
        """What the state is for, until it has changed."""
        match self.state:
            case State.LOADING:
                await self._load()
            case State.READY:
                await self._attend()
            case State.DRAINING:
                await self._drain()
            case State.RESTARTING | State.FAILED:
                await self._rest()
            case State.NOT_LOADED:
                await self._news_or(None)

    async def _break_down(self, error: Exception) -> None:
        """Our own code failed while this model had a worker: that ends, and the model restarts as after a crash."""
        log.exception("internal error in model %s while it was %s", self.model_id, self.state)
        text = f"internal error of the server: {error!r}"
        worker = self._worker
        if worker is not None:
            worker.handler = ignore_message
            worker.kill("internal", text)
            await worker.ended.wait()
        if self.state is State.DRAINING:
            self._lost_while_draining(text)
        elif self.state in WITH_WORKER:
            self._died(Event.CRASH, text, kind="internal")
        else:  # given up or removed while its worker ended
            await self._end_worker(text)
        await trio.lowlevel.checkpoint()

    def _give_memory_back(self) -> None:
        """The process has been reaped: its whole charge goes. A model that restarts keeps its place."""
        assert self._worker is None
        self.memory = self.gpu_bytes = self.spilled_bytes = None
        if self.state is not State.FAILED:
            self.kv_cache_gb = None
        if self._holds_memory:
            self._holds_memory = False
            assert self.gate is not None
            self.gate.release(self)
            self._announce()

    async def _load(self) -> None:
        started = trio.current_time()
        number = self._loads
        self._loaded = self._load_error = None
        with trio.move_on_after(self.server.load_timeout_secs) as scope:
            try:
                spec = await self._begin_load()
            except (ModelProblem, NoRoom, WorkerStartError) as error:
                if not self._given_up(number):
                    self._load_not_begun(error)
                return
            worker = self._worker
            if spec is None or worker is None or self._given_up(number):
                await self._end_worker("the load was cancelled")
                return
            worker.begin_work(self.server.load_timeout_secs)
            try:
                worker.send("load", spec)
            except ProtocolError as error:
                await self._end_worker("the load failed")
                self._fail_load(Event.LOAD_ERROR, str(error))
                return
            while not self._load_decided(number, worker):
                await self._news_or(None)
            if self.cache is not None and self._loaded is not None:
                await self.cache.loaded(self.model_id)
            await self._accept_loaded(worker)
        worker = self._worker
        suspect = self._blames_cache(number, timed_out=scope.cancelled_caught)
        if scope.cancelled_caught:
            await self._end_worker("the load took too long")
            self._fail_load(Event.DEADLINE, f"the load did not end within {self.server.load_timeout_secs:g} s")
        elif self._given_up(number):
            await self._end_worker("the load was cancelled")
        elif self._load_error is not None and self._load_error[0] in ("poisoned_device", OUT_OF_MEMORY):
            await self._end_worker("another process may fare better")
            self._died(Event.CRASH, self._load_error[1], kind="exit", fault=self._load_error[0])
        elif self._load_error is not None:
            await self._end_worker("the load failed")
            self._fail_load(Event.LOAD_ERROR, self._load_error[1])
        elif self._loaded is not None:
            assert worker is not None
            worker.end_work()
            self.facts = self._loaded
            self.load_secs = trio.current_time() - started
            self.last_error = None
            self._on_trial = False
            self.deaths.loaded()
            self.loaded_at = trio.current_time()
            log.info("model %s is ready on %s after %.1f s", self.model_id, self.device, self.load_secs)
            self._fire(Event.READY)
            self._welcome_waiting()
        else:
            self._worker_died()
        if suspect and self.state is State.FAILED:
            self._retry_at = trio.current_time()  # once more at once, without those blobs

    def _blames_cache(self, number: int, *, timed_out: bool) -> bool:
        """Whether what a load read from the compile cache may be why it failed. See CompileCache.failed."""
        worker = self._worker
        if self.cache is None or worker is None or (self._given_up(number) and not timed_out):
            return False
        fault = self._load_error or (None if worker.end is None else worker.end.fault)
        return (fault is None or fault[0] not in NO_FAULT_OF_CACHE) and self.cache.failed(self.model_id)

    async def _begin_load(self) -> dict[str, Any] | None:
        """Make room for a load, take a worker, and return what it is to be told; None when the load was given up,
        which ends all waiting here. Raises ModelProblem, NoRoom, WorkerStartError."""
        with trio.CancelScope() as self._beginning:
            spec = await self._spec()
            await self._take_worker()
            return spec
        return None

    def _load_not_begun(self, error: ModelProblem | NoRoom | WorkerStartError) -> None:
        match error:
            case NoRoom():
                self._refuse_load(error)
            case WorkerStartError():
                self._died(Event.CRASH, str(error), fault=error.fault)
            case _:
                self._fail_load(Event.LOAD_ERROR, str(error))

    async def _accept_loaded(self, worker: WorkerProcess) -> None:
        """Let the text side look at a loaded worker."""
        if self._loaded is None or self.state is not State.LOADING:
            return
        try:
            await self.accept(self._loaded, partial(self.calls.make, worker))
        except (HubError, ModelProblem) as error:
            self._loaded = None
            if not worker.ended.is_set():
                self._load_error = ("unknown", str(error))

    def _given_up(self, number: int) -> bool:
        """Whether nobody wants that load any more; another may have been asked for since."""
        return self.state is not State.LOADING or self._loads != number

    def _load_decided(self, number: int, worker: WorkerProcess) -> bool:
        return (
            self._given_up(number) or self._loaded is not None or self._load_error is not None or worker.ended.is_set()
        )

    async def _spec(self) -> dict[str, Any]:
        try:
            prepared = await self.prepare()
        except ModelProblem:
            raise
        except Exception as error:
            # What a folder can hold has no end; a surprise in one is the fault of this model alone.
            log.exception("model %s: its files could not be read", self.model_id)
            raise ModelProblem(f"its files could not be read: {type(error).__name__}: {error}") from error
        self.files = files = prepared.files
        draft = await self._inspect_draft(files)
        blocks = await self._reserve(files, draft)
        cache_folder = None
        if self.cache is not None and uses_cache(files.kind, self.device):
            cache_folder = await self.cache.open(self.model_id)
        spec = load_spec(
            files,
            draft,
            self.settings,
            self.server,
            self.device,
            slots=self.slots,
            kv_blocks=blocks,
            cache_folder=cache_folder,
        )
        return spec | {"warmup_prompt": prepared.warmup_prompt, "probe_strings": prepared.probe_strings}

    async def _inspect_draft(self, files: ModelFiles) -> ModelFiles | None:
        """The draft model's files, where one is configured. Raises ModelProblem."""
        speculative = self.settings.speculative
        if speculative is None:
            return None
        return await trio.to_thread.run_sync(inspect_draft, files, speculative, self.server.models_dir)

    async def _reserve(self, files: ModelFiles, draft: ModelFiles | None) -> int:
        """Reserve the memory of a load and go to its device. Returns the blocks of the KV pool, 0 on an NPU."""
        pool_bytes = None
        if self.gate is not None:
            grant = await self.gate.acquire(self, files)
            self._holds_memory = True
            self._announce()
            self._move(grant.device)
            pool_bytes = grant.kv_pool_bytes
        if self.device.startswith("NPU") or files.kind not in KV_POOL_KINDS:
            return 0  # on an NPU the cache is part of the compiled model
        if pool_bytes is None:
            return pool_blocks(files, self.server, self.settings, self.device, draft)
        return whole_blocks(files, self.server, self.settings, self.device, pool_bytes, draft)

    def _move(self, device: str) -> None:
        """Stand in the line of another device, with all who wait."""
        if device == self.device:
            return
        assert self.queue_of is not None
        self.device = device
        before, self.queue = self.queue, self.queue_of(device)
        for waiter, _ in list(self._waiters.values()):
            before.discard(waiter)
            self.queue.enter(waiter)

    def _refuse_load(self, error: NoRoom) -> None:
        """There is no memory for the model: it stays out, and those who wait for it are told."""
        self.refusal = error.refusal
        self.last_error = str(error)
        log.warning("model %s is not loaded: %s", self.model_id, error)
        self._fire(Event.CANCEL_LOAD)

    async def _take_worker(self) -> None:
        worker = await self.spares.take()
        worker.label = self.model_id
        worker.handler = self._handle
        worker.settled = self._deliver
        worker.stall_secs = self.server.worker_stall_secs
        self._worker = worker
        self.schema_limit.worker_changed()
        self.spares.nursery.start_soon(self._notice_end, worker)

    async def _notice_end(self, worker: WorkerProcess) -> None:
        await worker.ended.wait()
        if worker is self._worker:
            self.calls.fail_all(lambda: WorkerLost(_end_text(worker), retry_after_secs=self._reload_secs))
            self._tell()

    async def _attend(self) -> None:
        assert self._worker is not None
        while self.state is State.READY and not self._worker.ended.is_set():
            await self._news_or(None)
        if self.state is State.READY:
            self._worker_died()
        elif self.state is State.GONE:
            await self._end_worker("the model was removed")

    async def _drain(self) -> None:
        worker = self._worker
        assert worker is not None
        while self.state is State.DRAINING and self._sequences and not worker.ended.is_set():
            if not await self._news_or(self._drain_deadline):
                break
        late = bool(self._sequences)
        if worker.ended.is_set():
            self._lost_while_draining(_end_text(worker))
            return
        await self._end_worker("the model was unloaded")
        self._fire(Event.DEADLINE if late else Event.DRAINED)

    def _lost_while_draining(self, text: str) -> None:
        self._worker = None
        self._lose_running(lambda: WorkerLost(text, retry_after_secs=self._reload_secs))
        self._fire(Event.CRASH)

    async def _rest(self) -> None:
        state = self.state
        while self.state is state:
            if not await self._news_or(self._retry_at):
                self._on_trial = state is State.FAILED
                self.trigger, self.force = "startup", False  # nobody is evicted for it
                self._fire(Event.RETRY_TIME)

    def _worker_died(self) -> None:
        worker = self._worker
        assert worker is not None
        assert worker.end is not None
        text = describe_end(worker.end)
        event = Event.STALL if worker.end.kind == "stall" else Event.CRASH
        fault = None if worker.end.fault is None else worker.end.fault[0]
        self._died(event, text, kind=worker.end.kind, fault=fault, tail=worker.end.output_tail)

    def _died(
        self, event: Event, text: str, *, kind: EndKind | None = None, fault: str | None = None, tail: str = ""
    ) -> None:
        """The worker is gone: end what ran, keep what waits, decide about a restart. ``kind`` None: it never began;
        ``fault`` is that of its end (see WorkerEnd)."""
        now = trio.current_time()
        poisoned = fault == "poisoned_device"
        if poisoned:
            self.poisoned.note(self.model_id, self.device)
            log.error("model %s: its worker lost the device %s: %s", self.model_id, self.device, text)
        self.last_error = text
        lacked_memory = fault == OUT_OF_MEMORY and self.state is State.LOADING
        if lacked_memory:
            self.deaths.load_lacked_memory()
        self.deaths.died(now, {lease.request.fingerprint for lease, _ in self._sequences.values()})
        count = self.deaths.count(now)
        # After the window of a failure the model has one trial: a load that dies again ends it.
        exhausted = self.deaths.exhausted(now) or (self._on_trial and self.state is State.LOADING)
        delay = self.deaths.policy.backoff_secs(count)
        if lacked_memory:  # what others free does not come at once
            delay = max(delay, self.deaths.policy.backoff_base_secs)
        log.error("the worker of model %s was lost: %s", self.model_id, text)
        self._worker = None
        self._ends += 1
        if lacked_memory and self.deaths.out_of_memory:
            self._fail_for_memory(text)
        elif exhausted:
            self.last_error = f"{count} worker deaths within {self.deaths.policy.window_secs:g} s; the last: {text}"
            if tail:
                self.last_error += f"\n{tail[-2000:]}"
            self._fail_load(Event.EXHAUSTED, self.last_error)
        else:
            self.restarts += 1
            self.tally.restarted(restart_reason(kind, "gpu_poisoned" if poisoned else fault))
            self._retry_at = now + delay
            self._fire(event)
        for waiter, wait in list(self._waiters.values()):
            if self.deaths.is_culprit(wait.request.fingerprint):
                self._refuse(waiter, wait, _suspect())
        lost = DevicePoisoned if poisoned else WorkerLost
        self._lose_running(
            lambda: lost(
                f"the worker of {self.model_id!r} was lost: {text}",
                retry_after_secs=max(1.0, delay + self._reload_secs),
            )
        )

    def _fail_for_memory(self, text: str) -> None:
        """No more loads against the same wall. Of a failure like this there is one trial by itself, no second."""
        on_trial = self._on_trial
        self._fail_load(
            Event.OUT_OF_MEMORY,
            f"{self.deaths.loads_without_memory} loads in a row ran out of memory; the last: {text}. "
            "Unload other models or give this one a smaller kv_cache_gb, then load it again",
        )
        if on_trial:
            self._retry_at = math.inf

    def _fail_load(self, event: Event, text: str) -> None:
        self.last_error = text
        self._retry_at = trio.current_time() + self.deaths.policy.window_secs
        log.error("model %s failed: %s", self.model_id, text)
        self._fire(event)

    async def _end_worker(self, reason: str) -> None:
        """End the worker, kindly first, and whatever still ran on it."""
        worker = self._worker
        if worker is None:
            return
        worker.handler = ignore_message  # steps still on their way are about sequences that end here
        self._lose_running(
            lambda: Unloading(f"{self.model_id!r} was unloaded: {reason}", retry_after_secs=self._reload_secs)
        )
        if self.state is State.DRAINING:  # a worker that loads does not listen
            worker.send("shutdown")
            with trio.move_on_after(SHUTDOWN_GRACE_SECS):
                await worker.ended.wait()
        worker.kill("killed", reason)
        await worker.ended.wait()
        self._worker = None
        self._ends += 1
        self._announce()

    def _lose_running(self, error: Callable[[], HubError]) -> None:
        """End what ran on a worker that is no more of use, each with an ``error`` of its own."""
        self.calls.fail_all(error)
        for lease, sequence in list(self._sequences.values()):
            if not sequence.done:
                sequence.failure = error()
            self._release(lease, sequence)

    # Waiting requests.

    @property
    def _queue_patience_secs(self) -> float:
        return self.server.admission_queue_timeout_ms / 1000

    @property
    def _device_patience_secs(self) -> float:
        return self.server.device_admission_queue_timeout_ms / 1000

    @property
    def _first_patience_secs(self) -> float:
        """When a request that waits for a slot first asks which gate holds it up: the model's or the device's."""
        if self.queue.budget is None:
            return self._queue_patience_secs
        return min(self._queue_patience_secs, self._device_patience_secs)

    def _more_patience_secs(self, wait: "_Wait") -> float:
        """How long a request goes on waiting, by the patience for the gate that holds it up; 0 or less: no longer."""
        if wait.since is None:
            return 0.0
        held_by_device = self.state is State.READY and self.queue.full
        patience = self._device_patience_secs if held_by_device else self._queue_patience_secs
        return wait.since + patience - trio.current_time()

    def _no_slot_text(self) -> str:
        if self.queue.full:
            return (
                f"no place on {self.device} was free within {self._device_patience_secs:g} s: "
                f"its device_budgets allow {self.queue.budget} requests at once"
            )
        return f"no slot of {self.model_id!r} was free within {self._queue_patience_secs:g} s"

    @property
    def _reload_secs(self) -> float:
        return self.load_secs or DEFAULT_RETRY_AFTER_SECS

    def _welcome_waiting(self) -> None:
        """The model became ready: those who waited for a load now wait for a slot, with a slot's patience."""
        now = trio.current_time()
        deadline = now + self._first_patience_secs
        for waiter, wait in list(self._waiters.values()):
            if wait.since is None:
                wait.since = now
            if wait.scope is not None:
                wait.scope.deadline = min(wait.scope.deadline, deadline)
            try:
                self.capacity.check(wait.request)
            except NeverFits as error:
                self._refuse(waiter, wait, error)
        self.queue.pump()

    def _refuse_waiting(self, error: Callable[[], HubError]) -> None:
        for waiter, wait in list(self._waiters.values()):
            self._refuse(waiter, wait, error())

    def _refuse(self, waiter: Waiter, wait: "_Wait", error: HubError) -> None:
        wait.refuse(error)
        self._leave(waiter)

    def _leave(self, waiter: Waiter) -> None:
        if self._waiters.pop(id(waiter), None) is not None:
            self.queue.discard(waiter)

    def _refuse_if_closed(self) -> None:
        if self.state in (State.FAILED, State.DRAINING, State.GONE) or (
            self.state is State.NOT_LOADED and self.settings.load != "on_demand"
        ):
            raise self._not_ready()

    def _not_ready(self) -> NotReady:
        match self.state:
            case State.FAILED:
                wait = max(1.0, min(self._retry_at - trio.current_time(), self.deaths.policy.window_secs))
                return NotReady("model_failed", f"{self.model_id!r} failed: {self.last_error}", retry_after_secs=wait)
            case State.DRAINING:
                return NotReady(
                    "model_unloading",
                    f"{self.model_id!r} is being unloaded",
                    retry_after_secs=self._reload_secs,
                )
            case State.RESTARTING:
                wait = max(1.0, self._retry_at - trio.current_time() + self._reload_secs)
                return NotReady(
                    "worker_restarting",
                    f"the worker of {self.model_id!r} is being restarted: {self.last_error}",
                    retry_after_secs=wait,
                )
            case State.LOADING:
                return NotReady(
                    "model_loading", f"{self.model_id!r} is being loaded", retry_after_secs=self._reload_secs
                )
            case State.GONE:
                return NotReady("model_not_found", f"{self.model_id!r} was removed", retry_after_secs=None)
            case _ if self.refusal is not None:
                return NotReady(
                    "insufficient_memory",
                    self.refusal.message,
                    retry_after_secs=self.refusal.retry_after_secs,
                )
            case _:
                return NotReady("model_not_loaded", f"{self.model_id!r} is not loaded", retry_after_secs=None)

    def _wait_ended(self) -> NotReady:
        """What a request that waited for the model is told when there is no more to wait for."""
        if self.state is State.NOT_LOADED and self.refusal is None:
            text = f"{self.model_id!r} was unloaded before it was ready"
            return NotReady("model_unloading", text, retry_after_secs=self._reload_secs)
        return self._not_ready()

    def _wait_estimate_secs(self) -> float:
        """A guess at when a slot will be free: the queue's length in batches, at the patience of one."""
        batches = 1 + len(self._waiters) // max(1, self.slots)
        return min(MAX_RETRY_AFTER_SECS, float(batches))

    # The one place where the state changes.

    def _fire(self, event: Event) -> None:
        before = self.state
        after = next_state(before, event)
        if after is before:
            return
        self.state = after
        if after is State.LOADING:
            self._loads += 1
            self.refusal = None
        log.info("model %s: %s → %s (%s)", self.model_id, before, after, event)
        if before is State.LOADING:
            self._beginning.cancel()
        if before in WITH_WORKER and after not in WITH_WORKER:
            self._cache_usage = 0.0
            if self._worker is None and after is not State.RESTARTING:
                # Now, not when this model's own task runs next: a new load could be under way by then.
                self._give_memory_back()
        if after in (State.NOT_LOADED, State.DRAINING, State.FAILED, State.GONE):
            self._refuse_waiting(self._wait_ended)
        self._announce()
        self._tell()

    def _announce(self) -> None:
        changed, self._state_changed = self._state_changed, trio.Event()
        changed.set()
        if self.gate is not None:
            self.gate.changed()

    def _tell(self) -> None:
        self._news.set()

    async def _news_or(self, deadline: float | None) -> bool:
        """Wait until something happened that ``run`` should look at; False when ``deadline`` came first."""
        with trio.CancelScope(deadline=float("inf") if deadline is None else deadline):
            await self._news.wait()
            self._news = trio.Event()
            return True
        return False


@define(eq=False)
class _Wait:
    """A request in line, and what came of it."""

    request: GenerationRequest
    requested_at: float
    """Seconds of trio's clock."""
    since: float | None
    """Since when a slot is what it waits for; None while it waits for an on-demand load."""
    done: trio.Event = field(factory=trio.Event)
    lease: Lease | None = None
    error: HubError | None = None
    scope: trio.CancelScope | None = None

    def refuse(self, error: HubError) -> None:
        if not self.done.is_set():
            self.error = error
            self.done.set()


def _suspect() -> Suspect:
    return Suspect("this request was running in two deaths of the model's worker; it is not run again")


def _check_sendable(request: GenerationRequest) -> None:
    """Raise BadInput for what fits no frame, before it waits: an admission must not fail."""
    try:
        for options in request.options:
            encode_frame(("submit", 0, request.prompt, {**options, "max_new_tokens": request.max_new_tokens}))
    except ProtocolError as error:
        raise BadInput(str(error)) from error


def _end_text(worker: WorkerProcess) -> str:
    return describe_end(worker.end) if worker.end is not None else "the worker ended"
