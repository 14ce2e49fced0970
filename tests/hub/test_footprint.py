"""The estimate of a model's memory, part by part."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rustedvino.config.types import BYTES_PER_GB as GB
from rustedvino.config.types import ModelSettings, ServerSettings, SpeculativeSettings
from rustedvino.hub.footprint import GPU_CONTEXT_BYTES, PROCESS_BYTES, Footprint, demand, estimate
from rustedvino.hub.inventory import SYSTEM_RAM, load_inventory
from rustedvino.hub.model_files import KvShape, ModelFiles

QA = Path(__file__).parents[2] / "qa" / "inventories"
LAPTOP = load_inventory(QA / "laptop-arc-igpu-npu.json")
TWO_ARC = load_inventory(QA / "two-arc-igpu.json")
SHAPE = KvShape(layers=36, heads=8, head_dim=128)


def files(kind="text_gen", *, weights=5 * GB, shape=SHAPE, context=40960):
    return ModelFiles(
        folder=Path("m"),
        kind=kind,
        family="qwen3",
        context_tokens=context,
        vocab_size=None,
        eos_token_ids=(),
        kv_shape=shape,
        weights_bytes=weights,
        created=0,
    )


def server(**changes):
    return ServerSettings(models_dir=Path("models"), device="CPU", total_vram_gb=0, **changes)


def on(device, *, model=None, budget=12 * GB, inventory=TWO_ARC, draft=0, what=None, **changes):
    return estimate(
        what or files(),
        model or ModelSettings(),
        server(**changes),
        inventory.get(device),
        budget_bytes=budget,
        draft_disk_bytes=draft,
    )


def test_weights_come_from_disk_or_from_vram_gb():
    assert on("GPU.1").weights_bytes == 5 * GB
    assert on("GPU.1", model=ModelSettings(vram_gb=6.5)).weights_bytes == int(6.5 * GB)
    assert on("GPU.1", model=ModelSettings(vram_gb=6.5)).model_bytes == int(6.5 * GB)


def test_an_npu_is_charged_by_its_factor_and_has_no_pool():
    found = on("NPU", inventory=LAPTOP, npu_footprint_factor=2.0)
    assert (found.weights_bytes, found.model_bytes) == (10 * GB, 5 * GB)
    assert (found.kv_min_bytes, found.kv_max_bytes, found.context_bytes) == (0, 0, 0)


@pytest.mark.parametrize("kind", ["embedding", "reranking", "stt", "tts", "image_gen"])
def test_kinds_without_a_pool(kind):
    found = on("GPU.1", what=files(kind))
    assert (found.kv_min_bytes, found.kv_max_bytes) == (0, 0)
    assert found.total_bytes == 5 * GB + GPU_CONTEXT_BYTES + PROCESS_BYTES


def test_a_configured_pool_is_exact_and_capped():
    assert on("GPU.1", model=ModelSettings(kv_cache_gb=3)).kv_min_bytes == 3 * GB
    assert on("GPU.1", default_kv_cache_gb=2).kv_max_bytes == 2 * GB
    assert on("GPU.1", model=ModelSettings(kv_cache_gb=0.5)).kv_min_bytes == GB // 2  # below the least, but asked for
    capped = on("GPU.1", model=ModelSettings(kv_cache_gb=3), cache_size_gb=2)
    assert (capped.kv_min_bytes, capped.kv_max_bytes) == (2 * GB, 2 * GB)


def test_an_automatic_pool_ranges_from_the_least_to_all_contexts():
    found = on("GPU.1")
    assert found.kv_min_bytes == GB
    assert found.kv_max_bytes == 16 * 40960 // 16 * SHAPE.block_bytes(16, "u8")
    assert on("GPU.1", cache_size_gb=4).kv_max_bytes == 4 * GB


def test_a_model_that_can_use_less_than_the_least_asks_for_that():
    small = files(shape=KvShape(layers=2, heads=2, head_dim=32), context=512)
    found = on("GPU.1", what=small)
    assert found.kv_min_bytes == found.kv_max_bytes < GB


def test_a_cpu_pool_stays_within_a_quarter_of_the_budget():
    assert on("CPU", budget=12 * GB).kv_max_bytes == 3 * GB
    tight = on("CPU", budget=2 * GB)
    assert (tight.kv_min_bytes, tight.kv_max_bytes) == (GB // 2, GB // 2)


def test_without_a_budget_the_pool_is_bounded_by_the_device():
    assert on("GPU.1", budget=None).kv_max_bytes == 16225243136 // 4


def test_a_draft_is_charged_as_said_or_by_its_size():
    by_size = ModelSettings(speculative=SpeculativeSettings(draft_model="d"))
    said = ModelSettings(speculative=SpeculativeSettings(draft_model="d", draft_vram_gb=1.5))
    assert on("GPU.1", model=by_size, draft=GB).draft_bytes == GB
    assert on("GPU.1", model=said, draft=GB).draft_bytes == int(1.5 * GB)
    assert on("GPU.1", model=said).model_bytes == int(6.5 * GB)
    assert on("GPU.1", draft=GB).draft_bytes == 0


def test_demand_separates_the_card_from_the_process():
    found = demand(on("GPU.1"), TWO_ARC, "GPU.1")
    assert found == {SYSTEM_RAM: PROCESS_BYTES, "GPU.1": 6 * GB + GPU_CONTEXT_BYTES}


def test_a_draft_elsewhere_is_asked_of_its_own_domain():
    model = ModelSettings(speculative=SpeculativeSettings(draft_model="d", draft_vram_gb=1))
    found = demand(on("GPU.1", model=model), TWO_ARC, "GPU.1", "CPU")
    assert found == {SYSTEM_RAM: PROCESS_BYTES + GB, "GPU.1": 6 * GB + GPU_CONTEXT_BYTES}


sizes = st.integers(0, 2**36)
footprints = st.builds(
    Footprint,
    model_bytes=sizes,
    weights_bytes=sizes,
    kv_min_bytes=sizes,
    kv_max_bytes=sizes,
    draft_bytes=sizes,
    context_bytes=sizes,
    process_bytes=sizes,
)


@settings(max_examples=100, deadline=None)
@given(footprints, st.sampled_from(TWO_ARC.names), st.sampled_from([None, *TWO_ARC.names]))
def test_demand_loses_and_doubles_nothing(footprint, device, draft_device):
    assert sum(demand(footprint, TWO_ARC, device, draft_device).values()) == footprint.total_bytes


def test_a_decided_pool():
    decided = on("GPU.1").with_pool(7)
    assert (decided.kv_min_bytes, decided.kv_max_bytes) == (7, 7)
