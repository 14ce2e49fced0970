"""Sampling by what the model's own file says, and log-probabilities in the shapes of both APIs."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.answers import chat_body, completion_body, expect_ok, stream_chunks, streamed_text, whole_text
from tests.support.server import F32, ServerProcess, model_source
from tests.support.template_models import link_model

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
FILES: dict[str, dict[str, Any]] = {
    "samples": {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 20},
    "greedy": {"do_sample": False},
    "says-nothing": {},
}


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One model with three different generation_config.json."""
    folder = tmp_path_factory.mktemp("sampled")
    template = (model_source("tiny-qwen3") / "chat_template.jinja").read_text()
    for name, content in FILES.items():
        link_model(folder / "models" / name, template)
        path = folder / "models" / name / "generation_config.json"
        kept = {key: value for key, value in json.loads(path.read_text()).items() if key.endswith("_token_id")}
        path.unlink()
        path.write_text(json.dumps({**kept, **content}))
    models: dict[str, Any] = {name: {**F32, "kv_cache_gb": 0.05} for name in FILES}
    with ServerProcess.serving(folder, models, num_threads=1, spare_workers=0) as process:
        yield process.wait_ready()


@pytest.mark.parametrize("name", list(FILES))
def test_temperature_decides_whatever_the_model_file_says(sampled: ServerProcess, name: str) -> None:
    """0 is greedy, anything above samples; a seed makes it repeat."""

    def texts(count: int, **fields: Any) -> list[str]:
        body = chat_body(name, "hello", max_tokens=12, ignore_eos=True, **fields)
        return [whole_text(expect_ok(sampled.post(CHAT, body))) for _ in range(count)]

    greedy = set(texts(3, temperature=0))
    assert len(greedy) == 1
    for temperature in (0.7, 2):
        assert len(set(texts(4, temperature=temperature))) > 1
        assert len(set(texts(3, temperature=temperature, seed=5))) == 1


def test_what_is_left_out_comes_from_the_model_file(sampled: ServerProcess) -> None:
    reports = {name: expect_ok(sampled.post(CHAT, chat_body(name, "x", max_tokens=1)))["sampling"] for name in FILES}
    assert (reports["samples"]["temperature"], reports["samples"]["top_k"]) == (0.6, 20)
    assert reports["greedy"]["temperature"] == 0
    alone = expect_ok(sampled.post(CHAT, chat_body("samples", "x", max_tokens=1, temperature=1.5)))["sampling"]
    assert (alone["temperature"], alone["top_p"], alone["top_k"]) == (1.5, 0.95, 20)


@pytest.mark.parametrize("text", ["482913", "漢字 🙂é", "👩‍👩‍👧"])
def test_log_probabilities_of_a_chat(server: ServerProcess, text: str) -> None:
    """Without `top_logprobs` too; tokens inside of a character are told by their bytes; streamed the same."""
    body = chat_body("rv-demo", f"Repeat after me: {text}", temperature=0, enable_thinking=False, logprobs=True)
    answer = expect_ok(server.post(CHAT, body))
    entries = answer["choices"][0]["logprobs"]["content"]
    for entry in entries:
        assert set(entry) == {"token", "logprob", "bytes", "top_logprobs"}
        assert entry["logprob"] <= 0
        assert entry["top_logprobs"] == []
    assert b"".join(bytes(entry["bytes"]) for entry in entries).decode() == whole_text(answer)
    chunks = stream_chunks(server, CHAT, body)
    assert streamed_text(chunks) == whole_text(answer)
    streamed = [
        entry
        for chunk in chunks
        for choice in chunk["choices"]
        if choice["logprobs"] is not None
        for entry in choice["logprobs"]["content"]
    ]
    assert [(entry["token"], entry["bytes"]) for entry in streamed] == [(e["token"], e["bytes"]) for e in entries]
    values = [[entry["logprob"] for entry in run] for run in (streamed, entries)]
    assert values[0] == pytest.approx(values[1], abs=1e-3)


def test_log_probabilities_of_a_completion(server: ServerProcess) -> None:
    body = completion_body("tiny-llama3", "x", temperature=0, max_tokens=20, ignore_eos=True, logprobs=0)
    answer = expect_ok(server.post(COMPLETIONS, body))
    told = answer["choices"][0]["logprobs"]
    assert set(told) == {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
    assert len(told["tokens"]) == len(told["token_logprobs"]) == len(told["text_offset"]) == 20
    assert all(value <= 0 for value in told["token_logprobs"])
    assert told["text_offset"] == sorted(told["text_offset"])
