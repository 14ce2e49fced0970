"""What the runtime says, sorted by what can be done about it."""

import pytest

from rustedvino.engines.faults import EngineFault, classify


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("clFinish, error code: -5 CL_OUT_OF_RESOURCES", "poisoned_device"),
        (
            "Exception from src/inference.cpp:1\n[GPU] ProgramBuilder build failed! CL_DEVICE_NOT_AVAILABLE",
            "poisoned_device",
        ),
        ("std::bad_alloc", "out_of_memory"),
        (
            "Exception from src/plugins/intel_cpu/src/graph.cpp:1628:\nNode X of type Y\ncan't alloc\n\n",
            "out_of_memory",
        ),
        ("Requested cache blocks require more memory than available on the system.", "out_of_memory"),
        ("libopenvino_intel_cpu_plugin.so: failed to map segment from shared object", "out_of_memory"),
        ("x.so: failed to map segment from shared object: Operation not permitted", "unknown"),
        ("[GPU] clCreateBuffer, error code: -4 CL_MEM_OBJECT_ALLOCATION_FAILURE", "out_of_memory"),
        ("[GPU] Out of memory, and then clFinish, error code: -5 CL_OUT_OF_RESOURCES", "poisoned_device"),
        ("not enough memory", "out_of_memory"),
        ("the roommate is out of memoryless jokes", "unknown"),
        ("[GPU] Exceeded max size of memory object allocation", "capacity"),
        ("[Errno 12] Cannot allocate memory", "out_of_memory"),
        ("something else went wrong", "unknown"),
    ],
)
def test_kinds_by_text(text: str, kind: str) -> None:
    assert classify(RuntimeError(text)).kind == kind


def test_the_default_is_the_callers_and_faults_stay_what_they_are() -> None:
    assert classify(ValueError("odd"), otherwise="bad_input").kind == "bad_input"
    assert classify(RuntimeError("std::bad_alloc"), otherwise="bad_input").kind == "out_of_memory"
    assert classify(MemoryError()).kind == "out_of_memory"
    fault = EngineFault("bad_input", "no")
    assert classify(fault, otherwise="unknown") is fault


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (MemoryError(), "out of memory: MemoryError"),
        (MemoryError("Unable to allocate 3 GiB"), "out of memory: Unable to allocate 3 GiB"),
        (RuntimeError("Exception from src/x.cpp:1:\nstd::bad_alloc\n"), "out of memory: std::bad_alloc"),
        (RuntimeError("[GPU] Out of memory"), "[GPU] Out of memory"),
    ],
)
def test_a_lack_of_memory_is_called_that(error: Exception, message: str) -> None:
    assert classify(error).message == message


def test_messages_are_the_last_line_and_bounded() -> None:
    assert classify(RuntimeError("Check 'a' failed at src/x.cpp:7:\n  the reason\n\n")).message == "the reason"
    assert classify(ValueError()).message == "ValueError"
    assert len(classify(RuntimeError("x" * 10_000)).message) == 2000
