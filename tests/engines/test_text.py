"""The text engine alone: steps, cancels, ends, refusals."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openvino_genai as genai
import pytest

from rustedvino.engines.faults import EngineFault
from rustedvino.engines.text import TextEngine, generation_config
from tests.support.actors import EXACT, model_folder

OPTIONS: dict[str, Any] = {
    "max_new_tokens": 8,
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
}


def spec(folder: Path, **changes: Any) -> dict[str, Any]:
    return {
        "kind": "text_gen",
        "path": str(folder),
        "device": "CPU",
        "properties": {**EXACT, "KV_CACHE_PRECISION": "u8"},
        "num_kv_blocks": 64,
        "max_num_batched_tokens": 256,
        "max_num_seqs": 16,
        "enable_prefix_caching": True,
        "warmup_prompt": [5, 6],
        "probe_strings": ["hello", "", "ü"],
    } | changes


@pytest.fixture(scope="module")
def loaded() -> TextEngine:
    engine = TextEngine()
    engine.load(spec(model_folder("tiny-qwen3")))
    return engine


@pytest.fixture
def engine(loaded: TextEngine) -> Iterator[TextEngine]:
    yield loaded
    for sequence in list(loaded._running):
        loaded.cancel(sequence)
    while loaded.busy:
        loaded.step()


def prompt(*ids: int) -> bytes:
    return np.array(ids, "<i4").tobytes()


def submit(engine: TextEngine, sequence: int, ids: bytes, **options: Any) -> None:
    engine.submit(sequence, ids, OPTIONS | options)


def run(engine: TextEngine, bound: int = 5000) -> dict[int, tuple[list[int], str, list[float]]]:
    """Step until idle; tokens, finish and log-probabilities by sequence."""
    tokens: dict[int, list[int]] = {}
    logprobs: dict[int, list[float]] = {}
    ends: dict[int, str] = {}
    for _ in range(bound):
        if not engine.busy:
            break
        deltas, stats = engine.step()
        assert 0 <= stats[0] <= 100
        assert stats[1] >= 0
        for sequence, ids, finish, some in deltas:
            assert sequence not in ends
            tokens.setdefault(sequence, []).extend(ids)
            logprobs.setdefault(sequence, []).extend(some or [])
            if finish is not None:
                ends[sequence] = finish
    assert not engine.busy
    return {sequence: (tokens[sequence], ends[sequence], logprobs[sequence]) for sequence in ends}


def generate(engine: TextEngine, ids: bytes, **options: Any) -> tuple[list[int], str, list[float]]:
    submit(engine, 1, ids, **options)
    return run(engine)[1]


def test_facts_of_a_load(loaded: TextEngine) -> None:
    facts = TextEngine().load(spec(model_folder("tiny-llama3"), num_kv_blocks=32, probe_strings=["hello", ""]))
    assert (facts["block_size"], facts["num_kv_blocks"]) == (32, 32)
    assert facts["load_secs"] > 0
    assert facts["warmup_secs"] > 0
    assert facts["probe_ids"][0]
    assert facts["probe_ids"][1] == []


@pytest.mark.parametrize("most", [1, 2, 31, 32, 33, 100])
def test_exact_counts(engine: TextEngine, most: int) -> None:
    tokens, end, _ = generate(engine, prompt(1, 2, 3), max_new_tokens=most)
    assert (len(tokens), end) == (most, "length")


def test_sequences_join_and_leave_between_steps(engine: TextEngine) -> None:
    alone = {number: generate(engine, prompt(number, 5), max_new_tokens=5 * number)[0] for number in (1, 2, 3)}
    together: dict[int, list[int]] = {}
    for number in (1, 2, 3):
        submit(engine, number, prompt(number, 5), max_new_tokens=5 * number)
        for sequence, ids, _, _ in engine.step()[0]:
            together.setdefault(sequence, []).extend(ids)
    for sequence, (ids, end, _) in run(engine).items():
        assert end == "length"
        together[sequence] += ids
    assert together == alone


def test_a_stop_token_ends_and_is_among_the_tokens_even_as_the_first(engine: TextEngine) -> None:
    free = generate(engine, prompt(9, 9))[0]
    for place in (0, 3):
        stop = free[place]
        tokens, end, _ = generate(engine, prompt(9, 9), eos_token_ids=[1535, stop], ignore_eos=False)
        assert end == "stop"
        assert tokens == free[: free.index(stop) + 1]
    assert generate(engine, prompt(9, 9), eos_token_ids=free[:1], ignore_eos=True)[:2] == (free, "length")


def test_a_cancel_leaves_with_the_next_step_and_frees_the_pool(engine: TextEngine) -> None:
    submit(engine, 1, prompt(*range(1000)), max_new_tokens=500)
    submit(engine, 2, prompt(1), max_new_tokens=500)
    for _ in range(6):
        engine.step()
    engine.cancel(1)
    engine.cancel(1)
    engine.cancel(99)
    deltas, _ = engine.step()
    assert (1, [], "cancelled", None) in deltas
    assert engine.busy
    engine.cancel(2)
    deltas, stats = engine.step()
    assert deltas == [(2, [], "cancelled", None)]
    assert stats[0] == 0.0
    assert not engine.busy


def test_a_cancel_before_the_first_step(engine: TextEngine) -> None:
    submit(engine, 1, prompt(1, 2))
    engine.cancel(1)
    assert run(engine) == {1: ([], "cancelled", [])}


def test_what_does_not_fit_the_pool_is_reported_never_silent(engine: TextEngine) -> None:
    """The server does not let this happen; the engine still says so."""
    submit(engine, 1, prompt(*(number % 1500 for number in range(64 * 32 + 1))), max_new_tokens=4)
    assert run(engine)[1] == ([], "ignored", [])
    submit(engine, 2, prompt(*range(1000)), max_new_tokens=64 * 32)
    tokens, end, _ = run(engine)[2]
    assert end == "ignored"
    assert 0 < len(tokens) < 64 * 32
    assert generate(engine, prompt(1))[1] == "length"


def test_a_running_sequence_is_not_taken_twice_and_goes_on(engine: TextEngine) -> None:
    submit(engine, 1, prompt(1, 2), max_new_tokens=4)
    with pytest.raises(EngineFault, match="running already"):
        submit(engine, 1, prompt(3))
    assert len(run(engine)[1][0]) == 4
    assert generate(engine, prompt(1))[1] == "length"  # the number is free again


@pytest.mark.parametrize(
    ("ids", "options"),
    [
        (b"", {}),
        (b"abc", {}),
        (prompt(1), {"max_new_tokens": 0}),
        (prompt(1), {"max_new_tokens": -1}),
        (prompt(1), {"max_new_tokens": "x"}),
        (prompt(1), {"frequency_penalty": 7.0}),
        (prompt(1), {"temperature": 1.0, "top_p": 0.0}),
        (prompt(1), {"temperature": 1.0, "seed": -1}),
    ],
)
def test_what_is_refused_leaves_the_engine_well(engine: TextEngine, ids: bytes, options: dict[str, Any]) -> None:
    with pytest.raises((RuntimeError, ValueError, TypeError)):
        submit(engine, 1, ids, **options)
    assert 1 not in engine._running
    assert generate(engine, prompt(1))[1] == "length"


def test_prompts_are_little_endian_int32(engine: TextEngine) -> None:
    submit(engine, 1, b"\x05\x00\x00\x00\x00\x01\x00\x00")
    raw = run(engine)[1][0]
    assert raw == generate(engine, prompt(5, 256))[0]
    assert raw != generate(engine, prompt(5, 1))[0]


def test_log_probabilities_come_with_each_token_when_asked(engine: TextEngine) -> None:
    tokens, _, logprobs = generate(engine, prompt(4, 4), logprobs=True)
    assert len(logprobs) == len(tokens)
    assert all(value <= 0 for value in logprobs)
    assert generate(engine, prompt(4, 4))[2] == []


def test_sampling_repeats_by_seed_and_differs_between_seeds(engine: TextEngine) -> None:
    first = generate(engine, prompt(4, 4), temperature=1.5, max_new_tokens=20, seed=5)
    assert generate(engine, prompt(4, 4), temperature=1.5, max_new_tokens=20, seed=5) == first
    assert generate(engine, prompt(4, 4), temperature=1.5, max_new_tokens=20, seed=6) != first
    assert len(generate(engine, prompt(4), temperature=0.5, top_k=3, min_p=0.1, top_p=0.5)[0]) == 8


def test_chunked_prefill_gives_the_same_tokens_in_more_steps() -> None:
    ids = prompt(*(number * 7 % 1500 for number in range(500)))
    results = []
    for chunk in (512, 64):
        engine = TextEngine()
        engine.load(spec(model_folder("tiny-qwen3"), max_num_batched_tokens=chunk))
        submit(engine, 1, ids)
        quiet = 0
        while not engine.step()[0]:
            quiet += 1
        results.append((quiet, run(engine)[1][0]))
    assert results[0][1] == results[1][1]
    assert results[0][0] < 3 < 7 <= results[1][0]


def test_calls(engine: TextEngine) -> None:
    ((ids,), (raw,)) = (
        engine.call("encode", {"texts": ["hello there"], "add_special_tokens": special}) for special in (False, True)
    )
    assert ids
    assert raw[-len(ids) :] == ids
    assert engine.call("encode", {"texts": ["", "a"], "add_special_tokens": False})[0] == []
    assert engine.call("decode", {"ids": ids}) == "hello there"
    assert "<|im_end|>" in engine.call("decode", {"ids": [1529]})
    with pytest.raises(EngineFault, match="does not answer 'dance'"):
        engine.call("dance", {})


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("openvino_model.bin", b"short", "openvino_model.bin has 5 bytes"),
        ("openvino_model.xml", b" ", "openvino_model.xml is empty"),
    ],
)
def test_broken_weights_are_named_before_the_runtime_maps_them(
    tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    for file in model_folder("tiny-qwen3").iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / name).unlink()
    (tmp_path / name).write_bytes(content)
    with pytest.raises(EngineFault, match=said):
        TextEngine().load(spec(tmp_path))


def test_nothing_is_left_to_the_models_own_sampling_file() -> None:
    greedy = generation_config(OPTIONS)
    assert not greedy.do_sample
    assert greedy.max_new_tokens == 8
    sampled = generation_config(
        OPTIONS
        | {"temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "seed": 2**64 - 1, "eos_token_ids": [3, 4]}
    )
    assert sampled.do_sample
    assert sampled.rng_seed == 2**64 - 1
    assert (sampled.top_k, sampled.eos_token_id, sampled.stop_token_ids) == (5, 3, {3, 4})
    assert isinstance(sampled, genai.GenerationConfig)
