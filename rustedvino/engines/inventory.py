"""The devices of this machine, asked of the runtime. Runs in a short-lived worker: drivers may crash when opened."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import openvino as ov

from rustedvino.worker.platform import system_ram_bytes

_TYPE_BY_FAMILY: Final = {"CPU": "cpu", "NPU": "npu"}
_INTEL_VENDOR: Final = "8680"
"""The vendor id as the device UUID of Intel's GPU driver begins."""


def read_inventory() -> list[dict[str, Any]]:
    """Every CPU, GPU and NPU the runtime offers, a dict of plain values each (see `rustedvino.hub.inventory.Device`).

    A property that a driver does not answer is None; devices of other plugins are left out: models are not
    placed on them.
    """
    core = ov.Core()
    return [describe(name, core.get_property) for name in core.available_devices if _family(name) is not None]


def describe(name: str, get_property: Callable[[str, str], Any]) -> dict[str, Any]:
    """The facts of one device; ``get_property`` may raise for any property."""

    def ask(*keys: str) -> Any:
        for key in keys:
            try:
                value = get_property(name, key)
            except (RuntimeError, TypeError):  # not supported, or of a type without a Python form
                continue
            if value is not None and value != "":
                return value
        return None

    family = _family(name)
    full_name = str(ask("FULL_DEVICE_NAME") or name)
    capabilities = ask("OPTIMIZATION_CAPABILITIES")
    kind = _TYPE_BY_FAMILY.get(family or "") or _gpu_type(ask("DEVICE_TYPE"), full_name)
    total = system_ram_bytes() if family == "CPU" else ask("GPU_DEVICE_TOTAL_MEM_SIZE", "NPU_DEVICE_TOTAL_MEM_SIZE")
    driver = ask("NPU_DRIVER_VERSION", "GPU_DRIVER_VERSION")
    architecture = ask("DEVICE_ARCHITECTURE")
    return {
        "name": name,
        "full_name": full_name,
        "type": kind,
        "total_memory_bytes": int(total) if total else None,
        "capabilities": [str(text) for text in capabilities] if isinstance(capabilities, Sequence) else [],
        "driver": None if driver is None else str(driver),
        "architecture": None if architecture is None else str(architecture),
        "pci_address": pci_address(str(ask("DEVICE_UUID") or "")) if family == "GPU" else None,
    }


def pci_address(uuid: str) -> str | None:
    """The PCI address inside the UUID of an Intel GPU, None for any other text.

    The driver builds it of little-endian vendor, device, revision and PCI domain (2 bytes each), then bus, device and
    function (1 byte each).
    """
    try:
        raw = bytes.fromhex(uuid)
    except ValueError:
        return None
    if len(raw) != 16 or not uuid.lower().startswith(_INTEL_VENDOR):
        return None
    domain = int.from_bytes(raw[6:8], "little")
    return f"{domain:04x}:{raw[8]:02x}:{raw[9]:02x}.{raw[10]:x}"


def _family(name: str) -> str | None:
    family = name.partition(".")[0]
    return family if family in ("CPU", "GPU", "NPU") else None


def _gpu_type(answer: object, full_name: str) -> str:
    text = str(answer).lower()
    if "discrete" in text or "integrated" in text:
        return "discrete" if "discrete" in text else "integrated"
    # Shared memory is the careful guess: it is bounded by the system's RAM as well.
    return "discrete" if "(dgpu)" in full_name.lower() else "integrated"
