"""Actors with the real runtime on tiny models."""

import os
import random
import signal
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
import trio

from rustedvino.config.types import ModelSettings
from rustedvino.hub.actor import ModelActor
from rustedvino.hub.errors import Busy, HubError, NeverFits, NotReady, WorkerLost
from rustedvino.hub.lease import Lease
from rustedvino.hub.model_files import inspect_folder
from rustedvino.hub.states import State
from rustedvino.worker.protocol import Message
from tests.support.actors import (
    EXACT,
    actors,
    finish,
    first_token,
    generate,
    model_folder,
    reads,
    request,
    server_settings,
    until,
)

MODEL = "tiny-qwen3"
ALL_MODELS = ["tiny-qwen3", "tiny-qwen3-chat", "tiny-llama3", "tiny-mistral", "rv-demo"]


def pool(name: str, blocks: int) -> ModelSettings:
    """Settings that give a model exactly so many blocks."""
    shape = inspect_folder(model_folder(name)).kv_shape
    assert shape is not None
    return ModelSettings(kv_cache_gb=blocks * shape.block_bytes(32, "u8") / 2**30, plugin_config=EXACT)


async def ready(actor: ModelActor) -> None:
    actor.load()
    assert await actor.wait_state(State.READY, State.FAILED) is State.READY, actor.last_error


def watch_steps(actor: ModelActor) -> list[Message]:
    """Keep every step frame that the worker sends from now on."""
    assert actor.worker is not None
    handler = actor.worker.handler
    seen: list[Message] = []

    def handle(message: Message) -> None:
        if message[0] == "step":
            seen.append(message)
        handler(message)

    actor.worker.handler = handle
    return seen


@pytest.mark.parametrize("name", ALL_MODELS)
async def test_every_model_at_hand_alone_and_in_company(name: str) -> None:
    """Tokens do not depend on who else is in the batch; the pool is as large as was computed."""
    blocks = 100
    async with actors(name, settings=pool(name, blocks)) as (actor,):
        await ready(actor)
        shape = inspect_folder(model_folder(name)).kv_shape
        assert shape is not None
        assert actor.facts["num_kv_blocks"] == blocks
        assert actor.facts["kv_cache_bytes"] == blocks * shape.block_bytes(actor.facts["block_size"], "u8")
        assert actor.facts["probe_ids"][0]
        prompts = [[7 * number + 3, 5, 9, number] for number in range(6)]
        alone = [await generate(actor, prompt, 12) for prompt in prompts]
        assert all(len(tokens) == 12 for tokens in alone)
        together: dict[int, list[int]] = {}

        async def one(index: int) -> None:
            together[index] = await generate(actor, prompts[index], 12)

        async with trio.open_nursery() as clients:
            for index in range(6):
                clients.start_soon(one, index)
        assert [together[index] for index in range(6)] == alone
        assert actor.tally.tokens_generated == 2 * 6 * 12


@pytest.mark.parametrize("precision", ["f16", "f32"])
async def test_the_pools_bytes_in_other_precisions(precision: str) -> None:
    server = server_settings(kv_cache_precision=precision)
    async with actors(MODEL, server=server, settings=ModelSettings(plugin_config=EXACT)) as (actor,):
        await ready(actor)
        shape = inspect_folder(model_folder(MODEL)).kv_shape
        assert shape is not None
        assert actor.facts["kv_cache_bytes"] == actor.blocks_total * shape.block_bytes(32, precision)


@pytest.mark.parametrize(
    ("plugin", "keys", "values"),
    [
        ({"KV_CACHE_PRECISION": "f32"}, "f32", "f32"),
        ({"KEY_CACHE_PRECISION": "f32", "VALUE_CACHE_PRECISION": "f32"}, "f32", "f32"),
        ({"VALUE_CACHE_PRECISION": "u4"}, "u8", "u4"),
    ],
)
async def test_the_pools_bytes_in_precisions_of_the_model(plugin: dict[str, str], keys: str, values: str) -> None:
    model = ModelSettings(kv_cache_gb=0.01, plugin_config={**EXACT, **plugin})
    async with actors(MODEL, settings=model) as (actor,):
        await ready(actor)
        shape = inspect_folder(model_folder(MODEL)).kv_shape
        assert shape is not None
        block = shape.block_bytes(32, keys, values)
        assert actor.blocks_total == round(0.01 * 2**30) // block
        assert actor.facts["kv_cache_bytes"] == actor.blocks_total * block


async def test_forty_random_requests_on_a_pool_of_64_blocks() -> None:
    """All finish with exact counts; none is dropped, none is preempted; the pool is never promised twice."""
    chance = random.Random(4)
    sizes = [(chance.randint(1, 700), chance.randint(1, 400)) for _ in range(40)]
    server = server_settings(max_num_seqs=16, max_num_batched_tokens=256)
    async with actors(MODEL, settings=pool(MODEL, 64), server=server) as (actor,):
        await ready(actor)
        assert actor.blocks_total == 64
        steps = watch_steps(actor)
        most_reserved = 0
        lengths: list[tuple[int, int]] = []

        async def one(prompt_tokens: int, new_tokens: int) -> None:
            nonlocal most_reserved
            ids = [chance.randrange(1500) for _ in range(prompt_tokens)]
            lease = await actor.lease(request(ids, new_tokens))
            most_reserved = max(most_reserved, actor.statistics().blocks_reserved)
            sequence = await finish(lease)
            assert sequence.finish == "length"
            lengths.append((len(sequence.tokens), new_tokens))

        async with trio.open_nursery() as clients:
            for size in sizes:
                clients.start_soon(one, *size)
        assert len(lengths) == 40
        assert all(got == wanted for got, wanted in lengths)
        assert 32 < most_reserved <= 64
        assert actor.statistics().blocks_reserved == 0
        assert max(message[2][0] for message in steps) <= 100
        # Once a sequence has begun, every step gives it exactly one token: a preempted one would miss some.
        begun: dict[int, int] = defaultdict(int)
        for _, deltas, _ in steps:
            given = {number: len(ids) for number, ids, _, _ in deltas if ids}
            assert set(begun) <= set(given)
            assert all(count == 1 for count in given.values())
            for number, _, end, _ in deltas:
                assert end in (None, "length")
                begun[number] += 1
                if end is not None:
                    del begun[number]
        assert not begun


async def test_cancelling_the_only_request_frees_pool_and_slot() -> None:
    async with actors(MODEL, settings=pool(MODEL, 64), server=server_settings(max_num_seqs=1)) as (actor,):
        await ready(actor)
        for tokens_first in (False, True):
            lease = await actor.lease(request(range(1, 1200), 800))
            if tokens_first:
                await first_token(lease)
            lease.close()
            with trio.fail_after(1):
                await until(lambda: actor.statistics().running == 0)
            assert actor.statistics().blocks_reserved == 0
        assert actor.statistics().cache_usage_percent < 5
        with trio.fail_after(10):
            assert len(await generate(actor, range(900), 1100)) == 1100
        assert actor.restarts == 0


async def test_choices_of_one_prompt_and_seeds() -> None:
    async with actors(MODEL) as (actor,):
        await ready(actor)
        sampled = {"temperature": 1.0, "top_p": 1.0}
        lease = await actor.lease(request([4, 5, 6], 20, n=4, **sampled))
        for index, options in enumerate(lease.request.options):
            assert options["seed"] == 1
            assert len(lease.sequences) == 4
            assert lease.sequences[index].number != lease.sequences[index - 1].number
        await finish(lease)
        texts = [sequence.tokens for sequence in lease.sequences]
        assert all(len(tokens) == 20 for tokens in texts)
        assert texts[0] == texts[1] == texts[2] == texts[3]  # the same seed is the same text
        assert await generate(actor, [4, 5, 6], 20, seed=2, **sampled) != texts[0]
        assert await generate(actor, [4, 5, 6], 20, seed=1, **sampled) == texts[0]
        logs = await finish(await actor.lease(request([4, 5, 6], 5, logprobs=True)))
        assert len(logs.logprobs) == len(logs.tokens) == 5
        assert all(value <= 0 for value in logs.logprobs)


async def test_a_long_prefill_in_thirty_steps_is_no_stall_and_others_go_on() -> None:
    server = server_settings(max_num_batched_tokens=32, worker_stall_secs=2)
    async with actors(MODEL, server=server) as (actor,):
        await ready(actor)
        steps = watch_steps(actor)
        neighbour = await actor.lease(request([9, 8], 60))
        await first_token(neighbour)
        assert len(await generate(actor, range(1, 1001), 3)) == 3
        assert len((await finish(neighbour)).tokens) == 60
        assert len(steps) >= 30
        assert actor.restarts == 0


async def test_eight_streams_survive_two_kills_as_errors_and_the_model_as_ready() -> None:
    server = server_settings(max_num_seqs=8, spare_workers=1)
    async with actors(MODEL, "tiny-llama3", server=server) as both:
        actor, neighbour = both
        for one in both:
            await ready(one)
        expected = await generate(actor, [3, 3, 3], 10)
        other = await neighbour.lease(request([1, 2], 1500))
        for death in (1, 2):
            running: list[Lease] = [await actor.lease(request([number, 2], 2000)) for number in range(8)]
            for lease in running:
                await first_token(lease)
            results: list[list[int]] = []

            async def waits(results: list[list[int]]) -> None:
                results.append(await generate(actor, [3, 3, 3], 10))

            async with trio.open_nursery() as clients:
                for _ in range(3):
                    clients.start_soon(waits, results)
                await until(lambda: actor.statistics().waiting == 3)
                assert actor.worker is not None
                os.kill(actor.worker.pid, signal.SIGKILL)
                for lease in running:
                    with pytest.raises(WorkerLost):
                        await finish(lease)
            assert results == [expected] * 3
            assert (actor.state, actor.restarts) == (State.READY, death)
        assert len((await finish(other)).tokens) == 1500
        assert neighbour.restarts == 0


async def test_a_hundred_requests_for_an_on_demand_model_and_a_crash_in_its_load() -> None:
    settings = ModelSettings(load="on_demand", plugin_config=EXACT)
    server = server_settings(max_queue_depth=99)
    async with actors(MODEL, settings=settings, server=server) as (actor,):
        answers: list[list[int]] = []
        refused: list[HubError] = []

        async def one() -> None:
            try:
                answers.append(await generate(actor, [7, 7], 4))
            except HubError as error:
                refused.append(error)

        async with trio.open_nursery() as clients:
            for _ in range(100):
                clients.start_soon(one)
            await until(lambda: actor.worker is not None)
            assert actor.state is State.LOADING
            assert actor.worker is not None
            os.kill(actor.worker.pid, signal.SIGKILL)
        assert [type(error) for error in refused] == [Busy]
        assert len(answers) == 99
        assert all(answer == answers[0] for answer in answers)
        assert actor.restarts == 1


def cpu_ticks(pid: int) -> int:
    """Processor time of a process in clock ticks."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


async def test_an_idle_worker_uses_no_processor_time() -> None:
    async with actors(MODEL) as (actor,):
        await ready(actor)
        await generate(actor, [1, 2, 3], 5)
        cancelled = await actor.lease(request([1, 2], 1000))
        await first_token(cancelled)
        cancelled.close()
        await until(lambda: actor.statistics().running == 0)
        pid = actor.statistics().worker_pid
        assert pid is not None
        before = cpu_ticks(pid)
        await trio.sleep(1)  # the subject is what an idle second costs
        assert cpu_ticks(pid) - before <= 1


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("openvino_model.bin", b"\x00" * 1000, "openvino_model.bin has 1000 bytes"),
        ("openvino_model.xml", b"", "openvino_model.xml is empty"),
        ("openvino_model.xml", b"<net>nonsense", ""),
        ("openvino_model.xml", None, "tiny-qwen3 is not complete: openvino_model.xml is missing"),
    ],
)
async def test_a_broken_model_fails_with_the_reason_and_no_restarts(
    tmp_path: Path, name: str, content: bytes | None, said: str
) -> None:
    folder = tmp_path / MODEL
    folder.mkdir()
    for file in model_folder(MODEL).iterdir():
        (folder / file.name).symlink_to(file)
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)

    async with actors(MODEL, settings=ModelSettings(), prepare=reads(folder)) as (actor,):
        actor.load()
        assert await actor.wait_state(State.READY, State.FAILED) is State.FAILED
        assert said in str(actor.last_error)
        assert actor.restarts == 0
        with pytest.raises(NotReady) as refused:
            await actor.lease(request([1]))
        assert str(actor.last_error) in refused.value.message


async def test_a_prompt_beyond_the_pool_never_reaches_the_engine() -> None:
    async with actors(MODEL, settings=pool(MODEL, 16)) as (actor,):
        await ready(actor)
        steps = watch_steps(actor)
        with pytest.raises(NeverFits):
            await actor.lease(request(np.arange(600) % 100, 1))
        assert steps == []
