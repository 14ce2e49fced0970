"""The life of a model whose workers do as they are told: states, admission, restarts, faults."""

import os
import signal
import socket
import time
from typing import Any

import pytest
import trio
from attrs import evolve

from rustedvino.config.types import ModelSettings, SupervisorSettings
from rustedvino.hub import actor as actor_module
from rustedvino.hub import process
from rustedvino.hub.actor import Grant, ModelActor, Prepared
from rustedvino.hub.admission import DeviceQueue
from rustedvino.hub.errors import (
    BadInput,
    Busy,
    HubError,
    NeverFits,
    NotReady,
    Suspect,
    Unloading,
    WorkerLost,
)
from rustedvino.hub.lease import Lease
from rustedvino.hub.model_files import ModelFiles, ModelProblem
from rustedvino.hub.states import State
from rustedvino.worker.protocol import FROM_WORKER, FrameDecoder
from tests.support import fault_worker
from tests.support.actors import (
    QUICK,
    actors,
    faulty,
    finish,
    first_token,
    generate,
    request,
    server_settings,
    until,
)

MODEL = "tiny-qwen3"
LONG = 2000
POOL_OF_64 = ModelSettings(kv_cache_gb=64 * 32 * 2 * 2 * (2 * 16 + 8 + 8 / 2) / 2**30)


def counted(first: int, tokens: int) -> list[int]:
    """What a counting worker gives to a prompt that starts with ``first``."""
    return [(first + number) % 1000 for number in range(tokens)]


async def outcome_of(lease: Lease) -> HubError | None:
    """How a lease ends."""
    try:
        await finish(lease)
    except HubError as error:
        return error
    return None


# Loads.


async def test_load_run_unload_and_again() -> None:
    launcher = faulty("")
    async with actors(MODEL, launcher=launcher) as (actor,):
        for round_number in (1, 2):
            actor.load()
            actor.load()
            await actor.wait_state(State.READY)
            assert await generate(actor, [7, 1], 5) == counted(7, 5)
            actor.unload(5)
            await actor.wait_state(State.NOT_LOADED)
            assert launcher.started == round_number
            assert actor.statistics().worker_pid is None
            with pytest.raises(NotReady) as refused:
                await actor.lease(request([1]))
            assert refused.value.reason == "model_not_loaded"


async def test_a_hundred_requests_start_one_load() -> None:
    launcher = faulty("")
    server = server_settings(max_queue_depth=100)
    answers: list[list[int]] = []
    async with actors(MODEL, launcher=launcher, server=server, settings=ModelSettings(load="on_demand")) as (actor,):

        async def one(number: int) -> None:
            answers.append(await generate(actor, [number], 3))

        async with trio.open_nursery() as clients:
            for number in range(100):
                clients.start_soon(one, number)
        assert launcher.started == 1
        assert sorted(answers) == sorted(counted(number, 3) for number in range(100))


async def test_a_request_waits_for_an_on_demand_load_as_long_as_it_may() -> None:
    server = server_settings(load_wait_secs=0.3)
    async with actors(MODEL, launcher=faulty("load-hang"), server=server, settings=ModelSettings(load="on_demand")) as (
        actor,
    ):
        with pytest.raises(NotReady) as refused:
            await actor.lease(request([1]))
        assert refused.value.reason == "model_loading"
        assert refused.value.retry_after_secs
        assert actor.statistics().waiting == 0


async def test_a_load_that_takes_too_long_fails_and_its_worker_is_gone() -> None:
    async with actors(MODEL, launcher=faulty("load-hang"), server=server_settings(load_timeout_secs=0.5)) as (actor,):
        actor.load()
        await actor.wait_state(State.FAILED)
        assert "did not end within 0.5 s" in str(actor.last_error)
        assert actor.worker is None


async def test_a_slow_load_is_no_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "WATCH_TICK_SECS", 0.1)
    assert fault_worker.SLOW_LOAD_SECS > 2 * 0.5
    async with actors(MODEL, launcher=faulty("slow-load"), server=server_settings(worker_stall_secs=0.5)) as (actor,):
        actor.load()
        await actor.wait_state(State.READY)
        assert actor.restarts == 0


@pytest.mark.parametrize("how", ["unload", "deregister"])
async def test_a_load_can_be_given_up(how: str) -> None:
    launcher = faulty("load-hang", "")
    async with actors(MODEL, launcher=launcher) as (actor,):
        actor.load()
        await until(lambda: actor.worker is not None)
        worker = actor.worker
        assert worker is not None
        if how == "unload":
            actor.unload(5)
            assert actor.state is State.NOT_LOADED
            actor.load()  # asked for again before the first one is gone
            await worker.ended.wait()
            await actor.wait_state(State.READY)
            assert await generate(actor, [3]) == counted(3, 8)
        else:
            actor.deregister()
            await worker.ended.wait()
            assert actor.state is State.GONE
            with pytest.raises(NotReady) as refused:
                await actor.lease(request([1]))
            assert refused.value.reason == "model_not_found"


async def test_a_worker_that_loads_is_not_asked_to_end_but_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actor_module, "SHUTDOWN_GRACE_SECS", 3600)
    async with actors(MODEL, launcher=faulty("load-hang")) as (actor,):
        actor.load()
        await until(lambda: actor.worker is not None)
        worker = actor.worker
        assert worker is not None
        actor.unload(3600)
        await actor.wait_unloaded()
        assert worker.ended.is_set()
        assert actor.state is State.NOT_LOADED


class Gate:
    """Memory that comes when ``open`` is set. Counts who waits for it and who holds it."""

    def __init__(self) -> None:
        self.open = trio.Event()
        self.waiting = 0
        self.held = 0

    async def acquire(self, actor: ModelActor, files: ModelFiles) -> Grant:
        self.waiting += 1
        try:
            await self.open.wait()
        finally:
            self.waiting -= 1
        self.held += 1
        return Grant("CPU", None)

    def release(self, actor: ModelActor) -> None:
        self.held -= 1

    def changed(self) -> None:
        """Nobody else is interested."""


@pytest.mark.parametrize("how", ["unload", "deregister"])
async def test_a_load_that_waits_for_memory_can_be_given_up(how: str) -> None:
    """At once, and what comes of that wait later is nothing; another load may wait anew meanwhile."""
    launcher, gate = faulty(""), Gate()
    async with actors(MODEL, launcher=launcher) as (actor,):
        actor.gate = gate
        actor.load()
        await until(lambda: gate.waiting == 1)
        if how == "deregister":
            actor.deregister()
            await until(lambda: gate.waiting == 0)
            assert (gate.held, launcher.started) == (0, 0)
            return
        actor.unload(3600)
        actor.load()
        await until(lambda: gate.waiting == 1 and actor._loads == 2)
        actor.unload(3600)
        await until(lambda: gate.waiting == 0)
        assert (actor.state, gate.held, launcher.started) == (State.NOT_LOADED, 0, 0)
        gate.open.set()
        actor.load()
        await actor.wait_state(State.READY)
        assert (gate.held, launcher.started) == (1, 1)
        actor.unload(5)
        await actor.wait_unloaded()
        assert gate.held == 0


async def test_a_load_error_is_told_and_left_by_a_load() -> None:
    async with actors(MODEL, launcher=faulty("load-error", "")) as (actor,):
        actor.load()
        await actor.wait_state(State.FAILED)
        with pytest.raises(NotReady) as refused:
            await actor.lease(request([1]))
        assert refused.value.reason == "model_failed"
        assert "the weights are odd" in refused.value.message
        assert refused.value.retry_after_secs
        actor.load()
        await actor.wait_state(State.READY)
        assert actor.last_error is None
        assert actor.restarts == 0


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        (ModelProblem("config.json is missing"), "config.json is missing"),
        (ValueError("a surprise"), "ValueError: a surprise"),
    ],
)
async def test_problems_of_the_files_fail_this_model_alone(problem: Exception, said: str) -> None:
    async def prepare() -> Prepared:
        await trio.lowlevel.checkpoint()
        raise problem

    launcher = faulty("")
    async with actors(MODEL, launcher=launcher, prepare=prepare) as (actor,):
        actor.load()
        await actor.wait_state(State.FAILED)
        assert said in str(actor.last_error)
        assert launcher.started == 0


async def test_settings_that_fit_no_frame_fail_the_load() -> None:
    settings = ModelSettings(plugin_config={"A": 2**70})
    async with actors(MODEL, launcher=faulty(""), settings=settings) as (actor,):
        actor.load()
        await actor.wait_state(State.FAILED)
        assert "cannot be encoded" in str(actor.last_error)
        assert actor.worker is None


async def test_waiters_of_a_failed_load_are_told() -> None:
    async with actors(MODEL, launcher=faulty("load-error"), settings=ModelSettings(load="on_demand")) as (actor,):
        with pytest.raises(NotReady) as refused:
            await actor.lease(request([1]))
        assert refused.value.reason == "model_failed"


# Requests.


async def test_two_batches_overlap_and_every_choice_is_counted() -> None:
    async with actors(MODEL, launcher=faulty("paced"), server=server_settings(max_num_seqs=6)) as (actor,):
        actor.load()
        await actor.wait_state(State.READY)
        first = await actor.lease(request([10], 200, n=3))
        await first_token(first)
        second = await actor.lease(request([500], 20, n=3))
        assert actor.statistics().running == 6
        assert (await finish(second)).tokens == counted(500, 20)
        assert not first.sequences[0].done
        await finish(first)
        assert all(sequence.tokens == counted(10, 200) for sequence in first.sequences)
        assert actor.tally.tokens_generated == 3 * 200 + 3 * 20
        assert actor.statistics().blocks_reserved == 0


async def test_a_full_queue_refuses_at_once_and_nobody_else() -> None:
    """200 at once on a queue of 128 and 16 slots: 144 are taken, 56 are told to come back."""
    refused: list[Busy] = []
    done: list[list[int]] = []
    server = server_settings(max_num_seqs=16, max_queue_depth=128)
    async with actors(MODEL, launcher=faulty("paced"), server=server) as (actor,):
        actor.load()
        await actor.wait_state(State.READY)

        async def one(number: int) -> None:
            try:
                done.append(await generate(actor, [number], 4))
            except Busy as error:
                refused.append(error)

        async with trio.open_nursery() as clients:
            for number in range(200):
                clients.start_soon(one, number)
        assert len(refused) == 200 - 128 - 16
        assert all(error.retry_after_secs for error in refused)
        assert len(done) == 128 + 16
        assert actor.statistics().waiting == 0


async def test_a_wait_for_a_slot_ends_with_busy() -> None:
    server = server_settings(max_num_seqs=1, admission_queue_timeout_ms=100)
    async with actors(MODEL, launcher=faulty("paced"), server=server) as (actor,):
        actor.load()
        await actor.wait_state(State.READY)
        running = await actor.lease(request([1], LONG))
        with pytest.raises(Busy) as refused:
            await actor.lease(request([2]))
        assert refused.value.retry_after_secs
        running.close()
        assert await generate(actor, [3]) == counted(3, 8)


async def test_a_device_budget_is_shared_by_its_models() -> None:
    server = server_settings(device_admission_queue_timeout_ms=100)
    async with actors(MODEL, "tiny-llama3", launcher=faulty("paced"), server=server, queue=DeviceQueue(2)) as both:
        first, second = both
        for actor in both:
            actor.load()
            await actor.wait_state(State.READY)
        leases = [await first.lease(request([1], LONG)), await second.lease(request([2], LONG))]
        for actor in both:
            with pytest.raises(Busy):
                await actor.lease(request([3]))
        leases[0].close()
        assert await generate(second, [4]) == counted(4, 8)


@pytest.mark.parametrize("held_by", ["model", "device"])
async def test_the_gate_that_holds_a_request_up_says_how_long_it_waits(held_by: str) -> None:
    """The other gate's patience is a thousand times longer, and does not matter."""
    patience = {"admission_queue_timeout_ms": 60_000, "device_admission_queue_timeout_ms": 60_000}
    patience["admission_queue_timeout_ms" if held_by == "model" else "device_admission_queue_timeout_ms"] = 60
    queue = DeviceQueue(budget=4 if held_by == "model" else 1)
    settings = ModelSettings(max_concurrent_streams=1 if held_by == "model" else 4)
    server = server_settings(**patience)
    async with actors(MODEL, launcher=faulty("paced"), server=server, settings=settings, queue=queue) as (actor,):
        actor.load()
        await actor.wait_state(State.READY)
        holder = await actor.lease(request([1], LONG))
        with pytest.raises(Busy) as refused:
            await actor.lease(request([2]))
        expected = "no slot of 'tiny-qwen3'" if held_by == "model" else "no place on CPU"
        assert refused.value.message.startswith(expected)
        assert "within 0.06 s" in refused.value.message
        assert refused.value.retry_after_secs
        assert (actor.statistics().waiting, queue.in_flight) == (0, 1)
        holder.close()


@pytest.mark.parametrize("held_by", ["model", "device"])
async def test_a_request_outwaits_the_gate_that_does_not_hold_it_up(held_by: str) -> None:
    patience = {"admission_queue_timeout_ms": 60_000, "device_admission_queue_timeout_ms": 60_000}
    patience["device_admission_queue_timeout_ms" if held_by == "model" else "admission_queue_timeout_ms"] = 20
    queue = DeviceQueue(budget=4 if held_by == "model" else 1)
    settings = ModelSettings(max_concurrent_streams=1 if held_by == "model" else 4)
    server = server_settings(**patience)
    async with actors(MODEL, launcher=faulty("paced"), server=server, settings=settings, queue=queue) as (actor,):
        actor.load()
        await actor.wait_state(State.READY)
        holder = await actor.lease(request([1], LONG))
        served: list[list[int]] = []

        async def wait_for_it() -> None:
            served.append(await generate(actor, [2], 3))

        async with trio.open_nursery() as clients:
            clients.start_soon(wait_for_it)
            await until(lambda: actor._waiters)
            ((_, wait),) = actor._waiters.values()
            await until(lambda: wait.scope is not None and wait.scope.deadline > trio.current_time() + 30)
            assert served == []
            holder.close()
        assert served == [[2, 3, 4]]


async def test_a_device_budget_of_one_never_locks_up() -> None:
    """Two models, requests of one and of two sequences, clients who leave, and a worker that dies: everybody gets an
    answer or the error that is theirs, and nothing is left in the line."""
    queue = DeviceQueue(budget=1)
    answers: list[list[int] | str] = []
    async with actors(MODEL, "tiny-llama3", launcher=faulty("paced"), queue=queue) as both:
        for actor in both:
            actor.load()
            await actor.wait_state(State.READY)

        async def client(actor: ModelActor, number: int) -> None:
            tokens = 2 + number % 3
            try:
                if number % 5 == 4:
                    lease = await actor.lease(request([number], LONG))
                    try:
                        await lease.wait()
                    finally:
                        lease.close()
                    answers.append("left")
                else:
                    answers.append(await generate(actor, [number], tokens, n=1 + number % 2))
            except WorkerLost:
                answers.append("lost")

        async with trio.open_nursery() as clients:
            for number in range(20):
                for actor in both:
                    clients.start_soon(client, actor, number)
            await until(lambda: len(answers) >= 8)
            victim = both[0].worker
            assert victim is not None
            os.kill(victim.pid, signal.SIGKILL)
        assert len(answers) == 40
        assert answers.count("lost") <= 1
        assert answers.count("left") >= 7
        await until(lambda: queue.in_flight == 0)
        assert [queue.waiting(actor) for actor in both] == [0, 0]
        assert [actor.statistics().running for actor in both] == [0, 0]


async def test_what_can_never_fit_is_refused_with_its_field() -> None:
    async with actors(MODEL, launcher=faulty(""), settings=POOL_OF_64, server=server_settings(max_num_seqs=4)) as (
        actor,
    ):
        actor.load()
        await actor.wait_state(State.READY)
        assert actor.blocks_total == 64
        for wanted, field in [
            (request([1], 64 * 32), "max_tokens"),
            (request([1], 17 * 32, n=4), "max_tokens"),
            (request([1], n=5), "n"),
            (request([1] * (64 * 32), 5, shrinkable=True), "messages"),
        ]:
            with pytest.raises(NeverFits) as refused:
                await actor.lease(wanted)
            assert refused.value.field == field
        lease = await actor.lease(request([1], 64 * 32 - 1))
        assert actor.statistics().blocks_reserved == 64
        lease.close()
        shrunk = await actor.lease(request([1] * 100, 10**6, n=2, shrinkable=True))
        assert [sequence.max_new_tokens for sequence in shrunk.sequences] == [32 * 32 - 100] * 2
        assert actor.statistics().blocks_reserved == 64
        shrunk.close()


async def test_what_can_never_fit_is_found_when_the_load_tells_the_pool() -> None:
    settings = evolve(POOL_OF_64, load="on_demand")
    async with actors(MODEL, launcher=faulty(""), settings=settings) as (actor,):
        results: list[Any] = []

        async def one(new_tokens: int) -> None:
            try:
                results.append(len(await generate(actor, [1], new_tokens)))
            except NeverFits as error:
                results.append(error.field)

        async with trio.open_nursery() as clients:
            for new_tokens in (64 * 32, 3, 64 * 40):
                clients.start_soon(one, new_tokens)
        assert sorted(results, key=str) == [3, "max_tokens", "max_tokens"]


async def test_options_that_fit_no_frame_are_refused_before_they_wait() -> None:
    async with actors(MODEL, launcher=faulty("")) as (actor,):
        actor.load()
        await actor.wait_state(State.READY)
        with pytest.raises(BadInput):
            await actor.lease(request([1], seed=2**64))
        assert await generate(actor, [3]) == counted(3, 8)
        assert actor.restarts == 0


async def test_a_rejected_sequence_is_bad_input_and_frees_its_place() -> None:
    async with actors(MODEL, launcher=faulty("reject"), server=server_settings(max_num_seqs=1)) as (actor,):
        actor.load()
        await actor.wait_state(State.READY)
        for _ in range(2):
            with pytest.raises(BadInput, match="not this one"):
                await generate(actor, [1])
        assert actor.statistics().blocks_reserved == 0


async def test_closing_and_cancelling_leave_nothing_behind() -> None:
    async with actors(MODEL, launcher=faulty("paced"), server=server_settings(max_num_seqs=2)) as (actor,):
        actor.load()
        await actor.wait_state(State.READY)
        for moment in ("before it is sent", "after its first token"):
            lease = await actor.lease(request([1], LONG, n=2))
            if moment == "after its first token":
                await first_token(lease)
            lease.close()
            lease.close()
            await until(lambda: actor.statistics().running == 0)
            assert actor.statistics().blocks_reserved == 0
            assert all(sequence.done and sequence.finish is None for sequence in lease.sequences)
        holder = await actor.lease(request([1], LONG, n=2))
        async with trio.open_nursery() as clients:
            for _ in range(20):
                clients.start_soon(actor.lease, request([2]))
            await until(lambda: actor.statistics().waiting == 20)
            clients.cancel_scope.cancel()
        assert actor.statistics().waiting == 0
        holder.close()
        await until(lambda: actor.statistics().running == 0)
        assert actor.queue.in_flight == 0


@pytest.mark.parametrize("first", ["cancelled", "admitted"])
async def test_a_request_cancelled_as_it_is_admitted_gives_its_place_back(first: str) -> None:
    queue = DeviceQueue(1)
    async with actors(MODEL, launcher=faulty("paced"), queue=queue) as (actor,):
        actor.load()
        await actor.wait_state(State.READY)
        queue.in_flight = 1  # as if another model held the device

        async def client() -> None:
            lease = await actor.lease(request([2], LONG))
            try:
                await trio.sleep_forever()
            finally:
                lease.close()

        async with trio.open_nursery() as clients:
            clients.start_soon(client)
            await until(lambda: actor.statistics().waiting == 1)
            steps = [clients.cancel_scope.cancel, queue.release]
            for step in steps if first == "cancelled" else reversed(steps):
                step()
        await until(lambda: not actor.statistics().running)
        assert queue.in_flight == 0
        assert await generate(actor, [3]) == counted(3, 8)


async def test_abort_ends_everything_now_and_the_model_goes_on() -> None:
    async with actors(MODEL, launcher=faulty("paced"), server=server_settings(max_num_seqs=1)) as (actor,):
        actor.load()
        await actor.wait_state(State.READY)
        running = await actor.lease(request([1], LONG))
        ends: list[HubError] = []

        async def waits() -> None:
            try:
                await actor.lease(request([2]))
            except HubError as error:
                ends.append(error)

        async with trio.open_nursery() as clients:
            clients.start_soon(waits)
            await until(lambda: actor.statistics().waiting == 1)
            actor.abort("the server is shutting down")
        ends.append(await outcome_of(running))  # type: ignore[arg-type]
        assert [type(error) for error in ends] == [Unloading, Unloading]
        assert all(error.retry_after_secs for error in ends)
        assert running.sequences[0].finish is None
        assert await generate(actor, [3]) == counted(3, 8)


# Unloading.


async def test_a_drain_lets_running_requests_end_and_refuses_the_others() -> None:
    async with actors(MODEL, launcher=faulty("paced"), server=server_settings(max_num_seqs=1)) as (actor,):
        actor.load()
        await actor.wait_state(State.READY)
        running = await actor.lease(request([1], 50))
        async with trio.open_nursery() as clients:

            async def waits() -> None:
                with pytest.raises(NotReady) as refused:
                    await actor.lease(request([2]))
                assert refused.value.reason == "model_unloading"

            clients.start_soon(waits)
            await until(lambda: actor.statistics().waiting == 1)
            actor.unload(30)
        assert actor.state is State.DRAINING
        with pytest.raises(NotReady) as refused:
            await actor.lease(request([3]))
        assert refused.value.reason == "model_unloading"
        assert (await finish(running)).tokens == counted(1, 50)
        await actor.wait_state(State.NOT_LOADED)


async def test_a_drain_ends_at_its_bound_and_the_bound_may_be_moved() -> None:
    async with actors(MODEL, launcher=faulty("paced")) as (actor,):
        actor.load()
        await actor.wait_state(State.READY)
        running = await actor.lease(request([1], LONG))
        actor.unload(3600)
        await first_token(running)
        assert actor.state is State.DRAINING
        actor.unload(0.05)
        assert isinstance(await outcome_of(running), Unloading)
        await actor.wait_state(State.NOT_LOADED)


async def test_calls_under_way_end_with_their_worker() -> None:
    async with actors(MODEL, launcher=faulty("")) as (actor,):
        actor.load()
        await actor.wait_state(State.READY)
        assert await actor.call("echo", {"a": 1}) == ["echo", {"a": 1}]
        with pytest.raises(WorkerLost):
            await actor.call("crash", {})
        await until(lambda: actor.restarts == 1)
        await actor.wait_state(State.READY)
        async with trio.open_nursery() as clients:

            async def calls() -> None:
                with pytest.raises(Unloading):
                    await actor.call("sleep", {"secs": 3600})

            clients.start_soon(calls)
            await until(lambda: bool(actor.calls._pending))
            actor.unload(5)
        with pytest.raises(NotReady):
            await actor.call("echo", {})


# Deaths.


async def test_a_kill_ends_what_runs_and_what_waits_goes_on() -> None:
    async with actors(MODEL, "tiny-llama3", launcher=faulty("paced"), server=server_settings(max_num_seqs=8)) as both:
        actor, neighbour = both
        for one in both:
            one.load()
            await one.wait_state(State.READY)
        untouched = await neighbour.lease(request([600], 400, n=8))
        await first_token(untouched)
        waited: list[list[int]] = []
        for death in (1, 2):
            async with trio.open_nursery() as clients:

                async def waits(number: int) -> None:
                    waited.append(await generate(actor, [number], 3))

                running = [await actor.lease(request([number], LONG)) for number in range(8)]
                for lease in running:
                    await first_token(lease)
                for number in range(10, 15):
                    clients.start_soon(waits, number)
                await until(lambda: actor.statistics().waiting == 5)
                assert actor.worker is not None
                os.kill(actor.worker.pid, signal.SIGKILL)
                for lease in running:
                    error = await outcome_of(lease)
                    assert isinstance(error, WorkerLost)
                    assert error.retry_after_secs
                    assert "signal SIGKILL" in error.message
            await actor.wait_state(State.READY)
            assert actor.restarts == death
            assert sorted(waited) == sorted([counted(number, 3) for number in range(10, 15)] * death)
        assert (await finish(untouched)).tokens == counted(600, 400)
        assert neighbour.restarts == 0
        assert actor.last_error is None


@pytest.mark.parametrize("fault", [*fault_worker.BAD_STEPS, *fault_worker.BAD_DELTAS, "finished-twice"])
async def test_a_lying_worker_is_replaced_and_nothing_of_it_believed(fault: str) -> None:
    async with actors(MODEL, launcher=faulty(fault, "")) as (actor,):
        actor.load()
        await actor.wait_state(State.READY)
        lease = await actor.lease(request([7], LONG))
        error = await outcome_of(lease)
        if fault == "finished-twice":  # its first half was a proper end
            assert lease.sequences[0].finish == "length"
        else:
            assert isinstance(error, WorkerLost)
            assert "protocol error" in error.message
        assert lease.sequences[0].tokens == counted(7, fault_worker.FAULTY_STEP - 1)
        await until(lambda: actor.restarts == 1)
        await actor.wait_state(State.READY)
        assert await generate(actor, [9]) == counted(9, 8)
        assert actor.statistics().blocks_reserved == 0
        assert actor.queue.in_flight == 0


@pytest.mark.parametrize(
    "fault", ["loaded-twice", "reply-uncalled", "rejected-unknown", "rejected-short", "garbage-and-exit", "raise"]
)
async def test_a_worker_that_breaks_off_is_replaced(fault: str) -> None:
    async with actors(MODEL, launcher=faulty(fault, "")) as (actor,):
        actor.load()
        await actor.wait_state(State.READY)
        assert isinstance(await outcome_of(await actor.lease(request([7], LONG))), WorkerLost)
        await actor.wait_state(State.READY)
        assert await generate(actor, [9]) == counted(9, 8)


async def test_a_worker_with_nonsense_for_facts_is_replaced() -> None:
    async with actors(MODEL, launcher=faulty("bad-facts", "")) as (actor,):
        actor.load()
        await actor.wait_state(State.READY)
        assert actor.restarts == 1


@pytest.mark.parametrize("fault", ["old", "import-dies", "dies-after-hello", "load-crash"])
async def test_a_crash_in_start_or_load_is_tried_again(fault: str) -> None:
    async with actors(MODEL, launcher=faulty(fault, fault, "")) as (actor,):
        actor.load()
        await actor.wait_state(State.READY)
        assert actor.restarts == 2


@pytest.mark.parametrize("way_out", ["load", "retry time", "unload", "deregister"])
async def test_a_crash_loop_fails_the_model_with_its_last_words(way_out: str) -> None:
    window_secs = 1.5 if way_out == "retry time" else 600.0
    supervisor = evolve(QUICK, max_restarts=1, restart_window_secs=window_secs)
    launcher = faulty("load-crash", "load-crash", *(["load-crash", ""] if way_out == "retry time" else [""]))
    async with actors(MODEL, launcher=launcher, server=server_settings(supervisor=supervisor)) as (actor,):
        actor.load()
        await actor.wait_state(State.FAILED)
        assert launcher.started == 2
        with pytest.raises(NotReady) as refused:
            await actor.lease(request([1]))
        assert refused.value.reason == "model_failed"
        assert "2 worker deaths" in refused.value.message
        assert "a native library says: assertion failed in load" in refused.value.message
        assert "signal SIGABRT" in refused.value.message
        assert refused.value.retry_after_secs
        match way_out:
            case "load":
                actor.load()
                await actor.wait_state(State.READY)
            case "retry time":
                await actor.wait_state(State.LOADING)
                await actor.wait_state(State.FAILED)  # one trial is one worker
                assert launcher.started == 3
                await actor.wait_state(State.READY)
            case "unload":
                actor.unload(0)
                assert actor.state is State.NOT_LOADED
            case "deregister":
                actor.deregister()
                assert actor.state is State.GONE
        assert launcher.started <= 4


async def test_a_kill_during_a_drain_ends_the_drain() -> None:
    async with actors(MODEL, launcher=faulty("paced")) as (actor,):
        actor.load()
        await actor.wait_state(State.READY)
        running = await actor.lease(request([1], LONG))
        await first_token(running)
        actor.unload(3600)
        assert actor.worker is not None
        os.kill(actor.worker.pid, signal.SIGKILL)
        assert isinstance(await outcome_of(running), WorkerLost)
        await actor.wait_state(State.NOT_LOADED)
        actor.load()
        await actor.wait_state(State.READY)


@pytest.mark.parametrize("where", ["idle", "mid-stream", "native spin"])
async def test_a_hang_is_found_and_replaced(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "WATCH_TICK_SECS", 0.2)
    server = server_settings(worker_stall_secs=2)
    fault = "spin" if where == "native spin" else "paced"
    async with actors(MODEL, launcher=faulty(fault, ""), server=server) as (actor,):
        actor.load()
        await actor.wait_state(State.READY)
        running = None if where == "idle" else await actor.lease(request([1], LONG))
        if running is not None:
            await first_token(running)
        if where != "native spin":
            assert actor.worker is not None
            os.kill(actor.worker.pid, signal.SIGSTOP)
        if running is not None:
            assert isinstance(await outcome_of(running), WorkerLost)
        await actor.wait_state(State.RESTARTING, State.LOADING)
        await actor.wait_state(State.READY)
        assert await generate(actor, [9]) == counted(9, 8)


async def test_a_culprit_is_refused_also_while_it_waits_and_others_go_on() -> None:
    """Copies of one deadly request, one slot: two deaths, then none of the copies runs again."""
    supervisor = evolve(QUICK, max_restarts=2)
    server = server_settings(max_num_seqs=1, supervisor=supervisor)
    async with actors(MODEL, launcher=faulty("raise", "raise", ""), server=server) as (actor,):
        actor.load()
        await actor.wait_state(State.READY)
        ends: list[str] = []

        async def one(fingerprint: bytes) -> None:
            try:
                await generate(actor, [1], 6, fingerprint=fingerprint)
                ends.append(f"{fingerprint!r} done")
            except HubError as error:
                ends.append(f"{fingerprint!r} {type(error).__name__}")

        async with trio.open_nursery() as clients:
            for _ in range(5):
                clients.start_soon(one, b"bad")
            await until(lambda: actor.statistics().waiting == 4)
            clients.start_soon(one, b"good")
        assert sorted(ends) == sorted(["b'bad' DevicePoisoned"] * 2 + ["b'bad' Suspect"] * 3 + ["b'good' done"])
        with pytest.raises(Suspect):
            await actor.lease(request([1], fingerprint=b"bad"))
        assert actor.deaths.count(trio.current_time()) == 1
        assert actor.state is State.READY


async def test_a_waiter_keeps_its_deadline_over_a_restart() -> None:
    server = server_settings(
        max_num_seqs=1,
        admission_queue_timeout_ms=600,
        supervisor=SupervisorSettings(backoff_base_secs=30, backoff_max_secs=60),
    )
    async with actors(MODEL, launcher=faulty("paced"), server=server) as (actor,):
        actor.load()
        await actor.wait_state(State.READY)
        actor.deaths.died(trio.current_time(), ())  # so that the next restart has a backoff
        running = await actor.lease(request([1], LONG))
        async with trio.open_nursery() as clients:
            refusals: list[NotReady] = []
            started = trio.current_time()

            async def waits() -> None:
                with pytest.raises(NotReady) as refused:
                    await actor.lease(request([2]))
                refusals.append(refused.value)

            clients.start_soon(waits)
            await until(lambda: actor.statistics().waiting == 1)
            assert actor.worker is not None
            os.kill(actor.worker.pid, signal.SIGKILL)
            assert isinstance(await outcome_of(running), WorkerLost)
        assert actor.state is State.RESTARTING
        assert trio.current_time() - started >= 0.6
        assert [refusal.reason for refusal in refusals] == ["worker_restarting"]
        assert refusals[0].retry_after_secs > 20  # type: ignore[operator]
        actor.load()  # somebody does not want to wait for the backoff
        await actor.wait_state(State.READY)


async def test_nobody_is_admitted_to_a_worker_known_to_be_ending() -> None:
    async with actors(MODEL, launcher=faulty("paced")) as (actor,):
        actor.load()
        await actor.wait_state(State.READY)
        assert actor.worker is not None
        actor.worker.kill("killed", "test")
        assert actor.state is State.READY
        assert await generate(actor, [5]) == counted(5, 8)  # it waited for the next one
        assert actor.restarts == 1


async def test_the_spare_is_used_and_replaced_and_may_die() -> None:
    launcher = faulty("")
    async with actors(MODEL, launcher=launcher, server=server_settings(spare_workers=1)) as (actor,):
        await until(lambda: len(actor.spares.idle()) == 1)
        (spare,) = actor.spares.idle()
        os.kill(spare.pid, signal.SIGKILL)
        await spare.ended.wait()
        await until(lambda: bool(actor.spares.idle()))
        (spare,) = actor.spares.idle()
        actor.load()
        await actor.wait_state(State.READY)
        assert actor.worker is spare
        await until(lambda: bool(actor.spares.idle()))
        assert launcher.started == 3


# Nothing left.


def in_use() -> tuple[int, int]:
    """Open descriptors and living tasks."""
    return len(os.listdir("/proc/self/fd")), trio.lowlevel.current_statistics().tasks_living


async def test_ten_loads_and_unloads_leave_nothing() -> None:
    launcher = faulty("")
    async with actors(MODEL, launcher=launcher, server=server_settings(spare_workers=1)) as (actor,):
        counts: list[tuple[int, int]] = []
        for number in range(10):
            actor.load()
            await actor.wait_state(State.READY)
            assert await generate(actor, [number], 2) == counted(number, 2)
            if number % 3 == 1:
                assert actor.worker is not None
                os.kill(actor.worker.pid, signal.SIGKILL)
                await actor.wait_state(State.RESTARTING, State.LOADING)
                await actor.wait_state(State.READY)
            actor.unload(5)
            await actor.wait_state(State.NOT_LOADED)
            await until(lambda: len(actor.spares.idle()) == 1)
            with trio.move_on_after(1):  # the last worker's tasks end a moment after its process
                await until(lambda: not counts or counts[0] == in_use())
            counts.append(in_use())
        assert len(set(counts)) == 1, counts
        living = [process for process in launcher.processes if process.returncode is None]
        assert len(living) == 1


async def test_a_failed_model_starts_nothing() -> None:
    launcher = faulty("import-dies")
    supervisor = evolve(QUICK, max_restarts=1)
    async with actors(MODEL, launcher=launcher, server=server_settings(supervisor=supervisor)) as (actor,):
        actor.load()
        await actor.wait_state(State.FAILED)
        started = launcher.started
        with trio.move_on_after(0.5):
            await actor.wait_state(State.LOADING)
        assert launcher.started == started == 2
        assert "SIGILL" in str(actor.spares.problem)


# Sinks.


async def test_a_broken_sink_is_the_fault_of_its_own_request() -> None:
    def broken() -> bool:
        raise KeyError("a fault of ours")

    async with actors(MODEL, launcher=faulty("")) as (actor,):
        actor.load()
        await actor.wait_state(State.READY)
        worker = actor.worker
        async with trio.open_nursery() as nursery:
            nursery.start_soon(generate, actor, [7], 50)
            lease = await actor.lease(request([8], 2000))

            async def wait() -> None:
                while True:  # the first tokens may have come before anybody waits: no sink is asked about those
                    await lease.wait(broken)

            with pytest.raises(KeyError):
                await wait()
            lease.close()
        assert await generate(actor, [9], 5) == counted(9, 5)
        assert actor.worker is worker
        assert actor.statistics().running == 0


async def test_steps_that_arrive_together_are_told_of_once() -> None:
    """A server that is behind sends larger pieces, not more of them."""
    async with actors(MODEL, launcher=faulty("")) as (actor,):
        actor.load()
        await actor.wait_state(State.READY)
        assert actor.worker is not None
        sock = actor.worker._socket
        assert sock is not None
        lease = await actor.lease(request([7], 50, n=2))
        told: list[list[int]] = []

        def all_steps_have_arrived() -> bool:
            try:
                waiting = list(FrameDecoder(FROM_WORKER).feed(sock.recv(2**20, socket.MSG_PEEK)))
            except BlockingIOError:
                return False
            return any(delta[2] is not None for message in waiting for delta in message[1])

        def sink() -> bool:
            told.append([len(sequence.tokens) for sequence in lease.sequences])
            if not lease.sequences[0].done:
                while not all_steps_have_arrived():
                    time.sleep(0.001)
            return not lease.sequences[0].done

        await lease.wait(sink)
        assert told[-1] == [50, 50]
        assert len(told) <= 2
        lease.close()
