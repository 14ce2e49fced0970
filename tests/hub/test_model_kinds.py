"""What folders hold, told from their files, and what they lack."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from rustedvino.config.types import ModelKind
from rustedvino.hub.model_files import ModelProblem, WrongKind, folder_report, inspect_folder
from rustedvino.hub.model_kinds import FORMS, markdown_table
from tests.support import model_folders as make
from tests.support.actors import model_folder
from tests.support.server import PACKAGED_MODELS, TINY_MODELS

DOCS = Path(__file__).parents[2] / "docs"
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:12ab\nsize 1234\n"

SHARED: dict[str, ModelKind] = {
    "all-minilm-l6-v2": "embedding",
    "piper-joe": "tts",
    "rv-demo": "text_gen",
    "rv-demo-draft": "text_gen",
    "tiny-embed": "embedding",
    "tiny-llama3": "text_gen",
    "tiny-mistral": "text_gen",
    "tiny-qwen3": "text_gen",
    "tiny-qwen3-chat": "text_gen",
    "tiny-qwen3-chat-draft": "text_gen",
    "tiny-qwen3-draft": "text_gen",
    "tiny-rerank": "reranking",
    "tiny-sd": "image_gen",
    "tiny-speecht5": "tts",
    "tiny-vits": "tts",
    "tiny-vlm": "vision",
    "tiny-whisper": "stt",
    "whisper-tiny.en": "stt",
}
"""Real exports of every kind, where RUSTEDVINO_TEST_MODELS names their folder; some are always at hand."""

MADE: dict[str, tuple[ModelKind, tuple[ModelKind, ...]]] = {
    "text_gen": ("text_gen", ("decision", "reranking")),
    "decision": ("decision", ("text_gen", "reranking")),
    "vision": ("vision", ("decision",)),
    "embedding": ("embedding", ()),
    "embedding_by_a_text_model": ("embedding", ()),
    "sentence_transformer": ("embedding", ()),
    "reranking": ("reranking", ()),
    "stt": ("stt", ()),
    "speecht5": ("tts", ()),
    "kokoro": ("tts", ()),
    "piper": ("tts", ()),
    "image_gen": ("image_gen", ()),
}
"""Kind of each folder that is made here, and the kinds that the setting may name for it beside that."""


@pytest.fixture
def folder(tmp_path: Path) -> Callable[[str], Path]:
    def maker(name: str) -> Path:
        place = tmp_path / name
        make.FOLDERS[name](place)
        return place

    return maker


def at_hand(name: str) -> Path:
    """The folder of a model, or skip."""
    roots = [TINY_MODELS, PACKAGED_MODELS]
    if "RUSTEDVINO_TEST_MODELS" in os.environ:
        roots.append(Path(os.environ["RUSTEDVINO_TEST_MODELS"]))
    place = next((root / name for root in roots if (root / name).is_dir()), None)
    if place is None:
        pytest.skip(f"{name} is not at hand")
    return place


@pytest.mark.parametrize("name", SHARED)
def test_real_exports(name: str) -> None:
    kind = SHARED[name]
    place = at_hand(name)
    files = inspect_folder(place)
    assert files.kind == kind
    assert files.weights_bytes > 100_000
    assert files.created > 0
    assert inspect_folder(place, kind).kind == kind
    assert folder_report(place, None) == {
        "complete": True,
        "kind": kind,
        "missing": [],
        "files": [],
        "problem": None,
    }


def test_every_model_of_the_repository_is_in_the_table() -> None:
    at_hand = {path.name for root in (TINY_MODELS, PACKAGED_MODELS) for path in root.iterdir() if path.is_dir()}
    assert at_hand <= set(SHARED)


@pytest.mark.parametrize("name", MADE)
def test_every_kind_of_folder(folder: Callable[[str], Path], name: str) -> None:
    kind, others = MADE[name]
    place = folder(name)
    assert inspect_folder(place).kind == kind
    for configured in get_args(ModelKind):
        if configured in (kind, *others):
            assert inspect_folder(place, configured).kind == configured
        else:
            with pytest.raises(WrongKind, match=rf'`kind` is "{configured}", but the files are of kind {kind}: '):
                inspect_folder(place, configured)


def test_every_kind_is_made_here() -> None:
    assert {kind for kind, _ in MADE.values()} == set(get_args(ModelKind))
    assert set(MADE) == set(make.FOLDERS)


def test_a_wrong_kind_is_told_by_the_graph(folder: Callable[[str], Path]) -> None:
    with pytest.raises(WrongKind) as refused:
        inspect_folder(folder("text_gen"), "stt")
    assert str(refused.value) == (
        '`kind` is "stt", but the files are of kind text_gen: openvino_model.xml takes input_ids, attention_mask, '
        "position_ids, beam_idx, keeps state and gives logits[?, ?, 100]"
    )


@pytest.mark.parametrize(
    ("inputs", "outputs", "state", "said", "allowed"),
    [
        (make.TEXT, {"logits": (-1, 2)}, False, 'if it is a reranker, set `kind` to "reranking"', "reranking"),
        (make.TEXT, {"logits": (-1, -1)}, False, 'if it is a reranker, set `kind` to "reranking"', "reranking"),
        (make.TEXT, {"logits": (-1, 5)}, False, "classifiers are not served", None),
        (make.TEXT, {"logits": (-1, -1, 100)}, False, 'export it for "text-generation-with-past"', None),
        (
            {**make.TEXT, "past_key_values.0.key": (-1, 2, -1, 8)},
            {"logits": (-1, -1, 100), "present.0.key": (-1, 2, -1, 8)},
            False,
            'export it for "text-generation-with-past"',
            None,
        ),
    ],
)
def test_graphs_of_which_no_kind_can_be_told(
    folder: Callable[[str], Path],
    inputs: make.Shapes,
    outputs: make.Shapes,
    state: bool,
    said: str,
    allowed: ModelKind | None,
) -> None:
    place = folder("reranking")
    make.write_graph(place / "openvino_model.xml", inputs, outputs, state=state)
    with pytest.raises(ModelProblem, match="the kind of the model cannot be told from its files") as refused:
        inspect_folder(place)
    assert said in str(refused.value)
    assert "openvino_model.xml takes input_ids" in str(refused.value)
    for kind in get_args(ModelKind):
        if kind == allowed:
            assert inspect_folder(place, kind).kind == kind
        else:
            with pytest.raises(WrongKind):
                inspect_folder(place, kind)


def test_labels_that_the_graph_does_not_fix_are_those_of_the_config(folder: Callable[[str], Path]) -> None:
    place = folder("reranking")
    make.write_graph(place / "openvino_model.xml", make.TEXT, {"logits": (-1, -1)})
    make.write_json(place / "config.json", id2label={"0": "LABEL_0"})
    assert inspect_folder(place).kind == "reranking"


def test_an_encoder_for_text_is_not_whisper(folder: Callable[[str], Path]) -> None:
    place = folder("stt")
    make.write_graph(place / "openvino_encoder_model.xml", make.TEXT, {"last_hidden_state": (-1, -1, 8)})
    with pytest.raises(WrongKind, match="models that turn text into text with an encoder are not served"):
        inspect_folder(place, "stt")


def test_an_unknown_graph_is_what_the_setting_says(folder: Callable[[str], Path]) -> None:
    place = folder("embedding")
    make.write_graph(place / "openvino_model.xml", {"pixel_values": (-1, 3, 8, 8)}, {"image_embeds": (-1, 8)})
    with pytest.raises(ModelProblem, match=r"set `kind` \(openvino_model\.xml takes pixel_values and gives image_e"):
        inspect_folder(place)
    assert inspect_folder(place, "embedding").kind == "embedding"


@pytest.mark.parametrize("name", [name for name in MADE if name not in ("piper", "image_gen", "decision")])
def test_without_graphs_names_decide_and_the_missing_is_named(folder: Callable[[str], Path], name: str) -> None:
    """A download of the JSON files alone. What a text model by name is, they cannot tell, except by other files."""
    place = folder(name)
    graphs = sorted(path.name for path in place.glob("openvino_*.xml"))
    for path in [*place.glob("*.xml"), *place.glob("*.bin")]:
        path.unlink()
    kind = "text_gen" if name == "embedding_by_a_text_model" else MADE[name][0]
    report = folder_report(place, None)
    assert (report["complete"], report["kind"]) == (False, kind)
    expected = {file for graph in graphs for file in (graph, graph.replace(".xml", ".bin"))}
    if kind in ("text_gen", "embedding", "reranking", "vision"):
        expected -= {"openvino_detokenizer.xml", "openvino_detokenizer.bin"}
    if kind == "tts":
        expected = {file for file in expected if "tokenizer" not in file or file.startswith("openvino_tokenizer")}
    if kind == "text_gen":
        expected -= {"openvino_tokenizer.xml", "openvino_tokenizer.bin"}
        expected.add("tokenizer.json (or openvino_tokenizer.xml)")
    assert set(report["missing"]) == expected
    for entry in report["files"]:
        assert f"{entry['file']} {entry['reason']}" in report["problem"]


NEEDED = [
    ("text_gen", "openvino_model.xml", "the model"),
    ("text_gen", "openvino_model.bin", "the weights of openvino_model.xml"),
    ("text_gen", "config.json", "it describes the model"),
    ("vision", "openvino_text_embeddings_model.xml", "the embeddings of text"),
    ("vision", "openvino_vision_embeddings_model.bin", "the weights of openvino_vision_embeddings_model.xml"),
    ("vision", "preprocessor_config.json", "how images are prepared"),
    ("vision", "openvino_tokenizer.xml", "the tokenizer of the runtime"),
    ("embedding", "openvino_tokenizer.xml", "the tokenizer of the runtime"),
    ("embedding", "openvino_tokenizer.bin", "the weights of openvino_tokenizer.xml"),
    ("reranking", "config.json", "it describes the model"),
    ("stt", "generation_config.json", "the tokens of languages and tasks"),
    ("stt", "openvino_decoder_model.xml", "the decoder"),
    ("stt", "openvino_detokenizer.xml", "for texts"),
    ("speecht5", "openvino_postnet.xml", "a part of the model"),
    ("speecht5", "openvino_encoder_model.bin", "the weights of openvino_encoder_model.xml"),
    ("kokoro", "openvino_model.bin", "the weights of openvino_model.xml"),
    ("piper", "en_US-joe.onnx", "a voice"),
    ("image_gen", "unet/openvino_model.xml", "a part of the model"),
    ("image_gen", "unet/openvino_model.bin", "the weights of unet/openvino_model.xml"),
    ("image_gen", "vae_decoder/config.json", "the decoder of images"),
    ("image_gen", "scheduler/scheduler_config.json", "the scheduler"),
    ("image_gen", "tokenizer/openvino_tokenizer.xml", "the tokenizer of the runtime"),
]


@pytest.mark.parametrize(("name", "file", "purpose"), NEEDED)
def test_a_file_that_is_missing_empty_or_a_pointer(
    folder: Callable[[str], Path], name: str, file: str, purpose: str
) -> None:
    place, kind = folder(name), MADE[name][0]
    path = place / file
    path.unlink()
    report = folder_report(place, kind)
    assert (report["complete"], report["missing"]) == (False, [file])
    assert report["files"][0]["reason"].startswith("is missing: ")
    assert purpose in report["files"][0]["reason"]
    assert file in str(report["problem"])
    path.write_bytes(b"")
    assert "is empty" in str(folder_report(place, kind)["problem"]) or file == "config.json"
    path.write_bytes(LFS)
    report = folder_report(place, kind)
    assert report["complete"] is False
    assert f"{path.name} is a Git LFS pointer" in str(report["problem"])


def test_weights_that_are_cut_short(folder: Callable[[str], Path]) -> None:
    place = folder("text_gen")
    (place / "openvino_model.bin").write_bytes(b"cut")
    report = folder_report(place, None)
    assert report["files"] == [
        {"file": "openvino_model.bin", "reason": "has 3 bytes where openvino_model.xml needs 16: it is truncated"}
    ]


def test_parts_of_one_family(folder: Callable[[str], Path]) -> None:
    """Without this part the runtime's process dies at load."""
    place = folder("vision")
    make.write_json(place / "config.json", model_type="qwen2_vl")
    merger = "openvino_vision_embeddings_merger_model"
    assert folder_report(place, None)["missing"] == [f"{merger}.xml", f"{merger}.bin"]


@pytest.mark.parametrize("kind", get_args(ModelKind))
def test_an_empty_folder_names_what_the_setting_needs(tmp_path: Path, kind: ModelKind) -> None:
    assert folder_report(tmp_path, None)["problem"] == "config.json is missing"
    report = folder_report(tmp_path, kind)
    assert (report["complete"], report["kind"]) == (False, kind)
    assert report["missing"]


def test_a_tokenizer_of_either_form_is_enough_for_text(folder: Callable[[str], Path]) -> None:
    place = folder("text_gen")
    for name in ("openvino_tokenizer", "openvino_detokenizer"):
        for suffix in ("xml", "bin"):
            (place / f"{name}.{suffix}").unlink()
    (place / "tokenizer.json").write_text("{}")
    assert inspect_folder(place).kind == "text_gen"
    (place / "tokenizer.json").write_text("")
    with pytest.raises(ModelProblem, match=r"tokenizer\.json is empty"):
        inspect_folder(place)


def test_a_graph_that_cannot_be_read_is_named_with_the_rest(folder: Callable[[str], Path]) -> None:
    place = folder("text_gen")
    (place / "openvino_model.xml").write_text("<net>")
    (place / "openvino_tokenizer.xml").unlink()
    (place / "openvino_tokenizer.bin").unlink()
    assert folder_report(place, None)["missing"] == [
        "tokenizer.json (or openvino_tokenizer.xml)",
        "openvino_model.xml",
    ]


@pytest.mark.parametrize("content", ["[]", "{", ""])
def test_a_decision_file_must_be_an_object(folder: Callable[[str], Path], content: str) -> None:
    place = folder("decision")
    (place / "decision.json").write_text(content)
    with pytest.raises(ModelProblem, match=r"decision\.json is not"):
        inspect_folder(place)
    assert inspect_folder(place, "text_gen").kind == "text_gen"


def test_a_real_model_without_its_config_is_known_and_incomplete(tmp_path: Path) -> None:
    place = tmp_path / "m"
    shutil.copytree(model_folder("tiny-qwen3"), place)
    (place / "config.json").unlink()
    report = folder_report(place, None)
    assert (report["kind"], report["missing"]) == ("text_gen", ["config.json"])


def test_the_table_of_the_page_is_the_one_in_use() -> None:
    page = (DOCS / "MODELS.md").read_text()
    shown = page.split("<!-- forms table -->\n")[1].split("\n<!-- end -->")[0]
    assert shown == markdown_table(), "run python -m rustedvino.hub.model_kinds and paste its output"
    assert len({form.name for form in FORMS}) == len(FORMS)
