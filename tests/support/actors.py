"""Actors without HTTP: settings, requests, and workers with or without faults."""

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import trio
from attrs import define, evolve, field

from rustedvino.config.types import ModelSettings, ServerSettings, SupervisorSettings
from rustedvino.hub.actor import ModelActor, Prepared
from rustedvino.hub.admission import DeviceQueue
from rustedvino.hub.hub import Hub
from rustedvino.hub.inventory import Inventory
from rustedvino.hub.lease import GenerationRequest, Lease, Sequence
from rustedvino.hub.model_files import inspect_folder
from rustedvino.hub.process import Launcher
from rustedvino.hub.spares import SparePool
from rustedvino.worker import platform

_REPOSITORY = Path(__file__).resolve().parents[2]
_MODELS_DIRS = (_REPOSITORY / "tests" / "models", _REPOSITORY / "rustedvino" / "models")
FAULT_WORKER = str(Path(__file__).with_name("fault_worker.py"))
EXACT: dict[str, Any] = {"INFERENCE_PRECISION_HINT": "f32"}
"""Properties under which tokens can be compared between runs and batches."""
QUICK = SupervisorSettings(backoff_base_secs=0.01, backoff_max_secs=0.05, max_restarts=5, restart_window_secs=600)
TEST_POOL_GB = 0.01


def still_there(pids: Iterable[int]) -> list[int]:
    """Those of the processes that exist, as zombies at least."""
    return [pid for pid in pids if os.path.exists(f"/proc/{pid}")]


def model_folder(name: str) -> Path:
    """The folder of a model at hand."""
    return next(place / name for place in _MODELS_DIRS if (place / name).is_dir())


@define(eq=False)
class FaultyStarts:
    """A launcher whose processes get the faults in turn; the last goes on for ever. "" is no fault."""

    faults: list[str]
    started: int = 0
    processes: list[Any] = field(factory=list)

    def __call__(self, role: str, environment: dict[str, str]) -> Any:
        fault = self.faults[min(self.started, len(self.faults) - 1)]
        self.started += 1
        made = platform.spawn_worker(role, environment, program=[FAULT_WORKER, "--fault", fault])
        self.processes.append(made[0])
        return made


def faulty(*faults: str) -> FaultyStarts:
    """Short for FaultyStarts."""
    return FaultyStarts(list(faults))


def server_settings(**changes: Any) -> ServerSettings:
    """Settings for tests: a small pool, no patience worth waiting for."""
    settings = ServerSettings(
        models_dir=Path("/nonexistent"),
        device="CPU",
        total_vram_gb=0,
        default_kv_cache_gb=TEST_POOL_GB,
        spare_workers=0,
        worker_stall_secs=30.0,
        admission_queue_timeout_ms=60_000,
        device_admission_queue_timeout_ms=60_000,
        supervisor=QUICK,
    )
    return evolve(settings, **changes)


def request(
    ids: Iterable[int],
    new_tokens: int = 8,
    *,
    n: int = 1,
    shrinkable: bool = False,
    fingerprint: bytes | None = None,
    **options: Any,
) -> GenerationRequest:
    """A greedy request; every one has a fingerprint of its own unless one is given."""
    prompt = list(ids)
    shared: dict[str, Any] = {
        "eos_token_ids": [],
        "ignore_eos": True,
        "repetition_penalty": 1.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "temperature": 0.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "seed": 1,
        "logprobs": False,
    } | options
    return GenerationRequest(
        prompt=np.asarray(prompt, "<i4").tobytes(),
        prompt_tokens=len(prompt),
        max_new_tokens=new_tokens,
        shrinkable=shrinkable,
        options=tuple(dict(shared) for _ in range(n)),
        fingerprint=os.urandom(8) if fingerprint is None else fingerprint,
    )


@asynccontextmanager
async def hub(settings: ServerSettings, inventory: Inventory | None = None) -> AsyncIterator[Hub]:
    """All models of a server together, without HTTP, for at most a minute."""
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            made = Hub(settings, inventory)
            await nursery.start(made.run)
            yield made
            nursery.cancel_scope.cancel()


async def finish(lease: Lease) -> Sequence:
    """Wait for all sequences of a lease; returns the first. Raises its failure."""
    while not all(sequence.done for sequence in lease.sequences):
        await lease.wait()
    lease.close()
    first = lease.sequences[0]
    if first.failure is not None:
        raise first.failure
    return first


async def generate(actor: ModelActor, ids: Iterable[int], new_tokens: int = 8, **options: Any) -> list[int]:
    """The tokens of one request."""
    return (await finish(await actor.lease(request(ids, new_tokens, **options)))).tokens


async def first_token(lease: Lease) -> None:
    """Wait until every sequence of the lease has given a token."""
    while not all(sequence.tokens for sequence in lease.sequences):
        await lease.wait()


async def until(reached: Callable[[], object]) -> None:
    """Wait for something that no event tells; the test's own bound ends it."""
    while not reached():  # noqa: ASYNC110
        await trio.sleep(0.002)


def reads(folder: Path) -> Callable[[], Awaitable[Prepared]]:
    """What an actor is given to read its model's folder with."""

    async def prepare() -> Prepared:
        await trio.lowlevel.checkpoint()
        return Prepared(inspect_folder(folder), [5, 6, 7], ["hello"])

    return prepare


@asynccontextmanager
async def actors(
    *models: str,
    launcher: Launcher = platform.spawn_worker,
    server: ServerSettings | None = None,
    settings: ModelSettings | None = None,
    queue: DeviceQueue | None = None,
    prepare: Callable[[], Awaitable[Prepared]] | None = None,
    bound_secs: float = 40.0,
) -> AsyncIterator[list[ModelActor]]:
    """Actors that run, one per name of a model at hand, not loaded yet. Checks that no process is left."""
    settings = ModelSettings(plugin_config=EXACT) if settings is None else settings
    server = server_settings() if server is None else server
    queue = DeviceQueue() if queue is None else queue
    made: list[ModelActor] = []
    pids: set[int] = set()

    def recording(role: str, environment: dict[str, str]) -> Any:
        started = launcher(role, environment)
        pids.add(started[0].pid)
        return started

    with trio.fail_after(bound_secs):
        async with trio.open_nursery() as processes:
            spares = SparePool(processes, server.spare_workers, server.worker_stall_secs, launcher=recording)
            async with trio.open_nursery() as running:
                running.start_soon(spares.run)
                for name in models:
                    actor = ModelActor(
                        name, settings, server, "CPU", queue, spares, prepare or reads(model_folder(name))
                    )
                    made.append(actor)
                    running.start_soon(actor.run)
                try:
                    yield made
                finally:
                    running.cancel_scope.cancel()
            processes.cancel_scope.cancel()
    assert not still_there(pids), "processes are left"
