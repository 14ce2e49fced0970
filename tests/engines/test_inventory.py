"""Reading the inventory through the runtime: the real CPU, and devices described as drivers answer."""

import pytest

from rustedvino.engines.inventory import describe, pci_address, read_inventory
from rustedvino.hub.inventory import from_facts
from rustedvino.worker.platform import system_ram_bytes


def test_the_cpu_of_this_machine():
    inventory = from_facts(read_inventory())
    device = inventory.get("CPU")
    assert device.type == "cpu"
    assert device.total_memory_bytes == system_ram_bytes()
    assert "FP32" in device.capabilities
    assert device.full_name != "CPU"


def answers(table):
    def get_property(name, key):
        if key not in table:
            raise RuntimeError(f"unsupported property {key} of {name}")
        return table[key]

    return get_property


ARC = {
    "FULL_DEVICE_NAME": "Intel(R) Arc(TM) A770 Graphics (dGPU)",
    "DEVICE_TYPE": "Type.DISCRETE",
    "GPU_DEVICE_TOTAL_MEM_SIZE": 16225243136,
    "OPTIMIZATION_CAPABILITIES": ["FP16", "GPU_HW_MATMUL"],
    "DEVICE_ARCHITECTURE": "GPU: vendor=0x8086 arch=v12.55.8",
    "DEVICE_UUID": "8680a056080000000300000000000000",
    "GPU_DRIVER_VERSION": "26.05.37020.3",
}


def test_a_card_that_answers_everything():
    assert describe("GPU.1", answers(ARC)) == {
        "name": "GPU.1",
        "full_name": "Intel(R) Arc(TM) A770 Graphics (dGPU)",
        "type": "discrete",
        "total_memory_bytes": 16225243136,
        "capabilities": ["FP16", "GPU_HW_MATMUL"],
        "driver": "26.05.37020.3",
        "architecture": "GPU: vendor=0x8086 arch=v12.55.8",
        "pci_address": "0000:03:00.0",
    }


@pytest.mark.parametrize("missing", [*ARC, None])
def test_a_property_that_a_driver_refuses_costs_only_itself(missing):
    kept = {} if missing is None else {key: value for key, value in ARC.items() if key != missing}
    facts = describe("GPU", answers(kept))
    device = from_facts([facts]).get("GPU")
    # Without the type the name still tells; without both, shared memory is the careful guess.
    assert device.type == ("integrated" if missing is None else "discrete")


def test_an_npu_reports_its_driver():
    npu = {"FULL_DEVICE_NAME": "Intel(R) AI Boost", "NPU_DRIVER_VERSION": 1738334590, "DEVICE_TYPE": "Type.INTEGRATED"}
    facts = describe("NPU", answers(npu))
    assert (facts["type"], facts["driver"], facts["pci_address"]) == ("npu", "1738334590", None)


@pytest.mark.parametrize("text", ["", "xyz", "8680a056", "de10a056080000000300000000000000"])
def test_other_uuids_give_no_address(text):
    assert pci_address(text) is None
