"""Devices, their memory domains, and inventory files."""

import json
from pathlib import Path

import pytest

from rustedvino.config.types import ModelSettings, ServerSettings, SpeculativeSettings
from rustedvino.hub.inventory import (
    SYSTEM_RAM,
    Device,
    Inventory,
    InventoryProblem,
    UnknownDevice,
    from_json,
    load_inventory,
    missing_devices,
    render_details,
    render_table,
    to_json,
)

FILES = sorted((Path(__file__).parents[2] / "qa" / "inventories").glob("*.json"))
TWO_ARC = next(path for path in FILES if path.stem == "two-arc-igpu")


def cpu(**changes):
    return {"name": "CPU", "full_name": "A CPU", "type": "cpu", **changes}


def test_every_inventory_file_is_read_and_written_back():
    assert len(FILES) == 5
    for path in FILES:
        inventory = load_inventory(path)
        assert inventory.find("CPU") is not None
        assert from_json(to_json(inventory)) == inventory


def test_only_discrete_gpus_have_a_memory_domain_of_their_own():
    inventory = load_inventory(TWO_ARC)
    assert inventory.domains() == (SYSTEM_RAM, "GPU.1", "GPU.2")
    assert [inventory.domain(name) for name in inventory.names] == [SYSTEM_RAM, SYSTEM_RAM, "GPU.1", "GPU.2"]
    assert inventory.domain_total_bytes(SYSTEM_RAM) == 64 * 2**30
    assert inventory.domain_total_bytes("GPU.1") == 16225243136


@pytest.mark.parametrize("listed", ["GPU", "GPU.0"])
@pytest.mark.parametrize("asked", ["GPU", "GPU.0", "GPU.0.0"])
def test_a_name_with_and_without_zero_is_one_device(listed, asked):
    inventory = Inventory((Device(name=listed, full_name="Card", type="discrete"),))
    assert inventory.get(asked).name == listed
    assert inventory.domain(asked) == listed
    assert inventory.domain_of_text(asked) == listed


def test_an_unknown_device_is_named_with_those_that_exist():
    with pytest.raises(UnknownDevice, match=r"'GPU.3' does not exist .* CPU, GPU.0, GPU.1 and GPU.2$"):
        load_inventory(TWO_ARC).get("GPU.3")


def test_domain_texts_that_name_no_domain():
    inventory = load_inventory(TWO_ARC)
    assert [inventory.domain_of_text(text) for text in ("CPU", "GPU.0", "GPU.9", "ram")] == [None] * 4


def test_every_configured_device_that_is_missing_is_named(tmp_path):
    settings = ServerSettings(
        models_dir=tmp_path,
        device="GPU.7",
        total_vram_gb=0,
        embedding_device="NPU",
        device_budgets={"CPU": 2, "GPU.8": 1},
        models={
            "a": ModelSettings(device="GPU.1"),
            "b": ModelSettings(device="GPU.9", speculative=SpeculativeSettings(draft_model="d", draft_device="NPU")),
        },
    )
    places = [line.partition(": ")[0] for line in missing_devices(settings, load_inventory(TWO_ARC))]
    assert places == [
        "device",
        "embedding_device",
        "device_budgets.GPU.8",
        "models.b.device",
        "models.b.speculative.draft_device",
    ]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([], 'an object with a list "devices"'),
        ({"devices": []}, "at least one device"),
        ({"devices": [cpu()], "device": 1}, "unknown field 'device'"),
        ({"devices": ["CPU"]}, r"devices\[0\]: must be an object"),
        ({"devices": [cpu(), cpu(name="GPU", memory=1)]}, r"devices\[1\]: unknown field 'memory'"),
        ({"devices": [{"name": "CPU", "type": "cpu"}]}, r"devices\[0\].full_name: is missing"),
        ({"devices": [cpu(name="")]}, r"devices\[0\].name: must be a non-empty text"),
        ({"devices": [cpu(driver=1)]}, r"devices\[0\].driver: must be"),
        ({"devices": [cpu(type="gpu")]}, r"devices\[0\].type: must be one of cpu, integrated, discrete, npu"),
        ({"devices": [cpu(total_memory_bytes=0)]}, r"devices\[0\].total_memory_bytes: must be"),
        ({"devices": [cpu(total_memory_bytes=True)]}, r"devices\[0\].total_memory_bytes: must be"),
        ({"devices": [cpu(total_memory_bytes=1.5)]}, r"devices\[0\].total_memory_bytes: must be"),
        ({"devices": [cpu(capabilities="FP16")]}, r"devices\[0\].capabilities: must be a list"),
        ({"devices": [cpu(name="GPU"), cpu(name="GPU.0")]}, "'GPU.0' is listed twice"),
    ],
)
def test_a_wrong_inventory_names_the_field(value, said):
    with pytest.raises(InventoryProblem, match=said):
        from_json(json.dumps(value))


def test_a_file_problem_names_the_file(tmp_path):
    broken, binary = tmp_path / "broken.json", tmp_path / "binary.json"
    broken.write_text("{")
    binary.write_bytes(b"\xff\xfe\x00")
    for path in (broken, binary, tmp_path / "none.json"):
        with pytest.raises(InventoryProblem, match=path.name):
            load_inventory(path)


def test_a_byte_order_mark_is_fine(tmp_path):
    path = tmp_path / "marked.json"
    path.write_bytes(b"\xef\xbb\xbf" + TWO_ARC.read_bytes())
    assert load_inventory(path) == load_inventory(TWO_ARC)


def test_texts_for_people_show_every_device():
    inventory = load_inventory(TWO_ARC)
    table = render_table(inventory).splitlines()
    assert table[0].split() == ["device", "type", "memory", "domain", "name"]
    assert [line.split()[:5] for line in table[1:]] == [
        ["CPU", "cpu", "64.0", "GB", "system_ram"],
        ["GPU.0", "integrated", "60.0", "GB", "system_ram"],
        ["GPU.1", "discrete", "15.1", "GB", "GPU.1"],
        ["GPU.2", "discrete", "22.7", "GB", "GPU.2"],
    ]
    details = render_details(inventory)
    assert details.count("memory domain:") == 4
    assert "GPU.2: Intel(R) Arc(TM) Pro B60 Graphics (dGPU)" in details
    assert "0000:07:00.0" in details
