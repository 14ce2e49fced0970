"""What a worker is told to load."""

from pathlib import Path
from typing import Any

from rustedvino.config.types import ModelSettings, ServerSettings
from rustedvino.hub.drafts import check_draft_devices
from rustedvino.hub.model_files import ModelFiles
from rustedvino.hub.pool import batched_tokens, block_size


def load_spec(
    files: ModelFiles,
    draft: ModelFiles | None,
    model: ModelSettings,
    server: ServerSettings,
    device: str,
    *,
    slots: int,
    kv_blocks: int,
    cache_folder: Path | None,
) -> dict[str, Any]:
    """The ``load`` message for a model on a device, without its prompts. ``slots``: sequences that may run at once;
    ``cache_folder``: where the runtime may keep what it compiles. Raises ModelProblem."""
    return {
        "kind": files.kind,
        "path": str(files.folder),
        "device": device,
        "properties": _properties(model, server, device, cache_folder),
        "num_kv_blocks": kv_blocks,
        "block_size": block_size(device),
        "context_tokens": files.context_tokens,
        "max_prompt_len": model.max_prompt_len,
        "min_response_len": model.min_response_len,
        "draft": None if draft is None else _draft(draft, model, device),
        "max_num_batched_tokens": batched_tokens(server, device, slots),
        "max_num_seqs": model.max_concurrent_streams or server.max_running_seqs,
        "enable_prefix_caching": server.enable_prefix_caching,
    }


def _properties(model: ModelSettings, server: ServerSettings, device: str, cache_folder: Path | None) -> dict[str, Any]:
    """Properties of the runtime; those of the model's ``plugin_config`` win."""
    properties: dict[str, Any] = {}
    threads = model.num_threads or server.num_threads
    if server.kv_cache_precision and not device.startswith("NPU"):
        properties["KV_CACHE_PRECISION"] = server.kv_cache_precision
    if threads and device == "CPU":
        properties["INFERENCE_NUM_THREADS"] = threads
    if cache_folder is not None:
        properties["CACHE_DIR"] = str(cache_folder)
    return properties | model.plugin_config


def _draft(draft: ModelFiles, model: ModelSettings, model_device: str) -> dict[str, Any]:
    """The part about the draft. Raises ModelProblem for a device that cannot have one."""
    speculative = model.speculative
    assert speculative is not None
    device = speculative.draft_device or model_device
    check_draft_devices(model_device, device)
    return {
        "path": str(draft.folder),
        "device": device,
        "num_assistant_tokens": speculative.num_assistant_tokens,
        "verify": speculative.verify_on_load,
    }
