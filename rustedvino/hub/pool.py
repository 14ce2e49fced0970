"""The size of a model's KV pool, which the runtime is always given explicitly."""

from typing import Final

from rustedvino.config.types import ModelSettings, ServerSettings, gb_to_bytes
from rustedvino.hub.model_files import ModelFiles, ModelProblem
from rustedvino.worker.platform import system_ram_bytes

CPU_SHARE_OF_BUDGET: Final = 0.25
MIN_BLOCKS: Final = 16
BLOCK_SIZE_CPU: Final = 32
BLOCK_SIZE_GPU: Final = 16
DEFAULT_CONTEXT_TOKENS: Final = 4096
"""Used to size the pool of a model that does not say its context length."""


def block_size(device: str) -> int:
    """Tokens per KV block on a device, as the runtime's attention kernels have it."""
    return BLOCK_SIZE_GPU if device.startswith("GPU") else BLOCK_SIZE_CPU


def pool_blocks(files: ModelFiles, server: ServerSettings, model: ModelSettings, device: str) -> int:
    """Blocks of the pool: the configured size, else what ``max_num_seqs`` full contexts need, within a share of
    the budget and below ``cache_size_gb``. Raises ModelProblem for a pool too small to work with."""
    shape = files.kv_shape
    if shape is None:
        raise ModelProblem("config.json does not say layers and heads, so no KV pool can be sized")
    size = block_size(device)
    per_block = shape.block_bytes(size, server.kv_cache_precision)
    configured_gb = model.kv_cache_gb or server.default_kv_cache_gb
    if configured_gb:
        pool_bytes = gb_to_bytes(configured_gb)
    else:
        context = files.context_tokens or DEFAULT_CONTEXT_TOKENS
        budget = gb_to_bytes(server.total_vram_gb) if server.total_vram_gb else system_ram_bytes()
        wanted = server.max_running_seqs * -(-context // size) * per_block
        pool_bytes = min(wanted, int(budget * CPU_SHARE_OF_BUDGET))
    if server.cache_size_gb:
        pool_bytes = min(pool_bytes, gb_to_bytes(server.cache_size_gb))
    blocks = pool_bytes // per_block
    if blocks < MIN_BLOCKS:
        raise ModelProblem(
            f"a KV pool of {pool_bytes} bytes has only {blocks} blocks of {size} tokens; "
            f"at least {MIN_BLOCKS} are needed"
        )
    return int(blocks)
