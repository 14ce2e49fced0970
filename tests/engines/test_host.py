"""The engine that becomes the kind that is loaded."""

from typing import Any

import pytest

from rustedvino.engines.faults import EngineFault
from rustedvino.engines.host import ModelEngine, runtime_versions
from tests.support.actors import EXACT, model_folder

SPEC: dict[str, Any] = {
    "kind": "text_gen",
    "path": str(model_folder("tiny-qwen3")),
    "device": "CPU",
    "properties": EXACT,
    "num_kv_blocks": 16,
    "max_num_batched_tokens": 64,
    "max_num_seqs": 2,
    "enable_prefix_caching": False,
    "warmup_prompt": [1],
    "probe_strings": [],
}


@pytest.mark.parametrize("kind", [None, "spaceship", 7])
def test_a_kind_that_is_none(kind: Any) -> None:
    with pytest.raises(EngineFault, match="cannot be loaded by this version"):
        ModelEngine().load({"kind": kind})


def test_before_a_load_there_is_nothing_to_do() -> None:
    engine = ModelEngine()
    assert not engine.busy
    engine.cancel(1)
    with pytest.raises(EngineFault, match="no model is loaded"):
        engine.submit(1, b"\x01\0\0\0", {})
    with pytest.raises(EngineFault, match="does not answer"):
        engine.call("encode", {"texts": []})


def test_one_load_per_process_and_a_failed_one_is_none() -> None:
    engine = ModelEngine()
    with pytest.raises(Exception, match="nonexistent"):
        engine.load(SPEC | {"path": "/nonexistent"})
    engine.load(SPEC)
    with pytest.raises(EngineFault, match="has a model already"):
        engine.load(SPEC)
    assert not engine.busy
    assert engine.call("encode", {"texts": ["a"], "add_special_tokens": False})


def test_versions() -> None:
    assert set(runtime_versions()) == {"openvino", "openvino_genai"}
