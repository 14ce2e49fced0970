"""Faults of the server's own code: one model or one chore suffers, everything else goes on."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
import trio

from rustedvino.config.types import ModelSettings
from rustedvino.hub import hub as hub_module
from rustedvino.hub import memory
from rustedvino.hub.actor import ModelActor
from rustedvino.hub.containment import contained
from rustedvino.hub.errors import WorkerLost
from rustedvino.hub.hub import Hub
from rustedvino.hub.process import WorkerProcess
from rustedvino.hub.states import State
from tests.support.actors import (
    TEST_POOL_GB,
    finish,
    first_token,
    generate,
    hub,
    request,
    server_settings,
    still_there,
    until,
)

MODELS_DIR = Path(__file__).resolve().parents[1] / "models"
NAMES = ("tiny-qwen3", "tiny-llama3")


def running() -> AbstractAsyncContextManager[Hub]:
    entry = ModelSettings(kv_cache_gb=TEST_POOL_GB)
    return hub(server_settings(models_dir=MODELS_DIR, models=dict.fromkeys(NAMES, entry)))


async def both_ready(made: Hub) -> tuple[ModelActor, ModelActor]:
    first, second = (made.get(name).actor for name in NAMES)
    for actor in (first, second):
        assert await actor.wait_state(State.READY, State.FAILED) is State.READY
    return first, second


def test_cancellation_is_not_held_up(caplog: pytest.LogCaptureFixture) -> None:
    with contained("a chore"):
        raise RuntimeError("a slip of ours")
    assert "internal error in a chore" in caplog.text
    with pytest.raises(KeyboardInterrupt), contained("a chore"):
        raise KeyboardInterrupt


async def test_a_fault_in_loading_is_that_model_s_and_is_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    acquire = Hub.acquire
    faults = 2

    async def broken(self: Hub, actor: ModelActor, files: Any) -> Any:
        nonlocal faults
        if actor.model_id == NAMES[0] and faults:
            faults -= 1
            raise ZeroDivisionError("a slip of ours")
        return await acquire(self, actor, files)

    monkeypatch.setattr(Hub, "acquire", broken)
    async with running() as made:
        first, _ = await both_ready(made)
        assert (faults, first.restarts) == (0, 2)
        assert first.tally.restarts["crash"] == 2


async def test_a_fault_that_stays_fails_the_model_with_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(self: ModelActor, worker: WorkerProcess) -> None:
        if self.model_id == NAMES[0]:
            raise ZeroDivisionError("a slip of ours")
        await accept(self, worker)

    accept = ModelActor._accept_loaded
    monkeypatch.setattr(ModelActor, "_accept_loaded", broken)
    async with running() as made:
        first, second = (made.get(name).actor for name in NAMES)
        assert await first.wait_state(State.FAILED) is State.FAILED
        assert "a slip of ours" in str(first.last_error)
        await until(lambda: made.residency.ledger.get(NAMES[0]) is None)
        assert await second.wait_state(State.READY, State.FAILED) is State.READY
        assert await generate(second, [1, 2, 3]) != []


@pytest.mark.parametrize("state", [State.READY, State.DRAINING])
async def test_a_fault_while_requests_run_ends_these_and_no_others(
    monkeypatch: pytest.MonkeyPatch, state: State
) -> None:
    news = ModelActor._news_or
    faults: list[State] = []
    armed = False

    async def broken(self: ModelActor, until: float | None) -> bool:
        if armed and self.model_id == NAMES[0] and self.state is state and self.busy and not faults:
            faults.append(state)
            raise ZeroDivisionError("a slip of ours")
        return await news(self, until)

    monkeypatch.setattr(ModelActor, "_news_or", broken)
    async with running() as made:
        first, second = await both_ready(made)
        lost, other = await first.lease(request([1, 2, 3], 500)), await second.lease(request([1, 2, 3], 500))
        await first_token(lost)
        await first_token(other)
        assert first.worker is not None
        pid = first.worker.pid
        armed = True
        if state is State.DRAINING:
            first.unload(30.0)
        else:
            first._tell()
        while not lost.sequences[0].done:
            await lost.wait()
        assert isinstance(lost.sequences[0].failure, WorkerLost)
        assert (faults, still_there([pid])) == ([state], [])
        assert (await finish(other)).finish == "length"
        if state is State.DRAINING:
            await first.wait_state(State.NOT_LOADED)
            first.load()
        await first.wait_state(State.READY)
        assert len(await generate(first, [1, 2, 3])) == 8


async def test_a_model_that_is_removed_while_it_breaks_down_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    died = ModelActor._break_down
    breaking = trio.Event()
    armed = False

    async def broken(self: ModelActor, until: float | None) -> bool:
        if armed and self.model_id == NAMES[0] and self.state is State.READY and self.busy:
            raise ZeroDivisionError("a slip of ours")
        return await news(self, until)

    async def told(self: ModelActor, error: Exception) -> None:
        breaking.set()
        await died(self, error)

    news = ModelActor._news_or
    monkeypatch.setattr(ModelActor, "_news_or", broken)
    monkeypatch.setattr(ModelActor, "_break_down", told)
    async with running() as made:
        first, second = await both_ready(made)
        lease = await first.lease(request([1, 2, 3], 500))
        await first_token(lease)
        assert first.worker is not None
        pid = first.worker.pid
        armed = True
        first._tell()
        await breaking.wait()
        await made.deregister(NAMES[0])
        assert (first.state, still_there([pid])) == (State.GONE, [])
        while not lease.sequences[0].done:
            await lease.wait()
        assert lease.sequences[0].failure is not None
        assert len(await generate(second, [1, 2, 3])) == 8


async def test_a_worker_that_cannot_be_served_ends_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = WorkerProcess._watch
    broken_pids: list[int] = []

    async def broken(self: WorkerProcess) -> None:
        await until(lambda: self.label != "spare")
        if self.label == NAMES[0] and not broken_pids:
            broken_pids.append(self.pid)
            raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "a name that is none")
        await watch(self)

    monkeypatch.setattr(WorkerProcess, "_watch", broken)
    async with running() as made:
        first, _ = await both_ready(made)
        assert first.restarts == 1
        assert still_there(broken_pids) == []


async def test_chores_go_on(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    asked: list[int] = []

    def broken(pid: int) -> Any:
        asked.append(pid)
        raise ZeroDivisionError("a slip of ours")

    monkeypatch.setattr(memory, "process_memory", broken)
    monkeypatch.setattr(hub_module, "HOUSEKEEPING_SECS", 0.01)
    async with running() as made:
        first, second = await both_ready(made)
        pids = [actor.worker.pid for actor in (first, second) if actor.worker is not None]
        assert len(pids) == 2
        await until(lambda: all(asked.count(pid) >= 3 for pid in pids))
    assert f"looking after model {NAMES[0]}" in caplog.text
