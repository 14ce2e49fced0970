"""Loads and unloads under traffic, the short version of benchmarks/soak.py, and that it would notice a leak."""

import subprocess
import sys
from collections import Counter

import attrs
import pytest

from benchmarks.soak import DOCUMENTED, MIB, Figures, faults
from tests.support.server import REPOSITORY

CYCLES, WARM_UP = 12, 3
REST = Figures(cycles=20, uss_bytes=50 * MIB, fds=20, tasks=25, objects=3000, processes=2, available_bytes=20_000 * MIB)
AFTER = attrs.evolve(REST, cycles=320, uss_bytes=51 * MIB, objects=3200)


def test_nothing_is_left_after_a_few_cycles() -> None:
    """Memory of the machine is left out: other tests run beside this one."""
    counts = ["--cycles", str(CYCLES), "--warm-up", str(WARM_UP)]
    command = [sys.executable, "-m", "benchmarks.soak", *counts, "--shared-machine"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "503 model_unloading" in done.stdout, "no request was in flight at an unload"


def test_a_server_that_came_back() -> None:
    assert faults(REST, AFTER, Counter(DOCUMENTED), Counter({"200": 300})) == []


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"fds": 21}, "fds: 20 before, 21 after"),
        ({"tasks": 26}, "tasks: 25 before, 26 after"),
        ({"processes": 3}, "processes: 2 before, 3 after"),
        ({"processes": 1}, "processes: 2 before, 1 after"),
        ({"uss_bytes": 60 * MIB}, "USS grew by 10.0 MiB"),
        ({"objects": 8000}, "5000 Python objects more after 300 cycles"),
    ],
)
def test_a_leak_is_told(changes: dict[str, int], told: str) -> None:
    assert faults(REST, attrs.evolve(AFTER, **changes), Counter(), Counter()) == [told]


@pytest.mark.parametrize(
    "outcome",
    ["500 internal_error", "503 worker_lost", "503 model_unloading without Retry-After", "no answer: OSError()"],
)
def test_an_answer_that_is_not_documented_is_told(outcome: str) -> None:
    assert faults(REST, AFTER, Counter({outcome: 2}), Counter()) == [f"a client got: {outcome} (2 times)"]
    assert faults(REST, AFTER, Counter(), Counter({outcome: 1})) == [f"an administrator got: {outcome} (1 times)"]
