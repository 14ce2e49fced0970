"""What the files of a model folder say, read without the runtime."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from attrs import field, frozen

from rustedvino.config.types import ModelKind

MAX_JSON_BYTES: Final = 64 * 1024 * 1024
MAX_TOKEN_ID: Final = 2**31 - 1


class ModelProblem(Exception):
    """The folder does not hold a model that can be loaded; the text says what is wrong and with which file."""


@frozen(kw_only=True)
class KvShape:
    """What one token costs in the KV pool: layers × heads × head dimension, keys and values alike."""

    layers: int
    heads: int
    head_dim: int

    def block_bytes(self, block_size: int, precision: str) -> int:
        """Bytes of one block of ``block_size`` tokens.

        u8 keeps, for each head, scale and zero point as f32: per channel for keys, per token for values
        (OpenVINO CPU plugin; equals what the runtime reports for the models at hand). "" is the plugin's default,
        taken as 16 bit.
        """
        per_head = block_size * self.head_dim
        if precision == "u8":
            keys = per_head + self.head_dim * 8
            values = per_head + block_size * 8
        else:
            width = 4 if precision == "f32" else 2
            keys = values = per_head * width
        return self.layers * self.heads * (keys + values)


@frozen(kw_only=True)
class ModelFiles:
    """A model folder at a glance. ``eos_token_ids`` end a generation; ``generation`` is generation_config.json."""

    folder: Path
    kind: ModelKind
    family: str
    context_tokens: int | None
    vocab_size: int | None
    eos_token_ids: tuple[int, ...]
    generation: Mapping[str, Any] = field(factory=dict)
    kv_shape: KvShape | None
    weights_bytes: int
    created: int


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object. Raises ModelProblem naming the file."""
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise ModelProblem(f"{path.name} is larger than {MAX_JSON_BYTES} bytes")
        value = json.loads(path.read_bytes().decode("utf-8-sig"))
    except FileNotFoundError as error:
        raise ModelProblem(f"{path.name} is missing") from error
    except OSError as error:
        raise ModelProblem(f"{path.name} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ModelProblem(f"{path.name} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelProblem(f"{path.name} is not a JSON object")
    return value


def missing_files(folder: Path, kind: ModelKind) -> list[str]:
    """Names of the files that a model of this kind needs and ``folder`` lacks."""
    needed = {
        "text_gen": ("openvino_model.xml", "openvino_model.bin"),
        "decision": ("openvino_model.xml", "openvino_model.bin"),
        "embedding": ("openvino_model.xml", "openvino_model.bin"),
        "reranking": ("openvino_model.xml", "openvino_model.bin"),
        "vision": ("openvino_language_model.xml", "openvino_language_model.bin"),
        "stt": ("openvino_encoder_model.xml", "openvino_decoder_model.xml"),
    }.get(kind, ())
    missing = [name for name in needed if not (folder / name).is_file()]
    if kind in ("text_gen", "vision", "decision") and not (
        (folder / "tokenizer.json").is_file() or (folder / "openvino_tokenizer.xml").is_file()
    ):
        missing.append("tokenizer.json (or openvino_tokenizer.xml)")
    return missing


def detect_kind(folder: Path, config: Mapping[str, Any]) -> ModelKind:
    """The kind of a model from its files. Raises ModelProblem when nothing fits."""
    if (folder / "model_index.json").is_file():
        return "image_gen"
    if (folder / "openvino_language_model.xml").is_file():
        return "vision"
    if any(folder.glob("*.onnx.json")) or (folder / "openvino_vocoder.xml").is_file():
        return "tts"
    if (folder / "openvino_encoder_model.xml").is_file():
        return "stt"
    named = config.get("architectures")
    architectures = " ".join(str(name) for name in named) if isinstance(named, list) else ""
    if "SequenceClassification" in architectures:
        return "reranking"
    if "ForCausalLM" in architectures:
        return "text_gen"
    if architectures and ("Model" in architectures or "MaskedLM" in architectures):
        return "embedding"
    raise ModelProblem("the kind of the model cannot be told from its files; set `kind`")


def inspect_folder(folder: Path, kind: ModelKind | None = None) -> ModelFiles:
    """Read a model folder; ``kind`` is the configured one. Raises ModelProblem with every missing file at once."""
    try:
        return _inspect(folder, kind)
    except OSError as error:  # no permission, a link into a download cache that was cleared, an impossible name
        raise ModelProblem(f"{Path(error.filename or folder).name} cannot be read: {error.strerror}") from error


def _inspect(folder: Path, kind: ModelKind | None) -> ModelFiles:
    if not folder.is_dir():
        raise ModelProblem(f"the folder {folder.name!r} does not exist in models_dir")
    diffusion = (folder / "model_index.json").is_file()
    config = read_json(folder / ("model_index.json" if diffusion else "config.json"))
    kind = kind or detect_kind(folder, config)
    missing = missing_files(folder, kind)
    if missing:
        raise ModelProblem(f"missing from {folder.name}: {', '.join(missing)}")
    language = config.get("text_config")
    text = language if isinstance(language, dict) else config
    generation = read_json(folder / "generation_config.json") if (folder / "generation_config.json").exists() else {}
    return ModelFiles(
        folder=folder,
        kind=kind,
        family=str(config.get("model_type") or config.get("_class_name") or "unknown"),
        context_tokens=_context_tokens(folder, text),
        vocab_size=_positive(text, "vocab_size"),
        eos_token_ids=_eos(generation, text, config),
        generation=generation,
        kv_shape=_kv_shape(text),
        weights_bytes=sum(path.stat().st_size for path in folder.glob("**/*.bin")),
        created=int((folder / "config.json").stat().st_mtime) if (folder / "config.json").exists() else 0,
    )


def _positive(config: Mapping[str, Any], *names: str) -> int | None:
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


def _context_tokens(folder: Path, text: Mapping[str, Any]) -> int | None:
    own = _positive(text, "max_position_embeddings", "n_positions", "seq_length", "max_sequence_length", "n_ctx")
    if own is not None:
        return own
    if (folder / "tokenizer_config.json").is_file():
        limit = _positive(read_json(folder / "tokenizer_config.json"), "model_max_length")
        if limit is not None and limit < 1 << 30:  # the usual "no limit" is 10**30
            return limit
    return None


def _eos(*configs: Mapping[str, Any]) -> tuple[int, ...]:
    for config in configs:
        value = config.get("eos_token_id")
        ids = value if isinstance(value, list) else [value]
        found = tuple(number for number in ids if type(number) is int and 0 <= number <= MAX_TOKEN_ID)
        if found:
            return found
    return ()


def _kv_shape(text: Mapping[str, Any]) -> KvShape | None:
    layers = _positive(text, "num_hidden_layers", "n_layer", "num_layers")
    queries = _positive(text, "num_attention_heads", "n_head")
    hidden = _positive(text, "hidden_size", "n_embd")
    if layers is None or queries is None:
        return None
    head_dim = _positive(text, "head_dim") or (hidden // queries if hidden else None)
    if not head_dim:
        return None
    heads = _positive(text, "num_key_value_heads", "num_kv_heads", "multi_query_group_num") or queries
    return KvShape(layers=layers, heads=heads, head_dim=head_dim)
