"""Which pairs of models are refused before a worker is asked."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from rustedvino.config.types import SpeculativeSettings
from rustedvino.hub.drafts import check_draft_devices, inspect_draft
from rustedvino.hub.model_files import ModelProblem, inspect_folder
from tests.support.actors import model_folder
from tests.support.model_folders import embedding

TARGET = "tiny-qwen3-chat"
DRAFT = "tiny-qwen3-chat-draft"


def change(folder: Path, **fields: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_a_pair_that_fits() -> None:
    files = inspect_draft(
        inspect_folder(model_folder(TARGET)), SpeculativeSettings(draft_model=DRAFT), model_folder(DRAFT).parent
    )
    assert files.kv_shape is not None


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"vocab_size": 1 << 20}, "could propose tokens that the model does not know"),
        ({"vocab_size": None}, "does not say its vocab_size"),
        ({"num_experts": 8}, "mixture of experts"),
        ({"num_local_experts": 4}, "mixture of experts"),
        ({"model_type": "qwen3_moe"}, "mixture of experts"),
        ({"text_config": {"n_routed_experts": 64}}, "mixture of experts"),
        ({"num_hidden_layers": None}, "layers and heads"),
    ],
)
def test_drafts_that_do_not_fit(copy_of: Callable[[str], Path], fields: dict[str, object], said: str) -> None:
    folder = copy_of(DRAFT)
    change(folder, **fields)
    with pytest.raises(ModelProblem, match=rf"speculative.draft_model '{DRAFT}': .*{said}"):
        inspect_draft(inspect_folder(model_folder(TARGET)), SpeculativeSettings(draft_model=DRAFT), folder.parent)


def test_a_draft_of_another_kind(tmp_path: Path) -> None:
    embedding(tmp_path / DRAFT)
    with pytest.raises(ModelProblem, match="the draft is of kind embedding"):
        inspect_draft(inspect_folder(model_folder(TARGET)), SpeculativeSettings(draft_model=DRAFT), tmp_path)


@pytest.mark.parametrize(
    ("fields", "said"),
    [({"num_experts": 8}, "the model is a mixture of experts"), ({"vocab_size": None}, "of the model does not say")],
)
def test_targets_that_have_no_draft(copy_of: Callable[[str], Path], fields: dict[str, object], said: str) -> None:
    folder = copy_of(TARGET)
    change(folder, **fields)
    with pytest.raises(ModelProblem, match=said):
        inspect_draft(inspect_folder(folder), SpeculativeSettings(draft_model=DRAFT), model_folder(DRAFT).parent)


def test_a_vision_model_has_no_draft() -> None:
    with pytest.raises(ModelProblem, match="the model is of kind vision"):
        inspect_draft(
            inspect_folder(model_folder("tiny-vlm")), SpeculativeSettings(draft_model=DRAFT), model_folder(DRAFT).parent
        )


def test_a_draft_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelProblem, match=r"speculative\.draft_model 'nobody': the folder 'nobody' does not exist"):
        inspect_draft(inspect_folder(model_folder(TARGET)), SpeculativeSettings(draft_model="nobody"), tmp_path)


@pytest.mark.parametrize(
    ("device", "draft", "named"), [("NPU", "NPU", "device"), ("CPU", "NPU", "draft_device is NPU")]
)
def test_no_draft_on_an_npu(device: str, draft: str, named: str) -> None:
    with pytest.raises(ModelProblem, match=named):
        check_draft_devices(device, draft)
    check_draft_devices("CPU", "GPU.1")
