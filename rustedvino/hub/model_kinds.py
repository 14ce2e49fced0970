"""What a model folder holds, told from its files. Nothing is run.

``FORMS`` is the table: how the files of each form of model are recognised, of which kind it is, and what must be there.
A graph's inputs and outputs decide before names in JSON files do: an embedding model often is a text model by its
config.json.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from attrs import field, frozen

from rustedvino.config.types import ModelKind
from rustedvino.hub.graph import Shape
from rustedvino.hub.model_evidence import (
    DECODER,
    ENCODER,
    LANGUAGE,
    MODEL,
    Evidence,
    generates_text,
    gives_hidden_states,
    hears,
    kokoro,
    labels,
    piper_voices,
    scores_tokens,
    speecht5,
    translates,
)
from rustedvino.hub.model_json import ModelProblem, WrongKind

_DESCRIBED_NAMES: Final = 6


@frozen(kw_only=True)
class Need:
    """One of ``files`` must be there."""

    files: tuple[str, ...]
    purpose: str


Test = Callable[[Evidence], bool]
Needs = Callable[[Evidence], Iterable[Need]]


def _never(_: Evidence) -> bool:
    return False


@frozen(kw_only=True)
class Form:
    """How the files of one sort of model look.

    ``kind`` None: the setting ``kind`` must say it, or no kind is served from such files (``others`` empty); ``remedy``
    then says what to do. ``shown`` recognises the graphs, ``named`` only what JSON files say, used where the graphs are
    missing. ``with_decision_file``: a decision.json makes it a decision model.
    """

    name: str
    evidence: str
    """How it is recognised, for the documentation."""
    kind: ModelKind | None
    others: frozenset[ModelKind] = frozenset()
    shown: Test
    named: Test = _never
    named_evidence: str = ""
    needs: Needs = field(default=lambda _: ())
    with_decision_file: bool = False
    remedy: str = ""
    graph: str = MODEL
    """The graph that is described when the kind is disputed."""
    family: str = "unknown"
    """What to call a model whose config.json does not say its type."""

    @property
    def kinds(self) -> frozenset[ModelKind]:
        """Every kind that the setting may name."""
        return self.others if self.kind is None else self.others | {self.kind}


@frozen(kw_only=True)
class Detected:
    """What a folder holds. ``form`` None: nothing is known but the configured kind."""

    kind: ModelKind
    form: Form | None


# What must be there.


def _graphs(*stems: str, purpose: str = "a part of the model") -> list[Need]:
    return [Need(files=(f"{stem}.xml",), purpose=purpose) for stem in stems]


_CONFIG: Final = Need(files=("config.json",), purpose="it describes the model")
_EITHER_TOKENIZER: Final = Need(files=("tokenizer.json", "openvino_tokenizer.xml"), purpose="the tokenizer")
_TOKENIZER: Final = Need(files=("openvino_tokenizer.xml",), purpose="the tokenizer of the runtime")
_DETOKENIZER: Final = Need(files=("openvino_detokenizer.xml",), purpose="the tokenizer of the runtime, for texts")


def _text_needs(_: Evidence) -> list[Need]:
    return [_CONFIG, *_graphs(MODEL, purpose="the model"), _EITHER_TOKENIZER]


def _encoder_needs(_: Evidence) -> list[Need]:
    return [_CONFIG, *_graphs(MODEL, purpose="the model"), _TOKENIZER]


_VISION_PARTS: Final[Mapping[str, str]] = {
    "qwen2_vl": "openvino_vision_embeddings_merger_model",
    "qwen2_5_vl": "openvino_vision_embeddings_merger_model",
    "minicpmv": "openvino_resampler_model",
    "phi3_v": "openvino_vision_projection_model",
}
"""What some families have beside the three parts that all have."""


def _vision_needs(evidence: Evidence) -> list[Need]:
    extra = _VISION_PARTS.get(str((evidence.config or {}).get("model_type")))
    return [
        _CONFIG,
        *_graphs(LANGUAGE, purpose="the language model"),
        *_graphs("openvino_text_embeddings_model", purpose="the embeddings of text"),
        *_graphs("openvino_vision_embeddings_model", purpose="the encoder of images"),
        *(_graphs(extra, purpose="a part of the encoder of images") if extra else ()),
        Need(files=("preprocessor_config.json",), purpose="it says how images are prepared"),
        _TOKENIZER,
    ]


def _stt_needs(_: Evidence) -> list[Need]:
    return [
        _CONFIG,
        Need(files=("generation_config.json",), purpose="it has the tokens of languages and tasks"),
        *_graphs(ENCODER, purpose="the encoder of speech"),
        *_graphs(DECODER, purpose="the decoder"),
        _TOKENIZER,
        _DETOKENIZER,
    ]


def _speecht5_needs(_: Evidence) -> list[Need]:
    return [
        _CONFIG,
        *_graphs(ENCODER, DECODER, "openvino_postnet", "openvino_vocoder"),
        _TOKENIZER,
    ]


def _kokoro_needs(_: Evidence) -> list[Need]:
    return [_CONFIG, *_graphs(MODEL, purpose="the model")]


def _piper_needs(evidence: Evidence) -> Iterator[Need]:
    for voice in piper_voices(evidence.folder):
        yield Need(files=(voice.name.removesuffix(".json"),), purpose="a voice")
        yield Need(files=(voice.name,), purpose="it describes the voice")


def _diffusion_needs(evidence: Evidence) -> Iterator[Need]:
    yield Need(files=("model_index.json",), purpose="it lists the parts of the model")
    for name, value in (evidence.json("model_index.json") or {}).items():
        used = isinstance(value, list) and len(value) == 2 and isinstance(value[0], str)
        if not used or name.startswith("_"):
            continue
        if name == "scheduler":
            yield Need(files=("scheduler/scheduler_config.json",), purpose="the scheduler")
        elif name.startswith("tokenizer"):
            yield Need(files=(f"{name}/openvino_tokenizer.xml",), purpose="the tokenizer of the runtime")
        elif name == "vae":
            yield Need(files=("vae_decoder/openvino_model.xml",), purpose="it makes the image")
            yield Need(files=("vae_decoder/config.json",), purpose="it describes the decoder of images")
        elif name in ("unet", "transformer") or name.startswith("text_encoder"):
            yield Need(files=(f"{name}/openvino_model.xml",), purpose="a part of the model")
            yield Need(files=(f"{name}/config.json",), purpose="it describes this part")


_SENTENCE_FILES: Final = ("modules.json", "config_sentence_transformers.json", "1_Pooling/config.json")

FORMS: Final[tuple[Form, ...]] = (
    Form(
        name="diffusion",
        evidence="`model_index.json`",
        kind="image_gen",
        shown=lambda evidence: evidence.has("model_index.json"),
        needs=_diffusion_needs,
    ),
    Form(
        name="Piper",
        evidence="`NAME.onnx.json`",
        kind="tts",
        shown=lambda evidence: bool(piper_voices(evidence.folder)),
        needs=_piper_needs,
        family="vits",
    ),
    Form(
        name="vision",
        evidence=f"`{LANGUAGE}.xml`",
        kind="vision",
        others=frozenset({"decision"}),
        shown=lambda evidence: evidence.has(f"{LANGUAGE}.xml"),
        named=lambda evidence: (
            "vision_config" in (evidence.config or {}) or bool(evidence.preprocessor("image_processor_type"))
        ),
        named_evidence="`vision_config` in config.json, or an image processor in preprocessor_config.json",
        needs=_vision_needs,
        with_decision_file=True,
        graph=LANGUAGE,
    ),
    Form(
        name="SpeechT5",
        evidence="`openvino_vocoder.xml` or `openvino_postnet.xml`",
        kind="tts",
        shown=speecht5,
        named=lambda evidence: evidence.says("architectures", "SpeechT5ForTextToSpeech"),
        named_evidence="the architecture SpeechT5ForTextToSpeech",
        needs=_speecht5_needs,
        graph=ENCODER,
    ),
    Form(
        name="Whisper",
        evidence=f"`{ENCODER}.xml` takes `input_features`",
        kind="stt",
        shown=hears,
        named=lambda evidence: (
            evidence.says("architectures", "Whisper")
            or evidence.preprocessor("feature_extractor_type") == "WhisperFeatureExtractor"
        ),
        named_evidence="a Whisper architecture, or its feature extractor in preprocessor_config.json",
        needs=_stt_needs,
        graph=ENCODER,
    ),
    Form(
        name="encoder and decoder",
        evidence=f"`{ENCODER}.xml` that takes anything else",
        kind=None,
        shown=translates,
        remedy="models that turn text into text with an encoder are not served",
        graph=ENCODER,
    ),
    Form(
        name="Kokoro",
        evidence=f"`{MODEL}.xml` takes a speed and a style, and config.json has a `vocab`",
        kind="tts",
        shown=kokoro,
        named=lambda evidence: evidence.says("architectures", "Kokoro") or evidence.says("model_type", "kokoro"),
        named_evidence="a Kokoro architecture or `model_type`",
        needs=_kokoro_needs,
        family="kokoro",
    ),
    Form(
        name="text generation",
        evidence=f"`{MODEL}.xml` takes `input_ids` and `beam_idx`, keeps state and gives `logits`",
        kind="text_gen",
        others=frozenset({"decision", "reranking"}),
        shown=generates_text,
        named=lambda evidence: (
            evidence.says("architectures", "ForCausalLM") and not any(map(evidence.has, _SENTENCE_FILES))
        ),
        named_evidence="an architecture …ForCausalLM, and no files of sentence-transformers",
        needs=_text_needs,
        with_decision_file=True,
    ),
    Form(
        name="embedding",
        evidence=f"`{MODEL}.xml` takes `input_ids`, keeps no state and gives `last_hidden_state`, "
        "`token_embeddings` or `sentence_embedding`",
        kind="embedding",
        shown=gives_hidden_states,
        named=lambda evidence: (
            any(map(evidence.has, _SENTENCE_FILES))
            or (
                evidence.says("architectures", "Model", "MaskedLM")
                and not evidence.says("architectures", "SequenceClassification")
            )
        ),
        named_evidence="files of sentence-transformers (`modules.json`, `1_Pooling`), or an architecture …Model or "
        "…ForMaskedLM",
        needs=_encoder_needs,
    ),
    Form(
        name="cross-encoder",
        evidence=f"`{MODEL}.xml` takes `input_ids`, keeps no state and gives `logits` of the shape [?, 1]",
        kind="reranking",
        shown=lambda evidence: labels(evidence) == 1,
        named=lambda evidence: evidence.says("architectures", "SequenceClassification"),
        named_evidence="an architecture …ForSequenceClassification",
        needs=_encoder_needs,
    ),
    Form(
        name="classifier with two labels",
        evidence="the same with `logits` of the shape [?, 2], or [?, ?] where config.json does not list the labels",
        kind=None,
        others=frozenset({"reranking"}),
        shown=lambda evidence: labels(evidence) in (2, -1),
        needs=_encoder_needs,
        remedy='if it is a reranker, set `kind` to "reranking"',
    ),
    Form(
        name="classifier",
        evidence="the same with more labels",
        kind=None,
        shown=lambda evidence: labels(evidence) is not None,
        remedy="classifiers are not served",
    ),
    Form(
        name="scores of tokens",
        evidence=f"`{MODEL}.xml` takes `input_ids` and gives `logits` for every token, but keeps no state",
        kind=None,
        shown=scores_tokens,
        remedy='export it for "text-generation-with-past" or, for embeddings, for "feature-extraction"',
    ),
)

_BY_KIND: Final[Mapping[ModelKind, str]] = {
    "text_gen": "text generation",
    "decision": "text generation",
    "vision": "vision",
    "embedding": "embedding",
    "reranking": "cross-encoder",
    "stt": "Whisper",
    "image_gen": "diffusion",
}
"""The form whose files are missed in a folder where only the setting says what it should hold."""


def detect(evidence: Evidence, configured: ModelKind | None = None) -> Detected:
    """What a folder holds.

    Raises WrongKind when the files are of another kind than the configured one, ModelProblem when they say nothing.
    """
    form = next((form for form in FORMS if form.shown(evidence)), None)
    if form is not None:
        return Detected(kind=_kind_of(form, evidence, configured), form=form)
    if configured is not None:
        name = _BY_KIND.get(configured)
        return Detected(kind=configured, form=next((form for form in FORMS if form.name == name), None))
    if evidence.graph(MODEL) is None:
        form = next((form for form in FORMS if form.named(evidence)), None)
        if form is not None:
            return Detected(kind=_kind_of(form, evidence, None), form=form)
    if evidence.config is None:
        raise ModelProblem("config.json is missing")
    graph = _described(evidence, MODEL)
    raise ModelProblem(f"the kind of the model cannot be told from its files; set `kind`{graph and f' ({graph})'}")


def _kind_of(form: Form, evidence: Evidence, configured: ModelKind | None) -> ModelKind:
    detected = form.kind
    if form.with_decision_file and evidence.has("decision.json"):
        detected = "decision"
    if configured is not None and configured in form.kinds:
        return configured
    found = " ".join(filter(None, [_described(evidence, form.graph), form.remedy and f"({form.remedy})"]))
    if configured is not None:
        of = f"of a {form.name} model" if detected is None else f"of kind {detected}"
        raise WrongKind(f'`kind` is "{configured}", but the files are {of}: {found or form.evidence}')
    if detected is None:
        raise ModelProblem(f"the kind of the model cannot be told from its files: {found or form.evidence}")
    return detected


def _described(evidence: Evidence, stem: str) -> str:
    graph = evidence.graph(stem)
    if graph is None:
        return ""
    state = ", keeps state" if graph.has_state else ""
    outputs = ", ".join(f"{name}{_shape(shape)}" for name, shape in list(graph.outputs.items())[:_DESCRIBED_NAMES])
    inputs = ", ".join(list(graph.inputs)[:_DESCRIBED_NAMES])
    return f"{stem}.xml takes {inputs or 'nothing'}{state} and gives {outputs or 'nothing'}"


def _shape(shape: Shape) -> str:
    return "[" + ", ".join("?" if size < 0 else str(size) for size in shape) + "]"


def markdown_table() -> str:
    """The table of docs/MODELS.md."""
    lines = ["| form | kind | `kind` may also be | recognised by | without graphs, by |", "|---|---|---|---|---|"]
    for form in FORMS:
        kind = "–" if form.kind is None else f"`{form.kind}`"
        others = ", ".join(f"`{other}`" for other in sorted(form.others)) or "–"
        lines.append(f"| {form.name} | {kind} | {others} | {form.evidence} | {form.named_evidence or '–'} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(markdown_table())
