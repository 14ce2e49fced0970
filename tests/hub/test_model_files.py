"""What folders say, whole and broken."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rustedvino.hub.model_files import KvShape, ModelProblem, _kv_shape, inspect_folder, read_json
from tests.support.actors import model_folder
from tests.support.model_folders import text_gen

Copy = Callable[[str], Path]


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_whole_folder() -> None:
    files = inspect_folder(model_folder("tiny-qwen3"))
    assert files.kind == "text_gen"
    assert files.family == "qwen3"
    assert files.vocab_size == 1536
    assert files.eos_token_ids[0] == 1529
    assert files.context_tokens is not None
    assert files.kv_shape == KvShape(layers=2, heads=2, head_dim=16)
    assert files.weights_bytes > 500_000


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("config.json", None, "config.json is missing"),
        ("config.json", b"", "config.json is not valid JSON"),
        ("config.json", b"\xff\xfe", "config.json is not valid JSON"),
        ("config.json", b"[1]", "config.json is not a JSON object"),
        ("config.json", b"[" * 100_000, "config.json is not valid JSON"),
        ("config.json", b'{"a": ' + b"9" * 10_000 + b"}", "config.json is not valid JSON"),
        ("config.json", b"version https://git-lfs.github.com/spec/v1", "config.json is a Git LFS pointer"),
        ("generation_config.json", b"nonsense", "generation_config.json is not valid JSON"),
        ("openvino_model.xml", None, "tiny-qwen3 is not complete: openvino_model.xml is missing: the model"),
        ("openvino_model.bin", None, "tiny-qwen3 is not complete: openvino_model.bin is missing: the weights"),
    ],
)
def test_a_broken_file_is_named(copy_of: Copy, name: str, content: bytes | None, said: str) -> None:
    path = copy_of("tiny-qwen3") / name
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModelProblem, match=said):
        inspect_folder(path.parent)


def test_all_missing_files_are_named_at_once(copy_of: Copy) -> None:
    folder = copy_of("tiny-qwen3")
    for name in ("openvino_model.bin", "tokenizer.json", "openvino_tokenizer.xml"):
        (folder / name).unlink()
    with pytest.raises(ModelProblem, match=r"tokenizer.json \(or openvino_tokenizer.xml\).*; openvino_model.bin"):
        inspect_folder(folder)


@pytest.mark.parametrize("content", ["{}", '{"architectures": 5}'])
def test_without_names_in_the_config_the_graph_tells_the_kind(copy_of: Copy, content: str) -> None:
    folder = copy_of("tiny-qwen3")
    (folder / "config.json").write_text(content)
    assert inspect_folder(folder).kind == "text_gen"
    (folder / "openvino_model.xml").unlink()
    with pytest.raises(ModelProblem, match="the kind of the model cannot be told from its files"):
        inspect_folder(folder)


def test_a_link_into_nothing_is_named(copy_of: Copy) -> None:
    folder = copy_of("tiny-qwen3")
    (folder / "extra.bin").symlink_to("/nonexistent/blob")
    with pytest.raises(ModelProblem, match=r"extra\.bin cannot be read"):
        inspect_folder(folder)


@pytest.mark.parametrize("name", ["nothing", "n" * 300])
def test_a_folder_that_does_not_exist(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelProblem, match=r"does not exist|cannot be read"):
        inspect_folder(tmp_path / name)


def test_a_file_that_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "config.json").mkdir()
    with pytest.raises(ModelProblem, match=r"config\.json cannot be read"):
        read_json(tmp_path / "config.json")


def test_ends_of_a_generation_come_from_the_generation_config_first(copy_of: Copy) -> None:
    folder = copy_of("tiny-qwen3")
    edit(folder / "generation_config.json", eos_token_id=[7, 8])
    assert inspect_folder(folder).eos_token_ids == (7, 8)
    edit(folder / "generation_config.json", eos_token_id=None)
    edit(folder / "config.json", eos_token_id=9)
    assert inspect_folder(folder).eos_token_ids == (9,)
    (folder / "generation_config.json").unlink()
    assert inspect_folder(folder).eos_token_ids == (9,)


@pytest.mark.parametrize("value", [-1, True, "2", 10**40, [-1, None], {}, 1.5])
def test_ends_that_are_no_token_ids_do_not_count(copy_of: Copy, value: Any) -> None:
    folder = copy_of("tiny-qwen3")
    edit(folder / "generation_config.json", eos_token_id=value)
    edit(folder / "config.json", eos_token_id=value)
    assert inspect_folder(folder).eos_token_ids == ()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=3,
)
SHAPE_KEYS = ("num_hidden_layers", "num_attention_heads", "hidden_size", "head_dim", "num_key_value_heads", "n_layer")


@settings(deadline=None)
@given(config=st.dictionaries(st.sampled_from(SHAPE_KEYS), json_values))
def test_a_shape_costs_something_or_is_unknown(config: dict[str, Any]) -> None:
    shape = _kv_shape(config)
    if shape is not None:
        for precision in ("", "u8", "f16", "f32"):
            assert shape.block_bytes(16, precision) > 0


@settings(deadline=None)
@given(
    config=st.dictionaries(st.sampled_from(["architectures", "text_config", "eos_token_id", *SHAPE_KEYS]), json_values)
)
def test_any_config_is_read(config: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.getbasetemp() / "any-config"
    if not folder.exists():
        text_gen(folder)
    (folder / "config.json").write_text(json.dumps(config))
    assert inspect_folder(folder).kind == inspect_folder(folder, "text_gen").kind == "text_gen"


@settings(deadline=None)
@given(config=st.dictionaries(st.sampled_from(["architectures", "model_type", "vision_config", "vocab"]), json_values))
def test_any_config_alone_is_refused(config: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.getbasetemp() / "any-config-alone"
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelProblem):
        inspect_folder(folder)
