"""The text engine with a draft model: the same text in fewer steps, and what must not be asked of the runtime."""

import json
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai
import pytest

from rustedvino.engines import speculative
from rustedvino.engines.faults import EngineFault
from rustedvino.engines.speculative import SpeculativeEngine, check_vocabularies, open_pipeline
from rustedvino.engines.text import TextEngine, generation_config
from tests.engines.test_text import OPTIONS, generate, prompt, run, submit
from tests.engines.test_text import spec as plain_spec
from tests.support.actors import model_folder

MODEL = "tiny-qwen3-chat"
DRAFT = "tiny-qwen3-chat-draft"
EXACT = {
    "INFERENCE_PRECISION_HINT": "f32",
    "KV_CACHE_PRECISION": "f32",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
    "INFERENCE_NUM_THREADS": 1,
}
END_IDS = json.loads((model_folder(MODEL) / "generation_config.json").read_text())["eos_token_id"]
GRAMMARS = (
    'root ::= "{" [0-9]{1,12} "}"',
    'root ::= "[" ("true"|"false"|"null") ("," ("true"|"false"|"null")){0,6} "]"',
)


def spec(draft: str = DRAFT, *, proposals: int = 5, verify: bool = False, **changes: Any) -> dict[str, Any]:
    return plain_spec(model_folder(MODEL), properties=EXACT, block_size=32, context_tokens=2048) | {
        "draft": {
            "path": str(model_folder(draft)),
            "device": "CPU",
            "num_assistant_tokens": proposals,
            "verify": verify,
        },
        **changes,
    }


@pytest.fixture(scope="module")
def plain() -> TextEngine:
    engine = TextEngine()
    engine.load(spec(enable_prefix_caching=False, num_kv_blocks=512))
    return engine


@pytest.fixture(scope="module")
def loaded() -> SpeculativeEngine:
    engine = SpeculativeEngine()
    engine.load(spec(num_kv_blocks=512))
    return engine


@pytest.fixture
def engine(loaded: SpeculativeEngine) -> Iterator[SpeculativeEngine]:
    yield loaded
    for sequence in [*loaded._running, *(waiting.sequence for waiting in loaded._waiting)]:
        loaded.cancel(sequence)
    while loaded.busy:
        loaded.step()


def requests(generator: random.Random, count: int) -> list[tuple[bytes, dict[str, Any]]]:
    """Prompts of which many begin alike, with all that a greedy request may ask for."""
    heads = [[generator.randrange(3, 1500) for _ in range(90)] for _ in range(3)]
    made = []
    for _ in range(count):
        if generator.random() < 0.5:
            ids = [generator.randrange(3, 1500) for _ in range(generator.choice([1, 2, 31, 32, 33, 100]))]
        else:
            ids = generator.choice(heads)[: generator.choice([3, 10, 40, 90])]
        options: dict[str, Any] = {
            "max_new_tokens": generator.choice([1, 2, 3, 5, 6, 7, 17, 40]),
            "logprobs": generator.random() < 0.4,
        }
        if generator.random() < 0.6:
            options |= {"ignore_eos": False, "eos_token_ids": [*END_IDS, *generator.sample(range(3, 1500), 60)]}
            if generator.random() < 0.4:
                options |= {"constraint": {"type": "grammar", "grammar": generator.choice(GRAMMARS)}}
                options |= {"eos_token_ids": END_IDS, "max_new_tokens": 40}
        if generator.random() < 0.3:
            options |= {"repetition_penalty": 1.3}
        if generator.random() < 0.3:
            options |= {"frequency_penalty": 0.7, "presence_penalty": 0.4}
        made.append((prompt(*ids), options))
    return made


def run_joining(
    engine: TextEngine, wanted: list[tuple[bytes, dict[str, Any]]], *, at_once: int, cancel: dict[int, int]
) -> tuple[dict[int, tuple[list[int], str, list[float]]], int]:
    """Run all, a few joining before each step, at most ``at_once`` together; also the number of reads with tokens.

    ``cancel``: after so many tokens a sequence is given up.
    """
    todo = list(enumerate(wanted))
    tokens: dict[int, list[int]] = {number: [] for number, _ in todo}
    logprobs: dict[int, list[float]] = {number: [] for number, _ in todo}
    ends: dict[int, str] = {}
    live: set[int] = set()
    reads = 0
    while todo or engine.busy:
        for _ in range(3):
            if todo and len(live) < at_once:
                number, (ids, options) = todo.pop(0)
                submit(engine, number, ids, **options)
                live.add(number)
        for number, ids_now, finish, some in engine.step()[0]:
            reads += bool(ids_now)
            tokens[number] += ids_now
            logprobs[number] += some or []
            if finish is not None:
                ends[number] = finish
                live.remove(number)
            elif number in cancel and len(tokens[number]) >= cancel[number]:
                engine.cancel(number)
    return {number: (tokens[number], ends[number], logprobs[number]) for number in ends}, reads


@pytest.mark.parametrize(
    ("draft", "proposals", "seed"), [(DRAFT, 5, 1), (DRAFT, 1, 2), (MODEL, 3, 3), ("tiny-qwen3-draft", 8, 4)]
)
def test_every_request_gets_the_text_it_gets_without_a_draft(
    plain: TextEngine, draft: str, proposals: int, seed: int
) -> None:
    """Ends, counts, penalties, constraints, log-probabilities, joins, leaves and cancels; drafts good, bad, perfect."""
    generator = random.Random(seed)
    wanted = requests(generator, 60)
    expected, _ = run_joining(plain, wanted, at_once=60, cancel={})
    engine = SpeculativeEngine()
    engine.load(spec(draft, proposals=proposals, num_kv_blocks=512))
    cancel = {number: generator.randrange(1, 6) for number in range(60) if generator.random() < 0.2}
    got, reads = run_joining(engine, wanted, at_once=16, cancel=cancel)
    assert got.keys() == expected.keys()
    for number, (tokens, end, logprobs) in got.items():
        right, right_end, right_logprobs = expected[number]
        if end == "cancelled":
            assert tokens == right[: len(tokens)]
            continue
        assert (tokens, end) == (right, right_end), (number, wanted[number][1])
        assert logprobs == pytest.approx(right_logprobs, abs=2e-3)
    if draft == MODEL:
        assert sum(len(tokens) for tokens, _, _ in got.values()) > 1.5 * reads
    assert engine.step()[1][0] == 0.0  # nothing is left in the pool


def test_proposals_need_no_blocks_beyond_prompt_and_answer(plain: TextEngine) -> None:
    """The server reserves so many; one block less would not do."""
    generator = random.Random(7)
    wanted = [
        (prompt(*(generator.randrange(3, 1500) for _ in range(length))), {"max_new_tokens": 96 - length})
        for length in (1, 30, 31, 32, 33, 63, 64, 65)
    ]
    expected, _ = run_joining(plain, wanted, at_once=8, cancel={})
    engine = SpeculativeEngine()
    engine.load(spec(MODEL, num_kv_blocks=8 * 3))
    got, _ = run_joining(engine, wanted, at_once=8, cancel={})
    assert got == expected


def test_cancels_leave_no_blocks_behind_with_model_or_draft(engine: SpeculativeEngine, plain: TextEngine) -> None:
    small = SpeculativeEngine()
    small.load(spec(num_kv_blocks=6))
    right = generate(plain, prompt(*range(3, 103)), max_new_tokens=60)
    for turn in range(12):
        submit(small, turn, prompt(*range(3 + turn, 103)), max_new_tokens=60)
        for _ in range(turn % 4):
            small.step()
        small.cancel(turn)
        assert run(small)[turn][1] == "cancelled"
    assert generate(small, prompt(*range(3, 103)), max_new_tokens=60) == right


def test_a_prompt_waits_until_a_step_has_room_for_all_of_it(engine: SpeculativeEngine) -> None:
    for number in range(4):
        submit(engine, number, prompt(*range(3, 203)), max_new_tokens=30)
    engine.step()
    assert (len(engine._running), len(engine._waiting)) == (1, 3)
    engine.cancel(2)
    deltas, _ = engine.step()
    assert (2, [], "cancelled", None) in deltas
    assert {number: end for number, (_, end, _) in run(engine).items()} == {0: "length", 1: "length", 3: "length"}


def test_a_prompt_longer_than_a_step_gets_one_of_its_own(plain: TextEngine, engine: SpeculativeEngine) -> None:
    long = prompt(*(number * 7 % 1500 + 3 for number in range(900)))
    submit(engine, 1, prompt(5, 6), max_new_tokens=40)
    engine.step()
    submit(engine, 2, long, max_new_tokens=20)
    deltas, _ = engine.step()
    assert [ids for sequence, ids, _, _ in deltas if sequence == 2]  # its first tokens come with that step
    run(engine)
    assert generate(engine, long, max_new_tokens=20) == generate(plain, long, max_new_tokens=20)


def test_facts(engine: SpeculativeEngine) -> None:
    facts = SpeculativeEngine().load(spec(num_kv_blocks=40, max_num_seqs=3))
    assert facts["max_prompt_tokens"] == 40 * 32
    assert facts["max_sequences"] == 3
    assert set(facts["refuses"]) == {"temperature"}


@pytest.mark.parametrize(
    ("ids", "options", "said"),
    [
        (prompt(1), {"temperature": 0.7}, "temperature: a model with a draft generates greedily"),
        (prompt(*([5] * 2049)), {}, "1 to 2048 tokens, not 2049"),
        (b"", {}, "not 0"),
        (b"abcde", {}, "not 1"),
        (prompt(1), {"max_new_tokens": 0}, "max_new_tokens"),
        (prompt(1), {"frequency_penalty": 7.0}, "penalty"),
    ],
)
def test_what_is_refused_leaves_the_engine_well(
    engine: SpeculativeEngine, ids: bytes, options: dict[str, Any], said: str
) -> None:
    with pytest.raises((EngineFault, RuntimeError), match=said):
        submit(engine, 1, ids, **options)
    assert not engine.busy
    assert generate(engine, prompt(1))[1] == "length"


def test_a_waiting_sequence_is_not_taken_twice(engine: SpeculativeEngine) -> None:
    submit(engine, 1, prompt(1))
    with pytest.raises(EngineFault, match="running already"):
        submit(engine, 1, prompt(1))
    engine.step()
    with pytest.raises(EngineFault, match="running already"):
        submit(engine, 1, prompt(1))
    assert run(engine)[1][1] == "length"


# The load.


def test_a_load_verifies_the_draft() -> None:
    engine = SpeculativeEngine()
    engine.load(spec(verify=True))
    assert generate(engine, prompt(1))[1] == "length"


def test_texts_that_differ_fail_the_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pair is served by another model than the one it is compared with."""

    def other(folder: Path, scheduler: Any, its: dict[str, Any], properties: dict[str, Any]) -> Any:
        return open_pipeline(model_folder("tiny-qwen3"), scheduler, its, properties)

    monkeypatch.setattr(speculative, "open_pipeline", other)
    with pytest.raises(EngineFault, match="with and without the draft model tiny-qwen3-chat-draft differs from token"):
        speculative.verify(spec())


def test_vocabularies_must_be_the_same() -> None:
    check_vocabularies(model_folder(MODEL), model_folder(DRAFT))
    with pytest.raises(EngineFault, match=r"tiny-llama3 has another vocabulary than tiny-qwen3-chat: .* token \d+"):
        check_vocabularies(model_folder(MODEL), model_folder("tiny-llama3"))


@pytest.mark.parametrize("content", [None, b"", b"{}", b"\xff"])
def test_a_vocabulary_that_cannot_be_read(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(EngineFault, match=r"the vocabulary of .* cannot be read"):
        check_vocabularies(model_folder(MODEL), tmp_path)


def test_one_added_token_of_another_id_is_noticed(tmp_path: Path) -> None:
    shutil.copy(model_folder(DRAFT) / "tokenizer.json", tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    content["added_tokens"][-1]["content"] = "<|other|>"
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(EngineFault, match="another vocabulary"):
        check_vocabularies(model_folder(MODEL), tmp_path)


# What this version of the runtime does wrongly. When one of these fails, the runtime was mended, and the engine may be.


def scheduler(*, tokens: int, prefix_caching: bool) -> Any:
    config = genai.SchedulerConfig()
    config.cache_size = 0
    config.num_kv_blocks = 512
    config.max_num_batched_tokens = tokens
    config.enable_prefix_caching = prefix_caching
    return config


def raw(pipeline: Any, prompts: list[list[int]], options: list[dict[str, Any]]) -> list[list[int]]:
    """The tokens of a batch, nothing held back."""
    configs = [generation_config(OPTIONS | each) for each in options]
    for config in configs:
        config.num_assistant_tokens = 5
    tensors = [ov.Tensor(np.array([ids], dtype=np.int64)) for ids in prompts]
    return [result.m_generation_ids[0] for result in pipeline.generate(tensors, configs)]


def test_the_runtime_spoils_prompts_that_it_processes_in_pieces(plain: TextEngine) -> None:
    pipeline = open_pipeline(model_folder(MODEL), scheduler(tokens=24, prefix_caching=False), spec(), EXACT)
    generator = random.Random(3)
    prompts = [[generator.randrange(3, 1500) for _ in range(size)] for size in range(20, 60, 2)]
    got = raw(pipeline, prompts, [{}] * len(prompts))
    assert any(tokens != generate(plain, prompt(*ids))[0] for ids, tokens in zip(prompts, got, strict=True))


def test_the_runtime_spoils_the_prefix_cache() -> None:
    """The same requests, many of which begin alike, twice with it and twice without."""
    wanted = requests(random.Random(2), 60)

    class Caching(SpeculativeEngine):
        def _open(self, folder: Path, config: Any, its: dict[str, Any]) -> Any:
            config.enable_prefix_caching = True
            return super()._open(folder, config, its)

    results = []
    for kind in (SpeculativeEngine, Caching):
        engine = kind()
        engine.load(spec(num_kv_blocks=512))
        for _ in range(2):
            got, _ = run_joining(engine, wanted, at_once=16, cancel={})
            results.append([got[number][0] for number in range(len(wanted))])
    assert results[0] == results[1]
    assert results[2:] != results[:2]


def test_the_runtime_samples_from_another_distribution(plain: TextEngine) -> None:
    """The second token, the first that is proposed: its frequencies are far from those without a draft."""
    count = 300
    sampled = [{"temperature": 1.0, "top_k": 8, "seed": seed, "max_new_tokens": 3} for seed in range(2 * count)]
    pipeline = open_pipeline(model_folder(MODEL), scheduler(tokens=4096, prefix_caching=False), spec(), EXACT)
    drafted = Counter(tokens[1] for tokens in raw(pipeline, [[5, 6, 7]] * count, sampled[:count]))
    right, _ = run_joining(plain, [(prompt(5, 6, 7), options) for options in sampled], at_once=64, cancel={})
    halves = [Counter(right[number][0][1] for number in part) for part in (range(count), range(count, 2 * count))]
    assert distance(*halves) < 0.2
    assert distance(halves[0], drafted) > 0.4


def distance(first: Counter[int], second: Counter[int]) -> float:
    """Total variation between two samples of the same size."""
    return sum(abs(first[token] - second[token]) for token in first | second) / (2 * first.total())
