"""Reading the kernel's memory statistics: recorded texts, and this very process."""

import os
import sys

import pytest

from rustedvino.hub.memory import (
    DrmClient,
    GpuMemory,
    ProcessMemory,
    available_ram_bytes,
    gpu_memory,
    is_outdated,
    parse_fdinfo,
    parse_smaps_rollup,
    process_memory,
    resident_bytes,
    system_charge_bytes,
    total_gpu_memory,
)

KB, MB = 2**10, 2**20

ROLLUP = """\
55d0c1a00000-7ffd3c1fe000 ---p 00000000 00:00 0                          [rollup]
Rss:              753664 kB
Pss:              704512 kB
Pss_Dirty:        366592 kB
Pss_Anon:         366592 kB
Pss_File:         337920 kB
Pss_Shmem:          2048 kB
Shared_Clean:      51200 kB
Shared_Dirty:          0 kB
Private_Clean:    335872 kB
Private_Dirty:    366592 kB
Referenced:       753664 kB
Anonymous:        366592 kB
Swap:               4096 kB
SwapPss:            1024 kB
"""

I915_CARD = """\
pos:\t0
flags:\t02100002
mnt_id:\t30
ino:\t512
drm-driver:\ti915
drm-client-id:\t11
drm-pdev:\t0000:03:00.0
drm-total-system0:\t3072 KiB
drm-shared-system0:\t0
drm-active-system0:\t0
drm-resident-system0:\t2048 KiB
drm-purgeable-system0:\t0
drm-total-local0:\t800 MiB
drm-resident-local0:\t512 MiB
drm-purgeable-local0:\t16 KiB
drm-total-stolen-local0:\t8 MiB
drm-resident-stolen-local0:\t8 MiB
drm-engine-render:\t500 ns
drm-engine-capacity-video:\t2
"""

XE_CARD = """\
pos:\t0
drm-driver:\txe
drm-client-id:\t4
drm-pdev:\t0000:07:00.0
drm-total-system:\t0
drm-total-gtt:\t1024 KiB
drm-resident-gtt:\t1024 KiB
drm-total-vram0:\t1 GiB
drm-resident-vram0:\t1024 MiB
drm-resident-stolen:\t8 MiB
drm-cycles-ccs:\t7655183225
drm-total-cycles-ccs:\t7655183229
"""

XE_INTEGRATED = """\
drm-driver:\txe
drm-client-id:\t9
drm-pdev:\t0000:00:02.0
drm-resident-system:\t4096 KiB
drm-resident-gtt:\t2 MiB
drm-resident-stolen:\t65536
"""


def test_a_rollup_holds_what_only_its_end_gives_back():
    assert parse_smaps_rollup(ROLLUP) == ProcessMemory(
        rss_bytes=753664 * KB,
        pss_bytes=704512 * KB,
        uss_bytes=(335872 + 366592) * KB,
        held_bytes=(366592 + 2048 + 1024) * KB,
    )


def test_a_rollup_of_an_older_kernel():
    lines = [line for line in ROLLUP.splitlines() if not line.startswith(("Pss_", "SwapPss"))]
    found = parse_smaps_rollup("\n".join(lines))
    assert found is not None
    assert found.held_bytes == (366592 + 4096) * KB


@pytest.mark.parametrize("text", ["", "Rss: 1 kB\n", "garbage"])
def test_a_rollup_of_a_process_that_has_just_ended(text):
    assert parse_smaps_rollup(text) is None


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_this_process():
    block = bytearray(32 * MB)
    block[:: 4 * KB] = b"x" * (len(block) // (4 * KB))
    with_block = process_memory(os.getpid())
    assert with_block is not None
    del block
    without = process_memory(os.getpid())
    assert without is not None
    assert with_block.held_bytes - without.held_bytes > 24 * MB
    assert without.held_bytes <= without.pss_bytes <= without.rss_bytes
    assert 0 < available_ram_bytes() < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_resident_memory_is_that_of_the_measurement():
    measured = process_memory(os.getpid())
    assert measured is not None
    block = b"x" * max(32 * MB, measured.rss_bytes // 4)
    grown = resident_bytes(os.getpid())
    assert grown is not None
    assert grown - measured.rss_bytes > len(block) * 3 // 4
    assert is_outdated(measured, 0.0, grown)


@pytest.mark.parametrize(
    ("resident_mb", "age_secs", "outdated"),
    [
        (1024, 1e6, False),
        (1030, 1e6, False),
        (1040, 59.0, False),
        (1040, 60.0, True),  # a pool that fills
        (1000, 60.0, True),
        (1200, 0.0, True),
        (800, 0.0, True),
        (None, 0.0, True),
    ],
)
def test_what_is_measured_again(resident_mb, age_secs, outdated):
    measured = ProcessMemory(rss_bytes=1024 * MB, pss_bytes=MB, uss_bytes=MB, held_bytes=MB)
    resident = None if resident_mb is None else resident_mb * MB
    assert is_outdated(measured, age_secs, resident) is outdated


def test_nothing_is_known_of_a_process_that_is_gone(tmp_path):
    assert resident_bytes(4000000, tmp_path) is None
    assert process_memory(4000000, tmp_path) is None
    assert gpu_memory(4000000, tmp_path) is None
    assert available_ram_bytes(tmp_path) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (I915_CARD, ("i915", "0000:03:00.0", "11", 512 * MB, 2 * MB)),
        (XE_CARD, ("xe", "0000:07:00.0", "4", 1024 * MB, MB)),
        (XE_INTEGRATED, ("xe", "0000:00:02.0", "9", 0, 6 * MB)),
        ("drm-driver:\txe\ndrm-client-id:\t1\ndrm-total-vram0:\t5 MiB\n", ("xe", None, "1", 5 * MB, 0)),
        ("drm-driver:\txe\ndrm-client-id:\t1\ndrm-memory-vram0:\t5 KiB\n", ("xe", None, "1", 5 * KB, 0)),
        ("drm-driver:\txe\ndrm-client-id:\t1\ndrm-total-vram0:\tnonsense\n", ("xe", None, "1", 0, 0)),
    ],
)
def test_drm_statistics(text, expected):
    driver, pci_address, client_id, local, system = expected
    assert parse_fdinfo(text) == DrmClient(
        pci_address=pci_address, client_id=client_id, driver=driver, local_bytes=local, system_bytes=system
    )


@pytest.mark.parametrize("text", ["", "pos:\t0\nflags:\t02\n", "drm-driver:\txe\n"])
def test_other_files_have_none(text):
    assert parse_fdinfo(text) is None


def test_duplicates_of_a_client_count_once_and_cards_apart():
    clients = [parse_fdinfo(text) for text in (I915_CARD, I915_CARD, XE_CARD, XE_INTEGRATED)]
    second = I915_CARD.replace("drm-client-id:\t11", "drm-client-id:\t12")
    found = total_gpu_memory([*clients, parse_fdinfo(second)])
    assert found == GpuMemory(
        local_by_pci={"0000:03:00.0": 1024 * MB, "0000:07:00.0": 1024 * MB, "0000:00:02.0": 0},
        system_bytes=(2 + 2 + 1 + 6) * MB,
    )
    assert found.local_bytes == 2048 * MB


def test_only_descriptors_of_gpus_are_read(tmp_path):
    folder = tmp_path / "77"
    (folder / "fd").mkdir(parents=True)
    (folder / "fdinfo").mkdir()
    files = {"3": ("/dev/dri/renderD128", I915_CARD), "4": ("socket:[1]", XE_CARD), "5": ("/dev/dri/card1", I915_CARD)}
    for number, (target, text) in files.items():
        (folder / "fd" / number).symlink_to(target)
        (folder / "fdinfo" / number).write_text(text)
    assert gpu_memory(77, tmp_path) == GpuMemory(local_by_pci={"0000:03:00.0": 512 * MB}, system_bytes=2 * MB)
    (folder / "fd" / "3").unlink()
    (folder / "fd" / "5").unlink()
    assert gpu_memory(77, tmp_path) is None


def test_unified_memory_is_counted_once():
    process = ProcessMemory(rss_bytes=9, pss_bytes=8, uss_bytes=7, held_bytes=6)
    assert system_charge_bytes(process, None) == 6
    assert system_charge_bytes(process, GpuMemory(local_by_pci={}, system_bytes=5)) == 6
    assert system_charge_bytes(process, GpuMemory(local_by_pci={}, system_bytes=50)) == 50
