"""Lines of workers: level, fields, and the bound on a chatty one."""

import logging

import pytest

from rustedvino.observe.worker_lines import BURST_LINES, LINES_PER_SEC, WorkerLines, worker_lines


@pytest.fixture(autouse=True)
def debug(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "rustedvino.worker")


def test_lines_carry_model_and_worker(caplog: pytest.LogCaptureFixture) -> None:
    worker_lines("stderr")(b"CL_OUT_OF_RESOURCES \xff\n", label="m", pid=42)
    worker_lines("stdout")(b"building", label="m", pid=42)
    worker_lines("stderr")(b"  \n", label="m", pid=42)
    first, second = caplog.records
    assert (first.levelno, first.getMessage()) == (logging.INFO, "CL_OUT_OF_RESOURCES \ufffd")
    assert (first.model, first.worker) == ("m", "42")  # type: ignore[attr-defined]
    assert second.levelno == logging.DEBUG


def test_a_chatty_worker_is_cut_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    lines = WorkerLines(logging.INFO, clock=lambda: now)
    for number in range(int(BURST_LINES) + 50):
        lines(b"%d" % number, label="m", pid=1)
    assert len(caplog.records) == BURST_LINES
    now = 1.0
    for _ in range(100):
        lines(b"later", label="m", pid=1)
    assert caplog.messages[int(BURST_LINES)] == "(50 lines of output were left out)"
    assert caplog.messages.count("later") == LINES_PER_SEC
    now = 1e6
    lines(b"rested", label="m", pid=1)
    assert caplog.messages[-2:] == ["(80 lines of output were left out)", "rested"]


def test_nothing_is_done_below_the_level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "rustedvino.worker")
    lines = worker_lines("stderr")
    for _ in range(1000):
        lines(b"x", label="m", pid=1)
    assert lines._left_out == 0
    assert caplog.records == []
