"""The size of a KV pool."""

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from rustedvino.config.types import ModelSettings
from rustedvino.hub.model_files import KvShape, ModelProblem, inspect_folder
from rustedvino.hub.pool import MIN_BLOCKS, block_size, pool_blocks
from tests.support.actors import model_folder, server_settings

FILES = inspect_folder(model_folder("tiny-qwen3"))
assert FILES.kv_shape is not None
PER_BLOCK = FILES.kv_shape.block_bytes(32, "u8")
GB = 2**30


def test_block_sizes_of_the_device_families() -> None:
    assert (block_size("CPU"), block_size("GPU"), block_size("GPU.1")) == (32, 16, 16)


def test_the_models_own_size_wins_over_the_default_and_the_cap_over_both() -> None:
    server = server_settings(default_kv_cache_gb=0.5)
    assert pool_blocks(FILES, server, ModelSettings(), "CPU") == GB // 2 // PER_BLOCK
    assert pool_blocks(FILES, server, ModelSettings(kv_cache_gb=0.25), "CPU") == GB // 4 // PER_BLOCK
    capped = evolve(server, cache_size_gb=0.125)
    assert pool_blocks(FILES, capped, ModelSettings(kv_cache_gb=0.25), "CPU") == GB // 8 // PER_BLOCK


def test_by_itself_it_holds_every_slot_at_full_context_within_a_share() -> None:
    server = server_settings(default_kv_cache_gb=0.0, max_num_seqs=4)
    assert FILES.context_tokens is not None
    assert pool_blocks(FILES, server, ModelSettings(), "CPU") == 4 * -(-FILES.context_tokens // 32)
    small = evolve(server, total_vram_gb=0.01)
    assert pool_blocks(FILES, small, ModelSettings(), "CPU") == int(round(0.01 * GB) * 0.25) // PER_BLOCK


def test_too_small_a_pool_says_so() -> None:
    with pytest.raises(ModelProblem, match="at least 16 are needed"):
        pool_blocks(FILES, server_settings(), ModelSettings(kv_cache_gb=(MIN_BLOCKS * PER_BLOCK - 1) / GB), "CPU")
    exact = ModelSettings(kv_cache_gb=MIN_BLOCKS * PER_BLOCK / GB)
    assert pool_blocks(FILES, server_settings(), exact, "CPU") == MIN_BLOCKS


def test_a_model_without_a_shape_says_so() -> None:
    with pytest.raises(ModelProblem, match="does not say layers and heads"):
        pool_blocks(evolve(FILES, kv_shape=None), server_settings(), ModelSettings(), "CPU")


@settings(deadline=None)
@given(
    shape=st.builds(KvShape, layers=st.integers(1, 200), heads=st.integers(1, 128), head_dim=st.integers(1, 512)),
    pool_gb=st.floats(0.0001, 64),
    precision=st.sampled_from(["", "u8", "f16", "f32"]),
    device=st.sampled_from(["CPU", "GPU"]),
)
def test_a_pool_never_exceeds_what_was_given(shape: KvShape, pool_gb: float, precision: str, device: str) -> None:
    server = server_settings(kv_cache_precision=precision)
    try:
        blocks = pool_blocks(evolve(FILES, kv_shape=shape), server, ModelSettings(kv_cache_gb=pool_gb), device)
    except ModelProblem:
        return
    per_block = shape.block_bytes(block_size(device), precision)
    assert blocks >= MIN_BLOCKS
    assert blocks * per_block <= round(pool_gb * GB) < (blocks + 1) * per_block
