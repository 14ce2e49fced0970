"""Where models may go, over all machines, kinds and sizes."""

from pathlib import Path

import pytest

from rustedvino.config.types import BYTES_PER_GB as GB
from rustedvino.config.types import ModelSettings, ServerSettings, SpeculativeSettings
from rustedvino.hub.footprint import GPU_CONTEXT_BYTES, Footprint
from rustedvino.hub.inventory import SYSTEM_RAM, Device, Inventory, UnknownDevice, load_inventory
from rustedvino.hub.ledger import open_ledger
from rustedvino.hub.placement import is_light, place, tier_of, tier_order

QA = Path(__file__).parents[2] / "qa" / "inventories"
MACHINES = {path.stem: load_inventory(path) for path in QA.glob("*.json")}
KINDS = ("text_gen", "vision", "embedding", "reranking", "stt", "tts", "image_gen", "decision")


def server(inventory, **changes):
    """Budgets as reported: the default device is one that exists and its own setting is out of the way."""
    found = {"models_dir": Path("models"), "device": "CPU", "total_vram_gb": 1000.0, **changes}
    return ServerSettings(**found)


def footprints(inventory, size_gb, *, draft_gb=0.0):
    size, draft = int(size_gb * GB), int(draft_gb * GB)
    return {
        device.name: Footprint(
            model_bytes=size + draft,
            weights_bytes=int(size * 1.5) if device.type == "npu" else size,
            draft_bytes=draft,
            context_bytes=GPU_CONTEXT_BYTES if "GPU" in device.name else 0,
        )
        for device in inventory
    }


def placed(machine, kind, size_gb, *, model=None, used=None, draft_gb=0.0, **changes):
    inventory = MACHINES[machine]
    settings = server(inventory, **changes)
    ledger, _ = open_ledger(settings, inventory, platform="linux")
    if used:
        ledger.reserve("other", {domain: int(gb * GB) for domain, gb in used.items()})
    return place(
        kind,
        footprints(inventory, size_gb, draft_gb=draft_gb),
        inventory,
        ledger.view(),
        settings,
        model or ModelSettings(),
    )


def devices(placement):
    return [candidate.device for candidate in placement.candidates]


# machine, kind, GB, candidates in order
TABLE = [
    ("laptop-arc-igpu-npu", "text_gen", 5, ["GPU", "CPU"]),
    ("laptop-arc-igpu-npu", "vision", 5, ["GPU", "CPU"]),
    ("laptop-arc-igpu-npu", "decision", 1, ["GPU", "CPU"]),
    ("laptop-arc-igpu-npu", "text_gen", 20, ["CPU"]),  # more than the GPU addresses
    ("laptop-arc-igpu-npu", "text_gen", 40, []),
    ("laptop-arc-igpu-npu", "embedding", 0.5, ["GPU", "CPU"]),
    ("laptop-arc-igpu-npu", "reranking", 0.5, ["GPU", "CPU"]),
    ("laptop-arc-igpu-npu", "embedding", 5, ["GPU", "CPU"]),
    ("laptop-arc-igpu-npu", "stt", 0.5, ["NPU", "GPU", "CPU"]),
    ("laptop-arc-igpu-npu", "stt", 1.5, ["CPU", "GPU"]),
    ("laptop-arc-igpu-npu", "tts", 1.5, ["NPU", "GPU", "CPU"]),
    ("laptop-arc-igpu-npu", "tts", 2.5, ["CPU", "GPU"]),
    ("laptop-arc-igpu-npu", "image_gen", 4, ["GPU", "CPU"]),
    ("laptop-uhd-igpu", "text_gen", 5, ["CPU", "GPU"]),
    ("laptop-uhd-igpu", "embedding", 0.5, ["CPU", "GPU"]),
    ("laptop-uhd-igpu", "stt", 0.5, ["GPU", "CPU"]),
    ("laptop-uhd-igpu", "image_gen", 4, ["CPU", "GPU"]),
    ("one-arc", "text_gen", 8, ["GPU", "CPU"]),
    ("one-arc", "text_gen", 12, ["CPU"]),  # over 0.8 of 14.1
    ("one-arc", "embedding", 0.5, ["CPU", "GPU"]),
    ("one-arc", "embedding", 5, ["GPU", "CPU"]),
    ("one-arc", "stt", 0.5, ["CPU"]),
    ("one-arc", "stt", 3, ["CPU", "GPU"]),
    ("one-arc", "image_gen", 7, ["GPU", "CPU"]),
    ("two-arc-igpu", "text_gen", 8, ["GPU.2", "GPU.1", "CPU", "GPU.0"]),
    ("two-arc-igpu", "vision", 14, ["GPU.2", "CPU", "GPU.0"]),
    ("two-arc-igpu", "decision", 18, ["CPU", "GPU.0"]),
    ("two-arc-igpu", "tts", 0.1, ["GPU.0", "CPU"]),
    ("two-arc-igpu", "reranking", 0.1, ["CPU", "GPU.2", "GPU.1", "GPU.0"]),
    *[("cpu-only", kind, 2, ["CPU"]) for kind in KINDS],
    ("cpu-only", "text_gen", 30, []),
]


@pytest.mark.parametrize(("machine", "kind", "size_gb", "expected"), TABLE)
def test_automatic_placement(machine, kind, size_gb, expected):
    placement = placed(machine, kind, size_gb)
    assert devices(placement) == expected
    assert placement.device == (expected[0] if expected else None)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size_gb", [0.1, 1.5, 9, 13, 20, 100])
def test_every_device_has_its_reason_and_one_verdict(machine, kind, size_gb):
    placement = placed(machine, kind, size_gb)
    accepted = devices(placement)
    rejected = [rejection.device for rejection in placement.rejections]
    assert not set(accepted) & set(rejected)
    for device in MACHINES[machine]:
        lines = [line for line in placement.reasons if line.startswith(f"{device.name} (")]
        assert len(lines) == 1
        word = "fits" if device.name in accepted else "skipped" if device.name in rejected else "not among"
        assert word in lines[0]
        assert tier_of(device) in lines[0]


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("kind", ["embedding", "reranking"])
def test_retrieval_is_never_put_on_an_npu_by_itself(machine, kind):
    model = ModelSettings(tier_preference=("npu",))
    assert "NPU" not in devices(placed(machine, kind, 0.1, model=model))
    if machine == "laptop-arc-igpu-npu":
        fixed = placed(machine, kind, 0.1, device="NPU", default_placement="device")
        assert devices(fixed) == ["CPU"]


def test_the_emptier_card_comes_first():
    assert devices(placed("two-arc-igpu", "text_gen", 4, used={"GPU.2": 15}))[:2] == ["GPU.1", "GPU.2"]


def test_a_full_card_stays_a_candidate():
    placement = placed("one-arc", "text_gen", 8, used={"GPU": 12})
    assert devices(placement) == ["GPU", "CPU"]
    assert any(line.startswith("GPU (heavy): needs room") for line in placement.reasons)


@pytest.mark.parametrize("kind", KINDS)
def test_the_device_of_a_model_wins(kind):
    model = ModelSettings(device="GPU.0", tier_preference=("heavy",))
    placement = placed("two-arc-igpu", kind, 13, model=model, embedding_device="CPU", default_placement="device")
    assert devices(placement) == ["GPU.0"]


def test_a_set_device_is_not_held_to_the_ceiling_but_to_its_budget():
    model = ModelSettings(device="GPU")
    assert devices(placed("one-arc", "text_gen", 13, model=model)) == ["GPU"]
    too_large = placed("one-arc", "text_gen", 15, model=model)
    assert too_large.candidates == ()
    assert [(rejection.device, rejection.domain) for rejection in too_large.rejections] == [("GPU", "GPU")]


def test_an_alias_is_resolved_and_a_missing_device_named():
    assert devices(placed("one-arc", "stt", 0.2, model=ModelSettings(device="GPU.0"))) == ["GPU"]
    with pytest.raises(UnknownDevice, match=r"there is CPU and GPU$"):
        placed("one-arc", "stt", 0.2, model=ModelSettings(device="NPU"))
    with pytest.raises(UnknownDevice, match="NPU"):
        placed("one-arc", "embedding", 0.2, embedding_device="NPU")
    speculative = SpeculativeSettings(draft_model="d", draft_device="GPU.5")
    with pytest.raises(UnknownDevice, match=r"GPU\.5"):
        placed("one-arc", "text_gen", 2, draft_gb=0.5, model=ModelSettings(speculative=speculative))


def test_embedding_device_is_for_embeddings_alone():
    assert devices(placed("one-arc", "embedding", 0.2, embedding_device="GPU")) == ["GPU"]
    assert devices(placed("one-arc", "reranking", 0.2, embedding_device="GPU")) == ["CPU", "GPU"]


def test_default_placement_device_puts_everything_there():
    for kind in KINDS:
        found = placed("two-arc-igpu", kind, 3, device="GPU.1", total_vram_gb=12.0, default_placement="device")
        assert devices(found) == ["GPU.1"]


def test_tier_preference_reorders():
    model = ModelSettings(tier_preference=("weak-igpu", "fallback"))
    assert devices(placed("two-arc-igpu", "text_gen", 4, model=model)) == ["GPU.0", "CPU", "GPU.2", "GPU.1"]
    npu = ModelSettings(tier_preference=("npu",))
    assert devices(placed("laptop-arc-igpu-npu", "text_gen", 4, model=npu)) == ["NPU", "GPU", "CPU"]


def test_the_ceiling_is_of_the_budget_and_counts_the_draft():
    def on_card(size_gb, **changes):
        found = placed("one-arc", "text_gen", size_gb, device="GPU", total_vram_gb=11.0, **changes)
        return "GPU" in devices(found)

    assert on_card(7.9)
    assert not on_card(8.1)
    assert on_card(8.1, dgpu_size_ceiling_fraction=0.9)
    assert not on_card(7.9, draft_gb=0.3)


def test_the_ceiling_of_a_card_without_gating_is_of_its_memory():
    found = placed("one-arc", "text_gen", 13, device="GPU", total_vram_gb=0)
    assert devices(found) == ["CPU"]
    assert "dgpu_size_ceiling_fraction" in found.rejections[0].reason


def test_a_draft_counts_where_it_is():
    speculative = SpeculativeSettings(draft_model="d", draft_device="CPU")
    model = ModelSettings(device="GPU", speculative=speculative)
    (candidate,) = placed("one-arc", "text_gen", 2, draft_gb=1, model=model).candidates
    assert candidate.demand["GPU"] == 2 * GB + GPU_CONTEXT_BYTES
    assert candidate.demand[SYSTEM_RAM] == GB + candidate.footprint.process_bytes


def test_only_light_models_spare_others():
    assert placed("one-arc", "embedding", 0.2).spares_others
    assert not placed("one-arc", "embedding", 5).spares_others
    assert not placed("one-arc", "text_gen", 0.2).spares_others


@pytest.mark.parametrize(
    ("kind", "at", "light"),
    [("stt", 1.0, True), ("stt", 1.01, False), ("tts", 2.0, True), ("tts", 2.01, False), ("embedding", 2.0, True)]
    + [(kind, 0.01, False) for kind in ("text_gen", "vision", "image_gen", "decision")],
)
def test_what_is_light(kind, at, light):
    assert is_light(kind, int(at * GB), server(MACHINES["cpu-only"])) is light


@pytest.mark.parametrize(
    ("full_name", "capabilities", "architecture", "tier"),
    [
        ("Intel(R) UHD Graphics 770 (iGPU)", (), "GPU: vendor=0x8086 arch=v12.2.0", "weak-igpu"),
        ("Intel(R) Iris(R) Xe Graphics (iGPU)", (), None, "weak-igpu"),
        ("Intel(R) Arc(TM) Graphics (iGPU)", (), "GPU: vendor=0x8086 arch=v12.71.4", "strong-igpu"),
        ("Intel(R) Graphics (iGPU)", ("GPU_HW_MATMUL",), "GPU: vendor=0x8086 arch=v12.74.4", "strong-igpu"),
        ("Intel(R) Graphics (iGPU)", (), "GPU: vendor=0x8086 arch=v30.0.4", "strong-igpu"),
        ("Intel(R) Monarch Graphics (iGPU)", (), None, "weak-igpu"),
    ],
)
def test_the_tier_of_integrated_gpus(full_name, capabilities, architecture, tier):
    device = Device(
        name="GPU", full_name=full_name, type="integrated", capabilities=capabilities, architecture=architecture
    )
    assert tier_of(device) == tier


def test_every_order_ends_without_repeats():
    for kind in KINDS:
        for light in (True, False):
            order = tier_order(kind, light=light, preference=("fallback", "npu", "fallback"))
            assert len(order) == len(set(order))
            assert order[0] == "fallback"


def test_a_machine_without_a_suitable_device_has_no_candidate():
    inventory = Inventory((Device(name="NPU", full_name="n", type="npu", total_memory_bytes=GB),))
    settings = server(inventory, device="NPU")
    ledger, _ = open_ledger(settings, inventory)
    found = place("embedding", footprints(inventory, 0.1), inventory, ledger.view(), settings, ModelSettings())
    assert (found.candidates, found.rejections, found.device) == ((), (), None)
