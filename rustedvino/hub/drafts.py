"""Whether a draft model may propose tokens for a model, as far as the files tell without the runtime.

That the two have the same vocabulary is checked by the worker, before it loads them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from rustedvino.config.types import SpeculativeSettings
from rustedvino.hub.model_files import ModelFiles, ModelProblem, inspect_folder, read_json

_EXPERT_COUNTS: Final = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


def inspect_draft(target: ModelFiles, settings: SpeculativeSettings, models_dir: Path) -> ModelFiles:
    """Read the draft's folder and check the pair. Raises ModelProblem, which names the setting."""
    try:
        draft = inspect_folder(models_dir / settings.draft_model)
        _check(target, draft)
    except ModelProblem as error:
        raise ModelProblem(f"speculative.draft_model {settings.draft_model!r}: {error}") from error
    return draft


def check_draft_devices(device: str, draft_device: str) -> None:
    """Raise ModelProblem for a device on which there is no speculative decoding."""
    for name, where in (("device", device), ("speculative.draft_device", draft_device)):
        if where.startswith("NPU"):
            raise ModelProblem(f"speculative decoding does not run on an NPU: {name} is {where}")


def _check(target: ModelFiles, draft: ModelFiles) -> None:
    for files, role in ((target, "the model"), (draft, "the draft")):
        if files.kind != "text_gen":
            raise ModelProblem(f"{role} is of kind {files.kind}; speculative decoding is for text_gen models")
        if _has_experts(read_json(files.folder / "config.json")):
            raise ModelProblem(f"{role} is a mixture of experts, for which there is no speculative decoding")
        if files.vocab_size is None:
            raise ModelProblem(f"config.json of {role} does not say its vocab_size")
    assert target.vocab_size is not None
    assert draft.vocab_size is not None
    if draft.vocab_size > target.vocab_size:
        raise ModelProblem(
            f"the draft's vocabulary of {draft.vocab_size} is larger than the model's {target.vocab_size}: it could "
            "propose tokens that the model does not know"
        )
    if draft.kv_shape is None:
        raise ModelProblem("config.json does not say layers and heads, so no KV pool can be sized")


def _has_experts(config: Mapping[str, Any]) -> bool:
    language = config.get("text_config")
    parts = [config, language] if isinstance(language, dict) else [config]
    return any(
        "moe" in str(part.get("model_type", "")).lower()
        or any(isinstance(part.get(name), int) and part[name] > 1 for name in _EXPERT_COUNTS)
        for part in parts
    )
