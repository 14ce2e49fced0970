"""What a model will occupy, estimated before it is loaded.

weights   size on disk, or ``vram_gb``; on an NPU times ``npu_footprint_factor`` (the compiled copy). On a CPU the
          runtime repacks weights into memory of its own and leaves the mapped file to the page cache, which the system
          takes back when it needs to, so one copy is counted (measured: 320 MB of u8 weights, 357 MB held).
KV pool   for kinds that have one: the configured size, else a range from the least that is worth loading
          (``min_kv_cache_gb``) to what ``max_num_seqs`` full contexts can use, within the caps.
draft     ``draft_vram_gb``, or the draft model's size on disk. The draft's cache is part of the pool.
context   what a GPU context costs on the card before any weight is in it.
process   the worker itself: interpreter, runtime, plugin, graph and tokenizer. Always system memory.
"""

from typing import Final

from attrs import evolve, frozen

from rustedvino.config.types import ModelKind, ModelSettings, ServerSettings, gb_to_bytes
from rustedvino.hub.inventory import SYSTEM_RAM, Device, Inventory
from rustedvino.hub.model_files import ModelFiles
from rustedvino.hub.pool import CPU_SHARE_OF_BUDGET, DEFAULT_CONTEXT_TOKENS, block_size, cache_precisions

_MB: Final = 2**20

SPARE_WORKER_BYTES: Final = 70 * _MB
"""A worker with the runtime imported and no device opened. Measured alone: 70 MB resident, 33 MB of it private."""
UTILITY_WORKER_BYTES: Final = 45 * _MB
"""The utility worker at rest. Measured alone: 43 MB resident, 25 MB of it private."""
PROCESS_BYTES: Final = 160 * _MB
"""A worker with a small model on the CPU after its warm-up, beyond weights and pool. Measured: 138–150 MB resident."""
GPU_CONTEXT_BYTES: Final = 256 * _MB
"""Context, kernels and scratch of one process on a GPU. An allowance, not measured on a card yet: the measured peak
of a loaded model replaces it."""

KV_POOL_KINDS: Final[frozenset[ModelKind]] = frozenset({"text_gen", "vision"})
"""Kinds that run on the continuous-batching pipeline and so have a pool."""
UNGATED_POOL_SHARE: Final = 0.25
"""Share of a device's memory for an automatic pool where no budget says what is left."""


@frozen(kw_only=True)
class Footprint:
    """The estimate for one model on one device, in bytes.

    ``model_bytes`` is the size by which a model is called light or too large for a card: weights and draft as they
    are, without factors. ``kv_min_bytes`` to ``kv_max_bytes`` is the range of the pool; both are equal when its size
    is configured or decided, and 0 without a pool.
    """

    model_bytes: int
    weights_bytes: int
    kv_min_bytes: int = 0
    kv_max_bytes: int = 0
    draft_bytes: int = 0
    context_bytes: int = 0
    process_bytes: int = PROCESS_BYTES

    @property
    def total_bytes(self) -> int:
        """The least that must be free over all domains for the model to be loaded."""
        return self.weights_bytes + self.kv_min_bytes + self.draft_bytes + self.context_bytes + self.process_bytes

    def with_pool(self, pool_bytes: int) -> "Footprint":
        """This footprint with the pool's size decided."""
        return evolve(self, kv_min_bytes=pool_bytes, kv_max_bytes=pool_bytes)


def estimate(
    files: ModelFiles,
    model: ModelSettings,
    server: ServerSettings,
    device: Device,
    *,
    budget_bytes: int | None,
    draft_disk_bytes: int = 0,
) -> Footprint:
    """The footprint of a model on a device.

    ``budget_bytes`` is the budget of the device's domain, None when it is not gated; ``draft_disk_bytes`` is the size
    of the draft model's weights, used when ``speculative`` does not say ``draft_vram_gb``.
    """
    size = files.weights_bytes if model.vram_gb is None else gb_to_bytes(model.vram_gb)
    draft = 0
    if model.speculative is not None:
        given_gb = model.speculative.draft_vram_gb
        draft = draft_disk_bytes if given_gb is None else gb_to_bytes(given_gb)
    kv_min, kv_max = _pool_range(files, model, server, device, budget_bytes)
    return Footprint(
        model_bytes=size + draft,
        weights_bytes=round(size * server.npu_footprint_factor) if device.type == "npu" else size,
        kv_min_bytes=kv_min,
        kv_max_bytes=kv_max,
        draft_bytes=draft,
        context_bytes=GPU_CONTEXT_BYTES if device.type in ("integrated", "discrete") else 0,
    )


def demand(footprint: Footprint, inventory: Inventory, device: str, draft_device: str | None = None) -> dict[str, int]:
    """The bytes by memory domain that a load on ``device`` must find free. Raises UnknownDevice.

    The worker's own memory is always system RAM; a draft may be on another device than its target.
    """
    needed = {SYSTEM_RAM: footprint.process_bytes}
    parts = (
        (device, footprint.weights_bytes + footprint.kv_min_bytes + footprint.context_bytes),
        (draft_device or device, footprint.draft_bytes),
    )
    for name, size in parts:
        domain = inventory.domain(name)
        needed[domain] = needed.get(domain, 0) + size
    return {domain: size for domain, size in needed.items() if size}


def _pool_range(
    files: ModelFiles, model: ModelSettings, server: ServerSettings, device: Device, budget_bytes: int | None
) -> tuple[int, int]:
    if files.kind not in KV_POOL_KINDS or device.type == "npu":
        return 0, 0  # the NPU's cache has a fixed shape inside the compiled model
    caps = [gb_to_bytes(server.cache_size_gb)] if server.cache_size_gb else []
    configured_gb = model.kv_cache_gb or server.default_kv_cache_gb
    if configured_gb:
        size = min([gb_to_bytes(configured_gb), *caps])
        return size, size
    if device.type == "cpu" and budget_bytes is not None:
        caps.append(int(budget_bytes * CPU_SHARE_OF_BUDGET))
    elif budget_bytes is None and device.total_memory_bytes is not None:
        caps.append(int(device.total_memory_bytes * UNGATED_POOL_SHARE))
    least = gb_to_bytes(server.min_kv_cache_gb)
    if files.kv_shape is None:
        most = least
    else:
        tokens = block_size(device.name)
        blocks = server.max_running_seqs * -(-(files.context_tokens or DEFAULT_CONTEXT_TOKENS) // tokens)
        most = blocks * files.kv_shape.block_bytes(tokens, *cache_precisions(server, model))
    most = min([most, *caps])
    return min(least, most), most
