"""Signatures of graphs, read from their files."""

from pathlib import Path

import pytest

from rustedvino.hub import graph as module
from rustedvino.hub.graph import Graph, read_graph
from rustedvino.hub.model_json import ModelProblem
from tests.support.actors import model_folder
from tests.support.model_folders import CAUSAL, WEIGHTS_BYTES, write_graph

LOGITS = {"logits": (-1, -1, 100)}


def test_a_real_graph() -> None:
    folder = model_folder("tiny-qwen3")
    assert read_graph(folder / "openvino_model.xml") == Graph(
        inputs={"input_ids": (-1, -1), "attention_mask": (-1, -1), "position_ids": (-1, -1), "beam_idx": (-1,)},
        outputs={"logits": (-1, -1, 1536)},
        has_state=True,
        weights_bytes=(folder / "openvino_model.bin").stat().st_size,
    )


@pytest.mark.parametrize("older", [False, True])
def test_outputs_have_their_names_by_themselves_or_by_the_edges(tmp_path: Path, older: bool) -> None:
    path = tmp_path / "openvino_model.xml"
    outputs = {"last_hidden_state": (-1, -1, 8), "pooler_output": (-1, 8)}
    write_graph(path, CAUSAL, outputs, older=older)
    graph = read_graph(path)
    assert (graph.inputs, graph.outputs) == (CAUSAL, outputs)
    assert (graph.has_state, graph.weights_bytes) == (False, WEIGHTS_BYTES)


def test_graphs_inside_a_layer_are_not_the_graph(tmp_path: Path) -> None:
    path = tmp_path / "openvino_model.xml"
    write_graph(path, CAUSAL, LOGITS)
    body = tmp_path / "body.xml"
    write_graph(body, {"inner": (1,)}, {"inner_out": (1,)}, state=True)
    inner = body.read_text().split("<layers>")[1].split("</layers>")[0].replace('size="16"', 'size="4000"')
    loop = f'<layers><layer id="99" name="l" type="Loop"><body><layers>{inner}</layers></body></layer>'
    path.write_text(path.read_text().replace("<layers>", loop))
    graph = read_graph(path)
    assert (graph.inputs, graph.outputs, graph.has_state) == (CAUSAL, LOGITS, False)
    assert graph.weights_bytes == 4000  # its weights are in the same file, though


def test_what_follows_the_layers_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "openvino_model.xml"
    write_graph(path, CAUSAL, LOGITS)
    layers = path.read_text().split("</layers>")[0]
    path.write_text(f"{layers}</layers>{' ' * 200_000}<edges><this is no XML")
    assert read_graph(path).outputs == LOGITS


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "openvino_model.xml"
    write_graph(path, CAUSAL, LOGITS)
    first = read_graph(path)
    assert read_graph(path) is first
    write_graph(path, CAUSAL, {"sentence_embedding": (-1, 8)})
    assert "sentence_embedding" in read_graph(path).outputs


BOMB = '<!DOCTYPE net [<!ENTITY a "aaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]><net>&b;</net>'
EXTERNAL = '<!DOCTYPE net SYSTEM "file:///etc/passwd"><net></net>'


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is empty"),
        ("this is no XML", "is not a graph of the runtime: syntax error"),
        ("<net><layers>", "is not a graph of the runtime: no element found"),
        ("<html><body></body></html>", "its root is <html>"),
        ("<net name='x' version='11'></net>", "it has neither inputs nor outputs"),
        (BOMB, "it has a document type"),
        (EXTERNAL, "it has a document type"),
        ("<net>&amp;&b;</net>", "undefined entity"),
        ("<net>" * 1000, "nested more than 256 deep"),
        ("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n", "is a Git LFS pointer"),
        ('<net><layers><layer id="0" type="Parameter" name="x"><output><port><dim>many', "no element found|whole"),
    ],
)
def test_files_that_are_no_graphs(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "openvino_model.xml"
    path.write_text(content)
    with pytest.raises(ModelProblem, match=rf"openvino_model\.xml .*({said})"):
        read_graph(path)


def test_a_dimension_that_is_no_number(tmp_path: Path) -> None:
    path = tmp_path / "openvino_model.xml"
    write_graph(path, CAUSAL, LOGITS)
    path.write_text(path.read_text().replace("<dim>100</dim>", "<dim>many</dim>"))
    with pytest.raises(ModelProblem, match="'many' where a whole number must be"):
        read_graph(path)


def test_reading_has_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "openvino_model.xml"
    write_graph(path, CAUSAL, LOGITS)
    monkeypatch.setattr(module, "MAX_PARSE_CPU_SECS", -1.0)
    with pytest.raises(ModelProblem, match="takes longer than"):
        read_graph(path)
    monkeypatch.setattr(module, "MAX_GRAPH_BYTES", 100)
    with pytest.raises(ModelProblem, match="is larger than 100 bytes"):
        read_graph(path)
