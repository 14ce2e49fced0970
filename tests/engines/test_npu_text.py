"""The NPU's text engine on its real code path, its compiled parts placed on the CPU: no NPU is at hand."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from rustedvino.engines.faults import EngineFault
from rustedvino.engines.npu_text import NpuTextEngine
from rustedvino.engines.text import TextEngine
from tests.engines.test_text import generate, prompt, submit
from tests.engines.test_text import spec as plain_spec
from tests.support.actors import model_folder

MODEL = "tiny-qwen3-chat"
ON_CPU = {"NPUW_DEVICES": "CPU", "NPUW_ONLINE_PIPELINE": "NONE"}
MAX_PROMPT = 128
RESPONSE = 64
END = 1529
BOUND_SECS = 30.0


def spec(**changes: Any) -> dict[str, Any]:
    return (
        plain_spec(
            model_folder(MODEL), device="NPU", properties=ON_CPU, max_prompt_len=MAX_PROMPT, min_response_len=RESPONSE
        )
        | changes
    )


@pytest.fixture(scope="module")
def loaded() -> NpuTextEngine:
    engine = NpuTextEngine()
    engine.load(spec())
    return engine


@pytest.fixture
def engine(loaded: NpuTextEngine) -> Iterator[NpuTextEngine]:
    yield loaded
    for job in loaded._pending:
        job.cancelled = True
    run(loaded)


def run(engine: NpuTextEngine) -> dict[int, tuple[list[int], str]]:
    """Step until idle."""
    tokens: dict[int, list[int]] = {}
    ends: dict[int, str] = {}
    deadline = time.monotonic() + BOUND_SECS
    while engine.busy:
        assert time.monotonic() < deadline
        deltas, stats = engine.step()
        assert bool(deltas) == bool(stats)
        assert all(0 <= value <= 100 for value in stats[:1])
        for sequence, ids, finish, logprobs in deltas:
            assert sequence not in ends
            assert logprobs is None
            tokens.setdefault(sequence, []).extend(ids)
            if finish is not None:
                ends[sequence] = finish
    return {sequence: (tokens[sequence], ends[sequence]) for sequence in ends}


def one(engine: NpuTextEngine, ids: bytes, **options: Any) -> tuple[list[int], str]:
    submit(engine, 1, ids, **options)
    return run(engine)[1]


def wait_for_tokens(engine: NpuTextEngine, count: int) -> list[int]:
    """Step until the running sequence has so many tokens."""
    got: list[int] = []
    deadline = time.monotonic() + BOUND_SECS
    while len(got) < count:
        assert time.monotonic() < deadline
        for _, ids, finish, _ in engine.step()[0]:
            assert finish is None
            got += ids
    return got


def test_facts() -> None:
    facts = NpuTextEngine().load(spec(max_prompt_len=None, min_response_len=None, probe_strings=["hello"]))
    assert facts["context_tokens"] == facts["num_kv_blocks"] == 1024 + 128
    assert (facts["block_size"], facts["max_sequences"], facts["max_prompt_tokens"]) == (1, 1, 1024)
    assert facts["max_prompt_setting"] == "max_prompt_len"
    assert facts["probe_ids"][0]


def test_the_text_is_that_of_the_same_model_elsewhere(engine: NpuTextEngine) -> None:
    other = TextEngine()
    other.load(plain_spec(model_folder(MODEL)))
    for ids in (prompt(5, 6, 7), prompt(*range(3, 3 + MAX_PROMPT))):
        assert one(engine, ids) == generate(other, ids)[:2]


@pytest.mark.parametrize("most", [1, 2, 7, 64])
def test_exact_counts(engine: NpuTextEngine, most: int) -> None:
    tokens, end = one(engine, prompt(1, 2, 3), max_new_tokens=most)
    assert (len(tokens), end) == (most, "length")


@pytest.mark.parametrize("length", [1, 3, MAX_PROMPT])
def test_a_full_cache_ends_with_length(engine: NpuTextEngine, length: int) -> None:
    """Just as many tokens as the facts say, so that the server can count with them."""
    tokens, end = one(engine, prompt(*([5] * length)), max_new_tokens=1000)
    assert (len(tokens) + length, end) == (MAX_PROMPT + RESPONSE, "length")


def test_a_stop_token_ends_and_is_among_the_tokens_even_as_the_first(engine: NpuTextEngine) -> None:
    free, _ = one(engine, prompt(5, 6, 7))
    for place in (0, 3):
        tokens, end = one(engine, prompt(5, 6, 7), eos_token_ids=[END, free[place]], ignore_eos=False)
        assert (tokens, end) == (free[: free.index(free[place]) + 1], "stop")
    assert one(engine, prompt(5, 6, 7), eos_token_ids=free[:1], ignore_eos=True) == (free, "length")


def test_sampling_repeats_by_seed_and_differs_between_seeds(engine: NpuTextEngine) -> None:
    sampled = {"temperature": 1.3, "max_new_tokens": 20}
    first = one(engine, prompt(4, 4), seed=5, **sampled)
    assert one(engine, prompt(4, 4), seed=5, **sampled) == first
    assert one(engine, prompt(4, 4), seed=6, **sampled) != first
    assert one(engine, prompt(4, 4), top_k=5, top_p=0.9, min_p=0.1, repetition_penalty=1.2, seed=5, **sampled) != first


def test_constraints_hold(engine: NpuTextEngine) -> None:
    grammar = {"type": "grammar", "grammar": 'root ::= "{" [0-9]{2,6} "}"'}
    tokens, end = one(
        engine, prompt(5, 6), constraint=grammar, ignore_eos=False, eos_token_ids=[END], max_new_tokens=20
    )
    text = engine.call("decode", {"ids": tokens[:-1]})
    assert (text[0], text[-1], end, tokens[-1]) == ("{", "}", "stop", END)
    assert text[1:-1].isdecimal()


def test_tokens_come_one_by_one_and_a_cancel_ends_them(engine: NpuTextEngine) -> None:
    submit(engine, 1, prompt(5, 6, 7), max_new_tokens=180)
    wait_for_tokens(engine, 2)
    engine.cancel(1)
    engine.cancel(99)
    assert run(engine)[1] == ([], "cancelled")
    assert one(engine, prompt(5, 6, 7))[1] == "length"


def test_sequences_wait_for_each_other_and_may_be_given_up_before_they_run(engine: NpuTextEngine) -> None:
    alone = {number: one(engine, prompt(number, 5)) for number in (1, 3)}
    for number in (1, 2, 3):
        submit(engine, number, prompt(number, 5))
    engine.cancel(2)
    assert run(engine) == {**alone, 2: ([], "cancelled")}


def test_a_step_without_news_says_nothing_and_returns(engine: NpuTextEngine) -> None:
    assert engine.step() == ([], [])


@pytest.mark.parametrize(
    ("ids", "options", "said"),
    [
        (prompt(*([5] * (MAX_PROMPT + 1))), {}, r"129 tokens; .* 1 to 128 \(max_prompt_len\)"),
        (b"", {}, "0 tokens"),
        (prompt(1), {"logprobs": True}, "logprobs: the runtime gives no log-probabilities"),
        (prompt(1), {"max_new_tokens": 0}, "max_new_tokens"),
        (prompt(1), {"temperature": 1.0, "top_p": 0.0}, "top_p"),
    ],
)
def test_what_is_refused_leaves_the_engine_well(
    engine: NpuTextEngine, ids: bytes, options: dict[str, Any], said: str
) -> None:
    with pytest.raises((EngineFault, RuntimeError), match=said):
        submit(engine, 1, ids, **options)
    assert not engine.busy
    assert one(engine, prompt(1))[1] == "length"


def test_a_running_sequence_is_not_taken_twice(engine: NpuTextEngine) -> None:
    submit(engine, 1, prompt(1))
    with pytest.raises(EngineFault, match="running already"):
        submit(engine, 1, prompt(2))
    assert run(engine)[1][1] == "length"


def test_what_the_call_raises_comes_out_of_a_step(engine: NpuTextEngine) -> None:
    """A constraint that was not proven: the pipeline lives, but the worker ends, as everywhere."""
    bad = {"type": "grammar", "grammar": "root ::= nothing"}
    submit(engine, 1, prompt(5), constraint=bad, ignore_eos=False, eos_token_ids=[END])
    with pytest.raises(RuntimeError, match="nothing"):
        run(engine)
    engine._pending.clear()
    assert one(engine, prompt(1))[1] == "length"


def test_calls(engine: NpuTextEngine) -> None:
    ((ids,),) = (engine.call("encode", {"texts": ["hello there"], "add_special_tokens": False}),)
    assert engine.call("decode", {"ids": ids}) == "hello there"
    assert engine.call("vocabulary", {})["tokens"]
