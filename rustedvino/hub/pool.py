"""The size of a model's KV pool, which the runtime is always given explicitly."""

from typing import Final

from rustedvino.config.types import ModelSettings, ServerSettings, gb_to_bytes
from rustedvino.hub.model_files import ModelFiles, ModelProblem
from rustedvino.worker.platform import system_ram_bytes

CPU_SHARE_OF_BUDGET: Final = 0.25
MIN_BLOCKS: Final = 16
CPU_STEP_TOKENS: Final = 64
BLOCK_SIZE_CPU: Final = 32
BLOCK_SIZE_GPU: Final = 16
DEFAULT_CONTEXT_TOKENS: Final = 4096
"""Used to size the pool of a model that does not say its context length."""


def cache_precisions(server: ServerSettings, model: ModelSettings) -> tuple[str, str]:
    """Types of keys and values in a model's KV pool: what its ``plugin_config`` says, else the global setting."""
    both = model.plugin_config.get("KV_CACHE_PRECISION", server.kv_cache_precision)
    names = (model.plugin_config.get(name, both) for name in ("KEY_CACHE_PRECISION", "VALUE_CACHE_PRECISION"))
    keys, values = (str(name).lower() for name in names)
    return keys, values


def block_size(device: str) -> int:
    """Tokens per KV block on a device, as the runtime's attention kernels have it."""
    return BLOCK_SIZE_GPU if device.startswith("GPU") else BLOCK_SIZE_CPU


def batched_tokens(server: ServerSettings, device: str, slots: int) -> int:
    """Tokens per step of the pipeline, prompts and running sequences together.

    On a CPU a step of 512 prompt tokens takes as long as a dozen decode steps, and every running stream waits for it.
    Small steps keep the pauses of the streams below three decode steps, for about a quarter more CPU per prompt than at
    512 (docs/BENCHMARKS.md).
    """
    if device != "CPU":
        return server.max_num_batched_tokens
    return min(server.max_num_batched_tokens, max(CPU_STEP_TOKENS, 2 * slots))


def pool_blocks(
    files: ModelFiles, server: ServerSettings, model: ModelSettings, device: str, draft: ModelFiles | None = None
) -> int:
    """Blocks of the pool: the configured size, else what ``max_num_seqs`` full contexts need, within a share of
    the budget and below ``cache_size_gb``. Raises ModelProblem for a pool too small to work with.

    A ``draft`` model has as many blocks of its own in the same pool.
    """
    configured_gb = model.kv_cache_gb or server.default_kv_cache_gb
    if configured_gb:
        pool_bytes = gb_to_bytes(configured_gb)
    else:
        size = block_size(device)
        context = files.context_tokens or DEFAULT_CONTEXT_TOKENS
        budget = gb_to_bytes(server.total_vram_gb) if server.total_vram_gb else system_ram_bytes()
        wanted = server.max_running_seqs * -(-context // size) * _block_bytes(files, server, model, device, draft)
        pool_bytes = min(wanted, int(budget * CPU_SHARE_OF_BUDGET))
    if server.cache_size_gb:
        pool_bytes = min(pool_bytes, gb_to_bytes(server.cache_size_gb))
    return whole_blocks(files, server, model, device, pool_bytes, draft)


def whole_blocks(
    files: ModelFiles,
    server: ServerSettings,
    model: ModelSettings,
    device: str,
    pool_bytes: int,
    draft: ModelFiles | None = None,
) -> int:
    """Blocks in a pool of so many bytes, the draft's included. Raises ModelProblem for one too small to work with."""
    blocks = pool_bytes // _block_bytes(files, server, model, device, draft)
    if blocks < MIN_BLOCKS:
        raise ModelProblem(
            f"a KV pool of {pool_bytes} bytes has only {blocks} blocks of {block_size(device)} tokens; "
            f"at least {MIN_BLOCKS} are needed"
        )
    return blocks


def _block_bytes(
    files: ModelFiles, server: ServerSettings, model: ModelSettings, device: str, draft: ModelFiles | None
) -> int:
    shapes = [files.kv_shape] if draft is None else [files.kv_shape, draft.kv_shape]
    size = 0
    for shape in shapes:
        if shape is None:
            raise ModelProblem("config.json does not say layers and heads, so no KV pool can be sized")
        size += shape.block_bytes(block_size(device), *cache_precisions(server, model))
    return size
