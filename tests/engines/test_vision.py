"""The vision engine alone, on a tiny random model of the Qwen2-VL shape: what it says depends on what it sees."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rustedvino.engines.faults import EngineFault
from rustedvino.engines.vision import VisionEngine
from rustedvino.text.image_tags import image_tag
from rustedvino.text.image_tokens import image_grid, read_preprocessor

MODEL = Path(__file__).parents[1] / "models" / "tiny-vlm"
GRID = image_grid(*read_preprocessor(MODEL))
BLOCKS = 200


@pytest.fixture(scope="module")
def engine() -> Iterator[VisionEngine]:
    engine = VisionEngine()
    facts = engine.load(
        {
            "path": str(MODEL),
            "device": "CPU",
            "properties": {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"},
            "num_kv_blocks": BLOCKS,
            "max_num_batched_tokens": 64,
            "max_num_seqs": 32,
            "enable_prefix_caching": True,
            "warmup_prompt": [0],
            "probe_strings": ["hello", ""],
        }
    )
    assert facts["image_tokens"] == "computed"
    assert facts["block_size"] == 32
    assert facts["probe_ids"][1] == []
    yield engine
    assert not engine.busy


def noise(seed: int, width: int = 84, height: int = 56) -> dict[str, Any]:
    data = np.random.default_rng(seed).integers(0, 256, width * height * 3, dtype=np.uint8).tobytes()
    return {"width": width, "height": height, "data": data}


def prompt(*parts: str) -> str:
    return f"<|im_start|>user\n{''.join(parts)}<|im_end|>\n<|im_start|>assistant\n"


def options(text: str, images: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    return {
        "prompt_text": text,
        "images": images,
        "prompt_tokens": 10**6,
        "max_new_tokens": 8,
        "eos_token_ids": [602],
        "ignore_eos": True,
        "logprobs": False,
        "temperature": 0.0,
        "repetition_penalty": 1.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        **changes,
    }


Ended = tuple[list[int], str]


def run(engine: VisionEngine, *requests: dict[str, Any]) -> list[Ended]:
    """Run requests as one batch; returns tokens and finish of each."""
    for number, request in enumerate(requests):
        engine.submit(number, b"", request)
    tokens: dict[int, list[int]] = {number: [] for number in range(len(requests))}
    finishes: dict[int, str] = {}
    while engine.busy:
        deltas, _ = engine.step()
        for number, ids, finish, _ in deltas:
            tokens[number] += ids
            if finish is not None:
                finishes[number] = finish
    return [(tokens[number], finishes[number]) for number in range(len(requests))]


def test_text_alone(engine: VisionEngine) -> None:
    ((tokens, finish),) = run(engine, options(prompt("hello"), []))
    assert len(tokens) == 8
    assert finish == "length"


def test_the_answer_depends_on_the_image(engine: VisionEngine) -> None:
    text = prompt(image_tag(0), "hello")
    answers = run(engine, *(options(text, [noise(seed)]) for seed in range(4)), options(prompt("hello"), []))
    assert len({tuple(tokens) for tokens, _ in answers}) == 5


def test_images_are_taken_in_the_order_of_their_tags(engine: VisionEngine) -> None:
    first, second = noise(1), noise(2)
    ordered = prompt(image_tag(0), "a", image_tag(1))
    swapped = prompt(image_tag(1), "a", image_tag(0))
    answers = run(
        engine,
        options(ordered, [first, second], max_new_tokens=16),
        options(ordered, [second, first], max_new_tokens=16),
        options(swapped, [second, first], max_new_tokens=16),
    )
    assert answers[0] != answers[1]
    assert answers[0] == answers[2]


def test_an_image_of_an_earlier_turn_is_seen(engine: VisionEngine) -> None:
    def conversation(seed: int) -> dict[str, Any]:
        text = prompt(image_tag(0), "what?") + "a thing<|im_end|>\n" + prompt("and now?", image_tag(1))
        return options(text, [noise(seed), noise(9)], max_new_tokens=16)

    one, other, again = run(engine, conversation(1), conversation(2), conversation(1))
    assert one != other
    assert one == again


def test_a_batch_gives_what_each_gives_alone(engine: VisionEngine) -> None:
    requests = [
        options(prompt("hello"), []),
        options(prompt(image_tag(0), "hello"), [noise(1)]),
        options(prompt("x", image_tag(0), "y", image_tag(1), "z"), [noise(2), noise(3, 200, 90)]),
    ]
    alone = [run(engine, request)[0] for request in requests]
    assert run(engine, *requests) == alone


@pytest.mark.parametrize("size", [(1, 1), (28, 28), (84, 56), (199, 1), (13, 250), (300, 200), (640, 480)])
def test_the_tokens_of_an_image_are_known_ahead(engine: VisionEngine, size: tuple[int, int]) -> None:
    assert GRID is not None
    run(engine, options(prompt("hello"), []), options(prompt(image_tag(0), "hello"), [noise(0, *size)]))
    plain, seen = (engine.call("input_tokens", {"sequence": number}) for number in (0, 1))
    assert seen == plain + GRID.tokens(*size) + 2


def test_more_tokens_than_were_counted_is_said(engine: VisionEngine, capfd: pytest.CaptureFixture[str]) -> None:
    run(engine, options(prompt("hello"), [], prompt_tokens=3))
    assert "3 were counted ahead" in capfd.readouterr().err


def test_unknown_sequences_have_no_count(engine: VisionEngine) -> None:
    with pytest.raises(EngineFault, match="has not ended lately"):
        engine.call("input_tokens", {"sequence": 12345})


def test_cancel_during_the_prompt_leaves_the_others_alone(engine: VisionEngine) -> None:
    other = options(prompt("hello"), [])
    (expected,) = run(engine, other)
    long = options(prompt(image_tag(0), "word " * 60), [noise(1, 224, 224)], max_new_tokens=50)
    engine.submit(1, b"", long)
    engine.submit(2, b"", other)
    deltas, _ = engine.step()  # 64 of about 300 prompt tokens
    assert all(number != 1 for number, *_ in deltas)
    engine.cancel(1)
    tokens: list[int] = []
    finishes: dict[int, str] = {}
    while engine.busy:
        for number, ids, finish, _ in [*deltas, *engine.step()[0]]:
            tokens += ids if number == 2 else []
            if finish is not None:
                finishes[number] = finish
        deltas = []
    assert finishes == {1: "cancelled", 2: "length"}
    assert (tokens, "length") == expected


def test_twenty_mixed_requests_at_once(engine: VisionEngine) -> None:
    requests = []
    for number in range(20):
        images = [noise(number + index, 28 * (1 + number % 4), 56) for index in range(number % 3)]
        text = prompt(f"request {number} ", *(f"{image_tag(index)} " for index in range(len(images))))
        requests.append(options(text, images, max_new_tokens=4 + number % 5))
    answers = run(engine, *requests)
    assert [finish for _, finish in answers] == ["length"] * 20
    assert [len(tokens) for tokens, _ in answers] == [4 + number % 5 for number in range(20)]


@pytest.mark.parametrize(
    ("text", "images"),
    [
        (prompt("no tag"), [noise(1)]),
        (prompt(image_tag(0)), []),
        (prompt(image_tag(0), image_tag(0)), [noise(1)]),
        (prompt(image_tag(1)), [noise(1)]),
        (prompt(image_tag(0)), [noise(1), noise(2)]),
        (prompt(image_tag(0)), [{**noise(1), "width": 0}]),
        (prompt(image_tag(0)), [{**noise(1), "data": b"\0" * 5}]),
        (prompt(image_tag(0)), [{"width": 0, "height": 0, "data": b""}]),
        ("", []),
        (prompt(image_tag(0), "<|image_pad|>"), [noise(1)]),
    ],
)
def test_what_does_not_fit_together_is_refused_and_harms_nothing(
    engine: VisionEngine, text: str, images: list[dict[str, Any]]
) -> None:
    with pytest.raises((EngineFault, RuntimeError)):
        engine.submit(0, b"", options(text, images))
    assert not engine.busy
    ((tokens, _),) = run(engine, options(prompt("hello"), []))
    assert len(tokens) == 8


def test_submit_asks_for_a_step_after_images_only(engine: VisionEngine) -> None:
    assert engine.submit(0, b"", options(prompt(image_tag(0)), [noise(1)]))
    assert not engine.submit(1, b"", options(prompt("hello"), []))
    while engine.busy:
        engine.step()


def test_log_probabilities_come_with_images_too(engine: VisionEngine) -> None:
    engine.submit(0, b"", options(prompt(image_tag(0)), [noise(1)], logprobs=True))
    values: list[float] = []
    while engine.busy:
        for _, ids, _, logprobs in engine.step()[0]:
            assert logprobs is not None
            assert len(ids) == len(logprobs)
            values += logprobs
    assert len(values) == 8
    assert all(value <= 0 for value in values)
