"""Actors of models that run on other engines than the plain one: with a draft, and on an NPU."""

from typing import Any

import pytest
import trio

from rustedvino.config.types import ModelSettings, SpeculativeSettings
from rustedvino.hub.actor import ModelActor
from rustedvino.hub.errors import NeverFits, PromptTooLong, Unsupported
from rustedvino.hub.model_files import inspect_folder
from rustedvino.hub.states import State
from tests.support.actors import EXACT, actors, finish, first_token, generate, model_folder, request, server_settings

TARGET = "tiny-qwen3-chat"
DRAFT = "tiny-qwen3-chat-draft"
ON_CPU = {"NPUW_DEVICES": "CPU", "NPUW_ONLINE_PIPELINE": "NONE"}
SERVER = server_settings(models_dir=model_folder(DRAFT).parent)


def with_draft(draft: str = DRAFT, **changes: Any) -> ModelSettings:
    speculative = SpeculativeSettings(draft_model=draft, verify_on_load=False)
    return ModelSettings(plugin_config=EXACT, speculative=speculative, **changes)


def on_npu(**changes: Any) -> ModelSettings:
    return ModelSettings(**{"plugin_config": ON_CPU, "max_prompt_len": 128, "min_response_len": 64} | changes)


async def ready(actor: ModelActor) -> None:
    actor.load()
    assert await actor.wait_state(State.READY, State.FAILED) is State.READY, actor.last_error


async def refused(actor: ModelActor, kind: type[NeverFits], ids: list[int], **options: Any) -> NeverFits:
    with pytest.raises(kind) as caught:
        await actor.lease(request(ids, **options))
    return caught.value


async def test_with_a_draft_the_text_is_the_same() -> None:
    prompts = [[7 * number + 3, 5, 9, number] for number in range(4)]
    async with actors(TARGET) as (actor,):
        await ready(actor)
        right = [await generate(actor, ids, 12) for ids in prompts]
    async with actors(TARGET, server=SERVER, settings=with_draft()) as (actor,):
        await ready(actor)
        got: dict[int, list[int]] = {}

        async def one(index: int) -> None:
            got[index] = await generate(actor, prompts[index], 12)

        async with trio.open_nursery() as nursery:
            for index in range(4):
                nursery.start_soon(one, index)
        assert [got[index] for index in range(4)] == right
        assert (await refused(actor, Unsupported, [5], temperature=0.7)).field == "temperature"
        too_long = await refused(actor, PromptTooLong, [5] * (actor.facts["max_prompt_tokens"] + 1))
        assert too_long.code == "context_length_exceeded"


async def test_the_pool_is_shared_with_the_draft() -> None:
    shapes = [inspect_folder(model_folder(name)).kv_shape for name in (TARGET, DRAFT)]
    block_bytes = sum(shape.block_bytes(32, "u8") for shape in shapes if shape is not None)
    async with actors(TARGET, server=SERVER, settings=with_draft(kv_cache_gb=40 * block_bytes / 2**30)) as (actor,):
        await ready(actor)
        assert actor.blocks_total == 40


async def test_slots_added_while_a_draft_is_loaded_wait_for_the_next_load() -> None:
    """The engine's steps have room for the proposals of so many sequences."""
    async with actors(TARGET, server=SERVER, settings=with_draft(max_concurrent_streams=2)) as (actor,):
        await ready(actor)
        actor.settings = with_draft(max_concurrent_streams=9)
        assert actor.slots == 2


@pytest.mark.parametrize(
    ("draft", "said"),
    [("nobody", "speculative.draft_model 'nobody': the folder"), ("tiny-llama3", "another vocabulary than")],
)
async def test_a_draft_that_does_not_fit_fails_the_load(draft: str, said: str) -> None:
    async with actors(TARGET, server=SERVER, settings=with_draft(draft)) as (actor,):
        actor.load()
        await actor.wait_state(State.FAILED)
        assert said in (actor.last_error or "")


async def npu(actor: ModelActor) -> None:
    actor.device = "NPU"
    await ready(actor)


async def test_one_sequence_at_a_time_on_an_npu() -> None:
    async with actors(TARGET) as (actor,):
        await ready(actor)
        right = await generate(actor, [5, 6, 7], 12)
    async with actors(TARGET, settings=on_npu()) as (actor,):
        await npu(actor)
        assert (actor.slots, actor.blocks_total) == (1, 128 + 64)
        running = await actor.lease(request([5, 6, 7], 150))
        got: list[list[int]] = []

        async def second() -> None:
            got.append(await generate(actor, [5, 6, 7], 12))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(second)
            await first_token(running)
            assert actor.statistics().running == 1
            running.close()  # the second gets the slot when the first has gone
        assert got == [right]


async def test_limits_of_an_npu_are_told_by_name() -> None:
    async with actors(TARGET, settings=on_npu()) as (actor,):
        await npu(actor)
        error = await refused(actor, PromptTooLong, [5] * 129)
        assert "max_prompt_len" in error.message
        assert (error.code, error.field) == ("context_length_exceeded", "messages")
        assert (await refused(actor, NeverFits, [5], n=2)).field == "n"
        assert (await refused(actor, Unsupported, [5], logprobs=True)).field == "logprobs"
        for shrinkable in (True, False):
            sequence = await finish(await actor.lease(request([5] * 128, 5000, shrinkable=shrinkable)))
            assert (len(sequence.tokens), sequence.finish) == (64, "length")


async def test_an_npu_has_no_draft() -> None:
    async with actors(TARGET, server=SERVER, settings=with_draft()) as (actor,):
        actor.device = "NPU"
        actor.load()
        await actor.wait_state(State.FAILED)
        assert "speculative decoding does not run on an NPU" in (actor.last_error or "")


async def test_what_an_unloaded_model_could_not_do_is_asked_of_the_next_load() -> None:
    """Settings may have changed since: the answer of the last load says nothing."""
    async with actors(TARGET, server=SERVER, settings=with_draft(load="on_demand")) as (actor,):
        await ready(actor)
        await refused(actor, Unsupported, [5], temperature=0.7)
        actor.unload(1.0)
        await actor.wait_unloaded()
        actor.settings = ModelSettings(plugin_config=EXACT, load="on_demand")
        assert len(await generate(actor, [5], 4, temperature=0.7)) == 4
