"""The prefix cache never changes a text: what is found in it is what would have been computed."""

import random
from typing import Any

import pytest

from rustedvino.engines.text import TextEngine
from tests.engines.test_text import prompt, spec, submit
from tests.support.actors import model_folder

EXACT = {
    "INFERENCE_PRECISION_HINT": "f32",
    "KV_CACHE_PRECISION": "f32",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
    "INFERENCE_NUM_THREADS": 1,
}
PROMPTS = 200
VOCABULARY = 1500
BLOCK = 32
AT_ONCE = 12
Request = tuple[list[int], int, int | None]
"""Prompt, new tokens, and after how many of them the sequence is given up."""


def requests(generator: random.Random) -> list[Request]:
    """Prompts that share heads of all lengths, within blocks and across them; some are given up, some come twice."""
    heads = [[generator.randrange(3, VOCABULARY) for _ in range(6 * BLOCK)] for _ in range(4)]
    made: list[Request] = []
    for _ in range(PROMPTS):
        head = generator.choice(heads)[: generator.choice([1, BLOCK - 1, BLOCK, BLOCK + 1, 70, 3 * BLOCK, 6 * BLOCK])]
        tail = [generator.randrange(3, VOCABULARY) for _ in range(generator.choice([0, 0, 1, 5, 40]))]
        cancel_after = generator.randrange(8) if generator.random() < 0.2 else None
        made.append((head + tail, generator.choice([1, 8, 20]), cancel_after))
        if len(made) > 1 and generator.random() < 0.2:  # an answer becomes part of a later prompt's head
            heads.append(made[-2][0])
    return made


def run(engine: TextEngine, wanted: list[Request], *, pool_blocks: int) -> list[tuple[list[int], str]]:
    """Join as slots and blocks allow, as the server does."""
    todo = list(enumerate(wanted))
    tokens: list[list[int]] = [[] for _ in wanted]
    ends = [""] * len(wanted)
    reserved: dict[int, int] = {}
    while todo or engine.busy:
        while todo and len(reserved) < AT_ONCE:
            number, (ids, most, _) = todo[0]
            blocks = -(-(len(ids) + most) // BLOCK)
            if sum(reserved.values()) + blocks > pool_blocks:
                break
            del todo[0]
            reserved[number] = blocks
            submit(engine, number, prompt(*ids), max_new_tokens=most)
            if wanted[number][2] == 0:
                engine.cancel(number)
        for number, ids_now, finish, _ in engine.step()[0]:
            tokens[number] += ids_now
            after = wanted[number][2]
            if finish is not None:
                ends[number] = finish
                del reserved[number]
            elif after is not None and len(tokens[number]) >= after:
                engine.cancel(number)
    return list(zip(tokens, ends, strict=True))


def loaded(**changes: Any) -> TextEngine:
    engine = TextEngine()
    engine.load(spec(model_folder("tiny-qwen3"), properties=EXACT, **changes))
    return engine


@pytest.mark.parametrize(("seed", "pool_blocks", "step_tokens"), [(1, 400, 256), (2, 24, 256), (3, 24, 48)])
def test_text_is_the_same_with_and_without(seed: int, pool_blocks: int, step_tokens: int) -> None:
    """In a roomy pool, in one that overwrites the cache all the time, and with prompts in pieces."""
    wanted = requests(random.Random(seed))
    without = run(loaded(num_kv_blocks=400, enable_prefix_caching=False), wanted, pool_blocks=400)
    assert {end for _, end in without} == {"length", "cancelled"}
    engine = loaded(num_kv_blocks=pool_blocks, max_num_batched_tokens=step_tokens)
    for _ in range(2):  # the second time nearly all is found, where the pool still holds it
        got = run(engine, wanted, pool_blocks=pool_blocks)
        for (tokens, end), (right, right_end), request in zip(got, without, wanted, strict=True):
            assert end == right_end
            if end == "cancelled":
                assert tokens[: len(right)] == right[: len(tokens)]
            else:
                assert tokens == right, request


def drain(engine: TextEngine) -> dict[int, list[int]]:
    """Step until idle; the tokens that came."""
    tokens: dict[int, list[int]] = {}
    while engine.busy:
        for number, ids, _, _ in engine.step()[0]:
            tokens.setdefault(number, []).extend(ids)
    return tokens


@pytest.mark.parametrize("guarded", [True, False])
def test_two_branches_of_one_conversation_at_once(guarded: bool) -> None:
    """Without the guard the runtime spoils the first; when it does not any more, the guard can go."""
    generator = random.Random(1)
    history, first, second = ([generator.randrange(3, VOCABULARY) for _ in range(size)] for size in (40, 5, 5))
    plain, caching = loaded(enable_prefix_caching=False), loaded()
    if not guarded:
        caching._guard = None
    results = []
    for engine in (plain, caching):
        submit(engine, 1, prompt(*history), max_new_tokens=1)
        drain(engine)
        for number, tail in ((2, first), (3, second)):
            submit(engine, number, prompt(*history, *tail), max_new_tokens=20)
        results.append(drain(engine))
    assert (results[0] == results[1]) is guarded


def test_branches_wait_for_each_other_and_can_be_given_up_meanwhile() -> None:
    engine = loaded()
    history = list(range(3, 43))
    submit(engine, 1, prompt(*history), max_new_tokens=1)
    drain(engine)
    for number in (2, 3, 4):
        submit(engine, number, prompt(*history, 500 + number), max_new_tokens=4)
    assert (len(engine._running), len(engine._waiting)) == (1, 2)
    engine.cancel(3)
    deltas, _ = engine.step()
    assert (3, [], "cancelled", None) in deltas
    assert {number: len(ids) for number, ids in drain(engine).items()} == {2: 4 - 1, 4: 4}


def test_equal_prompts_and_those_that_begin_alike_do_not_wait_without_need() -> None:
    engine = loaded()
    for number in range(4):
        submit(engine, number, prompt(*range(3, 53)), max_new_tokens=4)
        submit(engine, 10 + number, prompt(*range(3, 43), 900 + number), max_new_tokens=4)
    assert len(engine._running) == 8
    drain(engine)


@pytest.mark.parametrize("step_tokens", [93, 96, 100])
@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_cancel_within_a_prompt_leaves_nothing_half_computed_in_the_cache(step_tokens: int, steps: int) -> None:
    """The cancelled sequence stays until its prompt is processed, unless that has not begun."""
    generator = random.Random(2)
    ids = prompt(*(generator.randrange(3, VOCABULARY) for _ in range(300)))
    plain = loaded(enable_prefix_caching=False)
    submit(plain, 2, ids)
    engine = loaded(max_num_batched_tokens=step_tokens)
    submit(engine, 1, ids, max_new_tokens=50)
    for _ in range(steps):
        assert engine.step()[0] == []
    engine.cancel(1)
    ends = []
    while engine.busy:
        ends += engine.step()[0]
    assert ends == [(1, [], "cancelled", None)]
    submit(engine, 2, ids)
    assert drain(engine) == drain(plain)


def test_random_branches_and_joins() -> None:
    """More seeds, shorter: what the guard's rules were found with."""
    for seed in range(20, 24):
        wanted = requests(random.Random(seed))[:80]
        without = run(loaded(num_kv_blocks=400, enable_prefix_caching=False), wanted, pool_blocks=400)
        got = run(loaded(num_kv_blocks=48, max_num_batched_tokens=40), wanted, pool_blocks=48)
        for (tokens, end), (right, _) in zip(got, without, strict=True):
            assert tokens == right or (end == "cancelled" and tokens[: len(right)] == right[: len(tokens)])


def test_a_cached_prompt_takes_fewer_steps() -> None:
    """The cache is really used: the same prompt in pieces comes in one piece the second time."""
    engine = loaded(max_num_batched_tokens=64)
    ids = prompt(*(number * 7 % VOCABULARY + 3 for number in range(500)))
    quiet = []
    for number in (1, 2):
        submit(engine, number, ids, max_new_tokens=1)
        steps = 0
        while engine.busy:
            steps += not engine.step()[0]
        quiet.append(steps)
    assert quiet[0] >= 7
    assert quiet[1] == 0


def test_the_runtime_does_not_tell_how_much_was_found() -> None:
    """So usage says nothing of it. When this fails, prompt_tokens_details.cached_tokens can be told."""
    engine = loaded()
    submit(engine, 1, prompt(*range(3, 103)))
    handle = engine._running[1].handle
    while engine.busy:
        engine.step()
    metrics = handle.get_perf_metrics()
    parts = (metrics, metrics.raw_metrics, engine._pipeline.get_metrics(), handle)
    names = {name.lower() for part in parts for name in dir(part)}
    assert metrics.get_num_input_tokens() == 100
    assert not [name for name in names if "cached" in name or "prefix" in name or "reuse" in name]
