"""How much memory a process and the machine really use, read from the kernel. None where it does not say.

Reading ``smaps_rollup`` walks the page tables of the process: up to a tenth of a second for a large model, and a tenth
of this server's time when it is done every 5 s. Call `process_memory` in a thread, and only when `is_outdated`.
"""

import mmap
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from attrs import frozen

PROC: Final = Path("/proc")
MAX_FDS: Final = 4096
"""Open files of one process that are looked at for DRM statistics."""
MAX_FILE_BYTES: Final = 64 * 1024
GREAT_CHANGE: Final = 1 / 8
SMALL_CHANGE: Final = 1 / 128
CREEP_SECS: Final = 60.0

_UNITS: Final = {"": 1, "B": 1, "kB": 2**10, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_LINE: Final = re.compile(r"^(\S+):\s+(\d+) ?(\w*)$", re.MULTILINE)
_DRM_LINE: Final = re.compile(r"^(drm-[^:\s]+):\s*(.*?)\s*$", re.MULTILINE)
_SIZE: Final = re.compile(r"(\d+)\s*(B|KiB|MiB|GiB)?")
_REGION: Final = re.compile(r"drm-(total|resident|memory)-(.+)")
_LOCAL_REGION: Final = re.compile(r"(?:vram|local)\d*")
# "purgeable", "active" and "shared" are parts of what total and resident say already.
_DRM_DEVICES: Final = ("/dev/dri/", "/dev/accel/")


@frozen(kw_only=True)
class ProcessMemory:
    """Memory of one process in bytes.

    ``held_bytes`` is what comes back only when the process ends or frees it: anonymous, shared and swapped pages, its
    share of each. Pages of mapped files (weights) are left out: the system can take them back. It is what the
    ledger is told. ``pss_bytes`` is all pages by share, ``uss_bytes`` those of this process alone.
    """

    rss_bytes: int
    pss_bytes: int
    uss_bytes: int
    held_bytes: int


@frozen(kw_only=True)
class DrmClient:
    """One opening of a GPU by a process: ``local_bytes`` on the card, ``system_bytes`` of the system's memory.

    Resident where the driver says so, else all that is allocated.
    """

    pci_address: str | None
    client_id: str
    driver: str
    local_bytes: int
    system_bytes: int


@frozen(kw_only=True)
class GpuMemory:
    """GPU memory of one process. ``local_by_pci`` is by PCI address ("" where the driver gives none)."""

    local_by_pci: dict[str, int]
    system_bytes: int

    @property
    def local_bytes(self) -> int:
        """What is on cards, over all of them."""
        return sum(self.local_by_pci.values())


def resident_bytes(pid: int, proc: Path = PROC) -> int | None:
    """Resident memory of a process by the kernel's own running count: costs microseconds. None when it is gone."""
    text = _read(proc / str(pid) / "statm")
    fields = (text or "").split()
    return int(fields[1]) * mmap.PAGESIZE if len(fields) > 1 else None


def is_outdated(measured: ProcessMemory, age_secs: float, resident: int | None) -> bool:
    """Whether a process has grown or shrunk since it was measured so that it is worth measuring again: at once after
    a great change, now and then while it creeps, as a KV pool does that fills."""
    if resident is None:
        return True
    share = abs(resident - measured.rss_bytes) / max(measured.rss_bytes, 1)
    return share > GREAT_CHANGE or (share > SMALL_CHANGE and age_secs >= CREEP_SECS)


def process_memory(pid: int, proc: Path = PROC) -> ProcessMemory | None:
    """Memory of a process; None when it is gone, not ours, or the system has no ``smaps_rollup``."""
    text = _read(proc / str(pid) / "smaps_rollup")
    return None if text is None else parse_smaps_rollup(text)


def parse_smaps_rollup(text: str) -> ProcessMemory | None:
    """The sums of an ``smaps_rollup`` text; None for a text that is none (a process that has just ended)."""
    sizes = {name: int(number) * _UNITS.get(unit, 1) for name, number, unit in _LINE.findall(text)}
    if "Rss" not in sizes or "Pss" not in sizes:
        return None
    uss = sizes.get("Private_Clean", 0) + sizes.get("Private_Dirty", 0)
    swapped = sizes.get("SwapPss", sizes.get("Swap", 0))
    if "Pss_Anon" in sizes:
        held = sizes["Pss_Anon"] + sizes.get("Pss_Shmem", 0) + swapped
    else:  # kernels before 5.4 do not split the shares
        held = sizes.get("Anonymous", uss) + swapped
    return ProcessMemory(rss_bytes=sizes["Rss"], pss_bytes=sizes["Pss"], uss_bytes=uss, held_bytes=held)


def available_ram_bytes(proc: Path = PROC) -> int | None:
    """What the system can give to programs without swapping; None where it does not say."""
    text = _read(proc / "meminfo")
    if text is None:
        return None
    sizes = {name: int(number) * _UNITS.get(unit, 1) for name, number, unit in _LINE.findall(text)}
    return sizes.get("MemAvailable")


def gpu_memory(pid: int, proc: Path = PROC) -> GpuMemory | None:
    """GPU memory of a process by its DRM statistics; None when it has no GPU open, is gone, or the system has none."""
    folder = proc / str(pid)
    clients = []
    try:
        numbers = sorted(os.listdir(folder / "fd"))[:MAX_FDS]
    except OSError:
        return None
    for number in numbers:
        try:
            target = os.readlink(folder / "fd" / number)
        except OSError:
            continue  # closed meanwhile
        if not target.startswith(_DRM_DEVICES):
            continue
        client = parse_fdinfo(_read(folder / "fdinfo" / number) or "")
        if client is not None:
            clients.append(client)
    return total_gpu_memory(clients) if clients else None


def parse_fdinfo(text: str) -> DrmClient | None:
    """The DRM statistics in the text of an ``fdinfo`` file; None for a file of another kind.

    i915 calls the card's memory ``local0`` and the system's ``system0``; xe calls them ``vram0`` and ``gtt`` or
    ``system``; both have ``stolen`` regions of the firmware, which belong to nobody's budget.
    """
    fields = dict(_DRM_LINE.findall(text))
    if "drm-driver" not in fields or "drm-client-id" not in fields:
        return None
    regions: dict[str, dict[str, int]] = {}
    for key, value in fields.items():
        matched = _REGION.fullmatch(key)
        size = _SIZE.fullmatch(value)
        if matched and size and not matched[2].startswith(("stolen", "cycles")):
            regions.setdefault(matched[2], {})[matched[1]] = int(size[1]) * _UNITS[size[2] or ""]
    local = system = 0
    for region, sizes in regions.items():
        used = next((sizes[name] for name in ("resident", "memory", "total") if name in sizes), 0)
        if _LOCAL_REGION.fullmatch(region):
            local += used
        else:
            system += used
    return DrmClient(
        pci_address=fields.get("drm-pdev"),
        client_id=fields["drm-client-id"],
        driver=fields["drm-driver"],
        local_bytes=local,
        system_bytes=system,
    )


def total_gpu_memory(clients: Iterable[DrmClient]) -> GpuMemory:
    """The sum over clients; descriptors of one client (duplicates) repeat its numbers and count once."""
    distinct = {(client.driver, client.pci_address, client.client_id): client for client in clients}
    local: dict[str, int] = {}
    for client in distinct.values():
        address = client.pci_address or ""
        local[address] = local.get(address, 0) + client.local_bytes
    return GpuMemory(local_by_pci=local, system_bytes=sum(client.system_bytes for client in distinct.values()))


def system_charge_bytes(process: ProcessMemory, gpu: GpuMemory | None) -> int:
    """System RAM that a worker holds, on unified memory counted once.

    The drivers of integrated GPUs mostly work on pages that the process allocated, so both sides count the same
    memory; where they allocated it themselves the process does not see it. The greater of the two is never double.
    """
    return max(process.held_bytes, 0 if gpu is None else gpu.system_bytes)


def _read(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return file.read(MAX_FILE_BYTES).decode("ascii", "replace")
    except OSError:  # gone, not ours, or not this system
        return None
