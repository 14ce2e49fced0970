"""What is looked at in a model folder to tell what it holds. Nothing is run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from attrs import define, field

from rustedvino.hub.graph import Graph, read_graph
from rustedvino.hub.model_json import ModelProblem, read_json

MODEL: Final = "openvino_model"
LANGUAGE: Final = "openvino_language_model"
ENCODER: Final = "openvino_encoder_model"
DECODER: Final = "openvino_decoder_model"
_HIDDEN_STATES: Final = ("last_hidden_state", "token_embeddings", "sentence_embedding")


@define(eq=False)
class Evidence:
    """The files of a folder, read as they are asked for. ``config`` is config.json, None when there is none."""

    folder: Path
    config: Mapping[str, Any] | None = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.config = self.json("config.json")

    def has(self, name: str) -> bool:
        """Whether there is a file of that name."""
        return (self.folder / name).is_file()

    def json(self, name: str) -> dict[str, Any] | None:
        """A JSON file, None when there is none. Raises ModelProblem."""
        return read_json(self.folder / name) if (self.folder / name).exists() else None

    def graph(self, stem: str) -> Graph | None:
        """A graph, None when there is none that can be read; why not is among the file_problems."""
        try:
            return read_graph(self.folder / f"{stem}.xml")
        except (FileNotFoundError, ModelProblem):
            return None

    def says(self, name: str, *parts: str) -> bool:
        """Whether a text or list of texts in config.json contains one of ``parts``."""
        value = (self.config or {}).get(name)
        texts = value if isinstance(value, list) else [value]
        return any(part in text for text in texts if isinstance(text, str) for part in parts)

    def preprocessor(self, name: str) -> str:
        """A name in preprocessor_config.json, "" when it has none."""
        value = (self.json("preprocessor_config.json") or {}).get(name)
        return value if isinstance(value, str) else ""


# How graphs are recognised.


def generates_text(evidence: Evidence) -> bool:
    """Whether the graph continues a text, remembering what came before."""
    graph = evidence.graph(MODEL)
    return (
        graph is not None
        and graph.has_state
        and {"input_ids", "beam_idx"} <= set(graph.inputs)
        and _gives_logits(graph)
    )


def _gives_logits(graph: Graph) -> bool:
    return "logits" in graph.outputs


def gives_hidden_states(evidence: Evidence) -> bool:
    """Whether the graph turns tokens into vectors."""
    graph = evidence.graph(MODEL)
    return (
        graph is not None
        and not graph.has_state
        and "input_ids" in graph.inputs
        and any(name in graph.outputs for name in _HIDDEN_STATES)
    )


def labels(evidence: Evidence) -> int | None:
    """Number of labels of a classifier of texts, -1 where the graph does not fix it; None for other graphs."""
    graph = evidence.graph(MODEL)
    if graph is None or graph.has_state or "input_ids" not in graph.inputs or not _gives_logits(graph):
        return None
    shape = graph.outputs["logits"]
    if len(shape) != 2:
        return None
    names = (evidence.config or {}).get("id2label")
    return len(names) if shape[1] == -1 and isinstance(names, dict) else shape[1]


def scores_tokens(evidence: Evidence) -> bool:
    """Whether the graph scores every token, as one for filling masks does, or one exported without its state."""
    graph = evidence.graph(MODEL)
    return (
        graph is not None
        and "input_ids" in graph.inputs
        and _gives_logits(graph)
        and not generates_text(evidence)
        and labels(evidence) is None
    )


def hears(evidence: Evidence) -> bool:
    """Whether an encoder takes the spectrum of speech."""
    graph = evidence.graph(ENCODER)
    return graph is not None and "input_features" in graph.inputs


def translates(evidence: Evidence) -> bool:
    """Whether an encoder takes anything else and nothing makes speech of it."""
    return evidence.graph(ENCODER) is not None and not hears(evidence) and not speecht5(evidence)


def speecht5(evidence: Evidence) -> bool:
    """Whether there are parts that only SpeechT5 has."""
    return any(evidence.has(f"openvino_{part}.xml") for part in ("vocoder", "postnet"))


def kokoro(evidence: Evidence) -> bool:
    """Whether the graph takes what Kokoro takes, and its phonemes are listed."""
    graph = evidence.graph(MODEL)
    if graph is None or graph.has_state or not isinstance((evidence.config or {}).get("vocab"), dict):
        return False
    names = " ".join(graph.inputs)
    return "speed" in names and ("style" in names or "ref" in names)


def piper_voices(folder: Path) -> list[Path]:
    """The descriptions of Piper voices in a folder, ``NAME.onnx.json``."""
    return sorted(folder.glob("*.onnx.json"))
