"""Ends for lack of memory: the kernel's count, last words, what an actor makes of them, and a real kill."""

import math
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from rustedvino.config.types import ModelSettings
from rustedvino.hub.errors import HubError, NotReady, WorkerLost
from rustedvino.hub.oom import LAST_LINES, RECENT_SECS, OomKills, last_words_of_memory
from rustedvino.hub.states import State
from rustedvino.worker import platform
from tests.support import fault_worker
from tests.support.actors import QUICK, actors, faulty, finish, first_token, generate, request, server_settings, until

MODEL = "tiny-qwen3"
LONG = 2000


# The kernel's count.


@pytest.fixture
def counter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A count of our own in the place of the kernel's."""
    path = tmp_path / "memory.events"
    path.write_text("low 0\noom 9\noom_kill 3\noom_group_kill 0\n")
    monkeypatch.setattr(platform, "oom_kill_counter", lambda pid: path)
    return path


def set_count(counter: Path, count: int) -> None:
    counter.write_text(f"low 0\noom 9\noom_kill {count}\noom_group_kill 0\n")


def test_a_kill_within_the_span_is_recent(counter: Path) -> None:
    kills = OomKills(1)
    assert not kills.recent()
    kills.look(0.0)
    assert not kills.recent()
    set_count(counter, 4)
    assert kills.recent()
    kills.look(1.0)  # seen while its victim is still ending
    kills.look(RECENT_SECS - 0.5)
    assert kills.recent()
    kills.look(RECENT_SECS + 1.0)
    assert not kills.recent()


def test_another_group_has_another_count(counter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kills = OomKills(1)
    kills.look(0.0)
    other = tmp_path / "other"
    set_count(other, 50)
    monkeypatch.setattr(platform, "oom_kill_counter", lambda pid: other)
    kills.look(1.0)
    assert not kills.recent()
    monkeypatch.setattr(platform, "oom_kill_counter", lambda pid: None)  # the process is gone
    kills.look(2.0)
    set_count(other, 51)
    assert kills.recent()
    other.unlink()
    assert not kills.recent()


def test_without_a_count_nothing_is_claimed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "oom_kill_counter", lambda pid: tmp_path / "none")
    kills = OomKills(1)
    kills.look(0.0)
    assert not kills.recent()


def test_last_words() -> None:
    words = "terminate called after throwing an instance of 'std::bad_alloc'"
    stacks = [f'  File "x.py", line {number}' for number in range(LAST_LINES - 1)]
    assert last_words_of_memory("\n".join(["start", words, *stacks])) == words
    assert last_words_of_memory("\n".join([words, *stacks, "one more"])) is None
    assert last_words_of_memory("") is None


# What an actor makes of it.


async def lost(work: Callable[[], object]) -> HubError:
    """The error of work that must fail."""
    with pytest.raises(HubError) as caught:
        await work()  # type: ignore[misc]
    return caught.value


@pytest.mark.parametrize("fault", ["load-memory-error", "load-bad-alloc", "load-address-space"])
async def test_a_load_without_memory_is_tried_again_once(fault: str) -> None:
    async with actors(MODEL, launcher=faulty(fault, ""), settings=ModelSettings(load="on_demand")) as (actor,):
        assert await generate(actor, [7], 3) == [7, 8, 9]  # who waited for the load is served by the second
        assert actor.restarts == 1
        assert actor.tally.restarts["oom"] == 1
        assert actor.deaths.loads_without_memory == 0
        assert actor.last_error is None


@pytest.mark.parametrize("way_out", ["load", "retry time", "unload", "deregister"])
async def test_a_load_that_meets_the_wall_twice_fails_the_model(way_out: str) -> None:
    window_secs = 0.4 if way_out == "retry time" else 600.0
    supervisor = evolve(QUICK, max_restarts=100, restart_window_secs=window_secs)
    wall = ["load-address-space", "load-bad-alloc"]
    launcher = faulty(*wall, *(["load-memory-error"] if way_out == "retry time" else []), "")
    async with actors(MODEL, launcher=launcher, server=server_settings(supervisor=supervisor)) as (actor,):
        actor.load()
        await actor.wait_state(State.FAILED)
        assert launcher.started == 2
        assert actor.tally.restarts["oom"] == 1
        error = await lost(lambda: actor.lease(request([1])))
        assert isinstance(error, NotReady)
        assert error.reason == "model_failed"
        assert "2 loads in a row ran out of memory" in error.message
        assert "out of memory: the worker process ended: signal SIGABRT" in error.message
        assert "bad_alloc" in error.message
        assert "kv_cache_gb" in error.message
        assert error.retry_after_secs
        match way_out:
            case "retry time":  # one trial, and no other by itself
                await actor.wait_state(State.LOADING)
                await actor.wait_state(State.FAILED)
                assert "3 loads in a row" in str(actor.last_error)
                assert launcher.started == 3
                assert actor._retry_at == math.inf
                error = await lost(lambda: actor.lease(request([1])))
                assert error.retry_after_secs == 1.0
                actor.load()
                await actor.wait_state(State.READY)
            case "load":
                actor.load()
                await actor.wait_state(State.READY)
                assert actor.last_error is None
            case "unload":
                actor.unload(0)
                assert actor.state is State.NOT_LOADED
            case "deregister":
                actor.deregister()
                assert actor.state is State.GONE


async def test_an_allocation_that_fails_in_a_step_ends_the_worker_and_not_the_model() -> None:
    async with actors(MODEL, launcher=faulty("step-bad-alloc", "")) as (actor,):
        actor.load()
        await actor.wait_state(State.READY)
        error = await lost(lambda: generate(actor, [1], 50))
        assert isinstance(error, WorkerLost)
        assert "out of memory: std::bad_alloc" in error.message
        await actor.wait_state(State.RESTARTING, State.LOADING)
        assert "out of memory" in str(actor.last_error)
        await actor.wait_state(State.READY)
        assert {reason: count for reason, count in actor.tally.restarts.items() if count} == {"oom": 1}
        assert await generate(actor, [1], 2) == [1, 2]


@pytest.mark.parametrize("counted", [True, False])
async def test_a_kill_by_the_kernel_is_told_from_other_kills(counter: Path, counted: bool) -> None:
    async with actors(MODEL, launcher=faulty("paced", "")) as (actor,):
        actor.load()
        await actor.wait_state(State.READY)
        lease = await actor.lease(request([1], LONG))
        await first_token(lease)
        assert actor.worker is not None
        if counted:
            set_count(counter, 4)
        os.kill(actor.worker.pid, signal.SIGKILL)
        error = await lost(lambda: finish(lease))
        assert isinstance(error, WorkerLost)
        assert ("out of memory: the kernel killed the worker process" in error.message) is counted
        assert actor.tally.restarts["oom" if counted else "crash"] == 1
        await actor.wait_state(State.READY)


async def test_our_own_kill_is_none_of_the_kernels(counter: Path) -> None:
    async with actors(MODEL, launcher=faulty("load-hang")) as (actor,):
        actor.load()
        await until(lambda: actor.worker is not None)
        worker = actor.worker
        assert worker is not None
        set_count(counter, 4)
        worker.kill("stall", "no progress")
        await worker.ended.wait()
        assert worker.end is not None
        assert worker.end.fault is None
        await until(lambda: actor.restarts == 1)
        assert actor.tally.restarts["stall"] == 1


# The kernel itself.


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A control group with little memory, inside our own."""
    own = platform.oom_kill_counter(os.getpid())
    if own is None or own.name == "vmstat":
        pytest.skip("this process is in no control group with an account of its memory")
    group = own.parent / f"rustedvino-test-{os.getpid()}"
    limits = {"memory.oom_control": "memory.limit_in_bytes", "memory.events": "memory.max"}
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control groups can be made here: {error}")
    try:
        limit = group / limits[own.name]
        if not limit.exists():
            pytest.skip("memory is not delegated to this control group")
        limit.write_text(str(fault_worker.EATEN_BYTES // 2))
        swap = group / ("memory.swap.max" if limit.name == "memory.max" else "memory.swappiness")
        if swap.exists():
            swap.write_text("0")
        yield group
    finally:
        group.rmdir()


async def test_a_real_kill_by_the_kernel(small_group: Path) -> None:
    starts = faulty("load-eats", "load-eats", "")

    def in_the_group(role: str, environment: dict[str, str]) -> Any:
        started = starts(role, environment)
        (small_group / "cgroup.procs").write_text(str(started[0].pid))
        return started

    async with actors(MODEL, launcher=in_the_group) as (actor,):
        actor.load()
        await actor.wait_state(State.FAILED)
        assert "2 loads in a row" in str(actor.last_error)
        assert "out of memory: the kernel killed the worker process" in str(actor.last_error)
        assert actor.tally.restarts["oom"] == 1
        actor.load()
        await actor.wait_state(State.READY)
