"""Weights files that are not what their graphs point into."""

import shutil
from pathlib import Path

import pytest

from rustedvino.engines.faults import EngineFault
from rustedvino.engines.weights import check_weights
from tests.support.actors import model_folder


@pytest.mark.parametrize("name", ["tiny-qwen3", "tiny-llama3", "tiny-mistral", "rv-demo"])
def test_the_models_at_hand_are_whole(name: str) -> None:
    check_weights(model_folder(name))


@pytest.mark.parametrize("name", ["openvino_model", "openvino_tokenizer"])
def test_one_byte_short_or_gone_is_named(tmp_path: Path, name: str) -> None:
    for file in model_folder("tiny-qwen3").glob("openvino_*"):
        shutil.copy(file, tmp_path)
    weights = tmp_path / f"{name}.bin"
    data = weights.read_bytes()
    check_weights(tmp_path)
    weights.write_bytes(data[:-1])
    with pytest.raises(EngineFault, match=f"{name}.bin has {len(data) - 1} bytes where {name}.xml needs {len(data)}"):
        check_weights(tmp_path)
    weights.unlink()
    with pytest.raises(EngineFault, match=f"{name}.bin has 0 bytes"):
        check_weights(tmp_path)


def test_an_empty_graph_is_named(tmp_path: Path) -> None:
    (tmp_path / "openvino_model.xml").write_bytes(b"\n")
    with pytest.raises(EngineFault, match=r"openvino_model\.xml is empty"):
        check_weights(tmp_path)


def test_a_folder_without_graphs_has_nothing_wrong(tmp_path: Path) -> None:
    check_weights(tmp_path)
