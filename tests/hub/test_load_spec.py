"""What a worker is told to load, from settings and files."""

from pathlib import Path
from typing import Any

import pytest

from rustedvino.config.types import ModelSettings
from rustedvino.hub.load_spec import load_spec
from rustedvino.hub.model_files import inspect_folder
from tests.support.actors import model_folder, server_settings

FILES = inspect_folder(model_folder("tiny-qwen3"))


def spec(
    device: str = "CPU", model: dict[str, Any] | None = None, cache_folder: Path | None = None, **server: Any
) -> dict[str, Any]:
    settings = ModelSettings(**(model or {}))
    return load_spec(
        FILES, None, settings, server_settings(**server), device, slots=4, kv_blocks=64, cache_folder=cache_folder
    )


@pytest.mark.parametrize(
    ("device", "model", "server", "expected"),
    [
        ("CPU", {}, {}, {"KV_CACHE_PRECISION": "u8"}),
        ("CPU", {}, {"kv_cache_precision": ""}, {}),
        ("NPU", {}, {}, {}),
        ("CPU", {}, {"num_threads": 3}, {"KV_CACHE_PRECISION": "u8", "INFERENCE_NUM_THREADS": 3}),
        ("CPU", {"num_threads": 2}, {"num_threads": 3}, {"KV_CACHE_PRECISION": "u8", "INFERENCE_NUM_THREADS": 2}),
        ("GPU.1", {"num_threads": 2}, {}, {"KV_CACHE_PRECISION": "u8"}),
        ("GPU", {"plugin_config": {"KV_CACHE_PRECISION": "f16"}}, {}, {"KV_CACHE_PRECISION": "f16"}),
    ],
)
def test_properties(device: str, model: dict[str, Any], server: dict[str, Any], expected: dict[str, Any]) -> None:
    assert spec(device, model, **server)["properties"] == expected


def test_the_compile_cache_is_named_where_there_is_one(tmp_path: Path) -> None:
    assert spec(cache_folder=tmp_path)["properties"]["CACHE_DIR"] == str(tmp_path)
    assert "CACHE_DIR" not in spec()["properties"]


def test_sizes_are_those_of_device_and_settings() -> None:
    cpu, gpu = spec(), spec("GPU")
    assert (cpu["block_size"], gpu["block_size"]) == (32, 16)
    assert cpu["max_num_batched_tokens"] < gpu["max_num_batched_tokens"]
    assert spec(model={"max_concurrent_streams": 3})["max_num_seqs"] == 3
    assert cpu["num_kv_blocks"] == 64
    assert cpu["draft"] is None
