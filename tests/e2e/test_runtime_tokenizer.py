"""Models without a tokenizer.json: their worker tokenizes, and nobody can tell."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.server import ServerProcess, model_source

MODELS = ("tiny-qwen3", "tiny-mistral", "tiny-llama3")
F32 = {"plugin_config": {"INFERENCE_PRECISION_HINT": "f32"}}
TEXTS = (
    "hello world",
    "a<|im_end|>b <think> x</think>",
    "日本語🙂👩‍👩‍👧 é",
    "  two  spaces\n\nand [INST] <s> </s>[/INST]",
    "x<|eot_id|><|start_header_id|>system",
    "<|im_start|><|im_start|",
)


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("twins")
    sources: dict[str, Path] = {}
    for name in MODELS:
        bare = folder / f"{name}-bare"
        shutil.copytree(model_source(name), bare)
        (bare / "tokenizer.json").unlink()
        sources[f"{name}-bare"] = bare
    entries = {**dict.fromkeys(MODELS, F32), **{f"{name}-bare": F32 for name in MODELS}}
    entries["tiny-mistral-bare"] = {**F32, "load": "on_demand"}
    with ServerProcess.serving(folder, entries, sources=sources) as server:
        server.wait_ready()
        yield server


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("text", TEXTS)
def test_ids_are_those_of_the_tokenizer_json(twins: ServerProcess, name: str, text: str) -> None:
    turns = [
        {"role": "user", "content": text},
        {"role": "assistant", "content": "ok"},
        {"role": "user", "content": text},
    ]
    for body in ({"prompt": text}, {"prompt": text, "parse_special": False}, {"messages": turns}):
        expected = twins.client.post("/tokenize", json={"model": name, **body}).json()
        got = twins.client.post("/tokenize", json={"model": f"{name}-bare", **body}).json()
        assert got == expected
        back = twins.client.post("/detokenize", json={"model": f"{name}-bare", "tokens": got["tokens"]}).json()
        assert back == twins.client.post("/detokenize", json={"model": name, "tokens": got["tokens"]}).json()


@pytest.mark.parametrize("name", MODELS)
def test_text_is_that_of_the_tokenizer_json(twins: ServerProcess, name: str) -> None:
    texts = [
        twins.client.post(
            "/v1/completions",
            json={"model": model, "prompt": "The quick", "max_tokens": 60, "temperature": 0, "ignore_eos": True},
        ).json()["choices"][0]["text"]
        for model in (name, f"{name}-bare")
    ]
    assert texts[0]
    assert texts[0] == texts[1]


def test_the_log_says_who_tokenizes(twins: ServerProcess) -> None:
    for name in MODELS:
        assert f"model {name}-bare is tokenized by its worker: the folder has no tokenizer.json" in twins.log
