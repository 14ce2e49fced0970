"""The devices of this machine and the memory each draws on, as values; who asks the runtime is not known here."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, get_args

from attrs import asdict, frozen

from rustedvino.config.types import BYTES_PER_GB, ServerSettings

DeviceType = Literal["cpu", "integrated", "discrete", "npu"]

SYSTEM_RAM: Final = "system_ram"
"""The memory domain that CPU, integrated GPU and NPU share."""
MAX_INVENTORY_BYTES: Final = 1024 * 1024

_REQUIRED: Final = ("name", "full_name", "type")
_OPTIONAL: Final = ("total_memory_bytes", "capabilities", "driver", "architecture", "pci_address")


class InventoryProblem(Exception):
    """A device list cannot be used; the text names the entry and the field."""


class UnknownDevice(Exception):
    """No such device on this machine; the text names those that exist."""


@frozen(kw_only=True)
class Device:
    """One device as the runtime names it.

    ``total_memory_bytes`` is what the driver reports: the card's own memory for a discrete GPU, else what the device
    can address of the system's RAM; for the CPU it is the installed RAM. None where nothing was reported.
    ``pci_address`` is written as the kernel does (``0000:03:00.0``); it ties the device to its DRM statistics.
    """

    name: str
    full_name: str
    type: DeviceType
    total_memory_bytes: int | None = None
    capabilities: tuple[str, ...] = ()
    driver: str | None = None
    architecture: str | None = None
    pci_address: str | None = None


@frozen
class Inventory:
    """All devices, in the runtime's order. Raises InventoryProblem for none, or for a name given twice."""

    devices: tuple[Device, ...]

    def __attrs_post_init__(self) -> None:
        if not self.devices:
            raise InventoryProblem("an inventory needs at least one device")
        seen: set[str] = set()
        for device in self.devices:
            name = _plain(device.name)
            if name in seen:
                raise InventoryProblem(f"the device {device.name!r} is listed twice ({name} and {name}.0 are one)")
            seen.add(name)

    def __iter__(self) -> Iterator[Device]:
        return iter(self.devices)

    @property
    def names(self) -> tuple[str, ...]:
        """The names by which the runtime lists the devices."""
        return tuple(device.name for device in self.devices)

    def find(self, name: str) -> Device | None:
        """The device of that name, with and without ``.0`` ("GPU" is "GPU.0"); None when there is none."""
        plain = _plain(name)
        return next((device for device in self.devices if _plain(device.name) == plain), None)

    def get(self, name: str) -> Device:
        """As ``find``. Raises UnknownDevice."""
        device = self.find(name)
        if device is None:
            raise UnknownDevice(self.unknown_device_message(name))
        return device

    def domain(self, name: str) -> str:
        """The memory domain of a device: a discrete GPU is its own, all others share ``system_ram``.

        Raises UnknownDevice.
        """
        device = self.get(name)
        return device.name if device.type == "discrete" else SYSTEM_RAM

    def domains(self) -> tuple[str, ...]:
        """Every memory domain: ``system_ram`` and the discrete GPUs."""
        return (SYSTEM_RAM, *(device.name for device in self.devices if device.type == "discrete"))

    def domain_of_text(self, text: str) -> str | None:
        """The domain that a text of the configuration means: ``system_ram`` or a discrete GPU's name, else None."""
        if text == SYSTEM_RAM:
            return SYSTEM_RAM
        device = self.find(text)
        return device.name if device is not None and device.type == "discrete" else None

    def domain_total_bytes(self, domain: str) -> int | None:
        """What the driver or the system reports for a domain; None where unknown."""
        if domain == SYSTEM_RAM:
            cpu = next((device for device in self.devices if device.type == "cpu"), None)
            return cpu.total_memory_bytes if cpu is not None else None
        return self.get(domain).total_memory_bytes

    def unknown_device_message(self, name: str) -> str:
        """Say that a device does not exist, and which do."""
        return f"the device {name!r} does not exist on this machine; there is {_listing(self.names)}"


def missing_devices(settings: ServerSettings, inventory: Inventory) -> list[str]:
    """One line for each place of the configuration that names a device which does not exist."""
    named: list[tuple[str, str]] = [("device", settings.device)]
    if settings.embedding_device is not None:
        named.append(("embedding_device", settings.embedding_device))
    named += [(f"device_budgets.{name}", name) for name in settings.device_budgets]
    for model_id, model in settings.models.items():
        if model.device is not None:
            named.append((f"models.{model_id}.device", model.device))
        if model.speculative is not None and model.speculative.draft_device is not None:
            named.append((f"models.{model_id}.speculative.draft_device", model.speculative.draft_device))
    return [
        f"{where}: {inventory.unknown_device_message(name)}" for where, name in named if inventory.find(name) is None
    ]


def from_facts(facts: Sequence[Mapping[str, Any]]) -> Inventory:
    """An inventory from the answers of a worker, or from the entries of a file. Raises InventoryProblem."""
    return Inventory(tuple(_device(entry, f"devices[{index}]") for index, entry in enumerate(facts)))


def from_json(text: str) -> Inventory:
    """Read ``{"devices": [{"name", "full_name", "type", ...}]}``. Raises InventoryProblem."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InventoryProblem(f"not valid JSON: {error}") from error
    if not isinstance(value, dict) or not isinstance(value.get("devices"), list):
        raise InventoryProblem('an inventory is an object with a list "devices"')
    unknown = sorted(set(value) - {"devices"})
    if unknown:
        raise InventoryProblem(f"unknown field {unknown[0]!r} beside devices")
    return from_facts(value["devices"])


def to_json(inventory: Inventory) -> str:
    """The text that ``from_json`` reads."""
    return json.dumps({"devices": [asdict(device) for device in inventory]}, indent=2) + "\n"


def load_inventory(path: Path) -> Inventory:
    """Read an inventory file. Raises InventoryProblem naming the file."""
    try:
        if path.stat().st_size > MAX_INVENTORY_BYTES:
            raise InventoryProblem(f"it is larger than {MAX_INVENTORY_BYTES} bytes")
        return from_json(path.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise InventoryProblem(f"{path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InventoryProblem(f"{path}: not UTF-8") from error
    except InventoryProblem as error:
        raise InventoryProblem(f"{path}: {error}") from error


def render_table(inventory: Inventory) -> str:
    """The devices as a table for people: name, type, memory, domain, full name."""
    rows = [("device", "type", "memory", "domain", "name")]
    rows += [
        (device.name, device.type, _size(device.total_memory_bytes), inventory.domain(device.name), device.full_name)
        for device in inventory
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row[:4], widths, strict=True)), row[4]]) for row in rows
    )


def render_details(inventory: Inventory) -> str:
    """Everything that is known of each device, a paragraph each."""
    paragraphs = []
    for device in inventory:
        lines = [
            ("type", device.type),
            ("memory", _size(device.total_memory_bytes)),
            ("memory domain", inventory.domain(device.name)),
            ("architecture", device.architecture or "not reported"),
            ("driver", device.driver or "not reported"),
            ("PCI address", device.pci_address or "not reported"),
            ("capabilities", " ".join(device.capabilities) or "not reported"),
        ]
        paragraphs.append(
            "\n".join([f"{device.name}: {device.full_name}", *(f"  {label + ':':<15}{text}" for label, text in lines)])
        )
    return "\n\n".join(paragraphs)


def _device(entry: Any, where: str) -> Device:
    if not isinstance(entry, Mapping):
        raise InventoryProblem(f"{where}: must be an object")
    unknown = sorted(str(name) for name in set(entry) - {*_REQUIRED, *_OPTIONAL})
    if unknown:
        raise InventoryProblem(f"{where}: unknown field {unknown[0]!r}; there are {', '.join(_REQUIRED + _OPTIONAL)}")
    for name in _REQUIRED:
        if name not in entry:
            raise InventoryProblem(f"{where}.{name}: is missing")
    for name in (*_REQUIRED, "driver", "architecture", "pci_address"):
        value = entry.get(name)
        if not (isinstance(value, str) and value) and not (value is None and name not in _REQUIRED):
            raise InventoryProblem(f"{where}.{name}: must be a non-empty text, got {value!r}")
    if entry["type"] not in get_args(DeviceType):
        raise InventoryProblem(f"{where}.type: must be one of {', '.join(get_args(DeviceType))}, got {entry['type']!r}")
    total = entry.get("total_memory_bytes")
    if total is not None and (type(total) is not int or total <= 0):
        raise InventoryProblem(f"{where}.total_memory_bytes: must be a whole number above 0 or null, got {total!r}")
    capabilities = entry.get("capabilities", ())
    if not isinstance(capabilities, (list, tuple)) or not all(isinstance(text, str) for text in capabilities):
        raise InventoryProblem(f"{where}.capabilities: must be a list of texts, got {capabilities!r}")
    return Device(
        name=entry["name"],
        full_name=entry["full_name"],
        type=entry["type"],
        total_memory_bytes=total,
        capabilities=tuple(capabilities),
        driver=entry.get("driver"),
        architecture=entry.get("architecture"),
        pci_address=entry.get("pci_address"),
    )


def _plain(name: str) -> str:
    """The name without the ``.0`` that stands for the first device, or the first tile, of a family."""
    while name.endswith(".0"):
        name = name.removesuffix(".0")
    return name


def _listing(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _size(total: int | None) -> str:
    return "unknown" if total is None else f"{total / BYTES_PER_GB:.1f} GB"
