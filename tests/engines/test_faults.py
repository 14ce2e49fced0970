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
        ("std::bad_alloc", "capacity"),
        ("[GPU] Exceeded max size of memory object allocation", "capacity"),
        ("Cannot allocate memory", "capacity"),
        ("something else went wrong", "unknown"),
    ],
)
def test_kinds_by_text(text: str, kind: str) -> None:
    assert classify(RuntimeError(text)).kind == kind


def test_the_default_is_the_callers_and_faults_stay_what_they_are() -> None:
    assert classify(ValueError("odd"), otherwise="bad_input").kind == "bad_input"
    assert classify(RuntimeError("std::bad_alloc"), otherwise="bad_input").kind == "capacity"
    assert classify(MemoryError()).kind == "capacity"
    fault = EngineFault("bad_input", "no")
    assert classify(fault, otherwise="unknown") is fault


def test_messages_are_the_last_line_and_bounded() -> None:
    assert classify(RuntimeError("Check 'a' failed at src/x.cpp:7:\n  the reason\n\n")).message == "the reason"
    assert classify(ValueError()).message == "ValueError"
    assert len(classify(RuntimeError("x" * 10_000)).message) == 2000
