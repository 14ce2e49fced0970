"""What the files of a model folder say, read without the runtime."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from attrs import field, frozen

from rustedvino.config.types import ModelKind
from rustedvino.hub.model_completeness import IncompleteModel, file_problems
from rustedvino.hub.model_evidence import Evidence, piper_voices
from rustedvino.hub.model_json import ModelProblem, WrongKind, read_json
from rustedvino.hub.model_kinds import detect

MAX_TOKEN_ID: Final = 2**31 - 1


# Others count as 16: asked for u4 values, the runtime may allocate 16 bits (seen with 2026.4.1 on the CPU).
_CACHE_BITS: Final = {"u8": 8, "i8": 8, "f32": 32}
_LEAST_FLOAT_BITS: Final = 16


@frozen(kw_only=True)
class KvShape:
    """What one token costs in the KV pool: layers × heads × head dimension, keys and values alike."""

    layers: int
    heads: int
    head_dim: int

    def block_bytes(self, block_size: int, keys: str, values: str | None = None) -> int:
        """Bytes of one block of ``block_size`` tokens whose keys and values have these types, alike by default.

        Integer types keep, for each head, scale and zero point as f32: per channel for keys, per token for values
        (OpenVINO CPU plugin; for u8 it equals what the runtime reports for the models at hand). "" is the plugin's
        default, taken as 16 bit.
        """
        per_head = block_size * self.head_dim
        size = _cache_bytes(per_head, keys, self.head_dim) + _cache_bytes(per_head, values or keys, block_size)
        return self.layers * self.heads * size


def _cache_bytes(numbers: int, precision: str, groups: int) -> int:
    bits = _CACHE_BITS.get(precision, 16)
    return numbers * bits // 8 + (groups * 8 if bits < _LEAST_FLOAT_BITS else 0)


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


def inspect_folder(folder: Path, kind: ModelKind | None = None) -> ModelFiles:
    """Read a model folder; ``kind`` is the configured one. Raises ModelProblem with every missing file at once."""
    try:
        return _inspect(folder, kind)
    except OSError as error:  # no permission, a link into a download cache that was cleared, an impossible name
        raise ModelProblem(f"{Path(error.filename or folder).name} cannot be read: {error.strerror}") from error


def _inspect(folder: Path, kind: ModelKind | None) -> ModelFiles:
    if not folder.is_dir():
        raise ModelProblem(f"the folder {folder.name!r} does not exist in models_dir")
    evidence = Evidence(folder)
    detected = detect(evidence, kind)
    problems = file_problems(evidence, detected)
    if problems:
        raise IncompleteModel(folder, detected.kind, problems)
    config = evidence.config if evidence.config is not None else evidence.json("model_index.json") or {}
    language = config.get("text_config")
    text = language if isinstance(language, dict) else config
    generation = evidence.json("generation_config.json") or {}
    voices = [voice.with_suffix("") for voice in piper_voices(folder)]
    family = "unknown" if detected.form is None else detected.form.family
    return ModelFiles(
        folder=folder,
        kind=detected.kind,
        family=str(config.get("model_type") or config.get("_class_name") or family),
        context_tokens=_context_tokens(folder, text),
        vocab_size=_positive(text, "vocab_size"),
        eos_token_ids=_eos(generation, text, config),
        generation=generation,
        kv_shape=_kv_shape(text),
        weights_bytes=sum(path.stat().st_size for path in [*folder.glob("**/*.bin"), *voices]),
        created=int(_described_at(folder)),
    )


def _described_at(folder: Path) -> float:
    """When the file that describes the model was written, in seconds since 1970."""
    named = [path for name in ("config.json", "model_index.json") if (path := folder / name).is_file()]
    return [*named, *piper_voices(folder), folder][0].stat().st_mtime


def folder_report(folder: Path, kind: ModelKind | None) -> dict[str, Any]:
    """Whether a model's files are all there and can be used, as JSON values. Reads files: call it in a thread.

    ``missing`` has the names of all that is wrong, ``files`` their reasons too; ``problem`` is the whole in words.
    """
    try:
        files = inspect_folder(folder, kind)
    except ModelProblem as error:
        wrong = error.files if isinstance(error, IncompleteModel) else []
        return {
            "complete": False,
            "kind": error.kind if isinstance(error, IncompleteModel) else kind,
            "missing": [each.file for each in wrong],
            "files": [{"file": each.file, "reason": each.reason} for each in wrong],
            "problem": str(error),
        }
    return {"complete": True, "kind": files.kind, "missing": [], "files": [], "problem": None}


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


__all__ = ["KvShape", "ModelFiles", "ModelProblem", "WrongKind", "folder_report", "inspect_folder", "read_json"]
