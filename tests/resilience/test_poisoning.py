"""A GPU driver that has given a worker up: its clients may try again, the worker is replaced, people are told.

There is no GPU here; a worker raises from a step what the runtime raises then. The texts are those of public reports.
"""

import datetime as dt
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.answers import completion_body, expect_error, expect_ok, whole_text
from tests.support.disturb import COMPLETIONS, card, misbehaving
from tests.support.server import F32, ServerProcess, sse_data

MODEL = "tiny-qwen3"
REPORTS = [
    "Exception from ocl_stream.cpp:365:\n[GPU] clFinish, error code: -5 CL_OUT_OF_RESOURCES",
    "[GPU] clWaitForEvents failed with -2 CL_DEVICE_NOT_AVAILABLE",
    "ZE_RESULT_ERROR_DEVICE_LOST: device hung, reset, was removed, or driver update occurred",
]


@pytest.fixture(scope="module")
def trigger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trigger") / "report"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, trigger: Path) -> Iterator[ServerProcess]:
    options: dict[str, Any] = {"num_threads": 1, "supervisor": {"backoff_base_secs": 0.1}}
    with ServerProcess.serving(
        tmp_path_factory.mktemp("poisoned"),
        {MODEL: F32},
        environment=misbehaving(f"step_error={trigger}"),
        **options,
    ) as process:
        yield process.wait_ready()


def poison(trigger: Path, report: str) -> None:
    """Have the next step fail; in one move, so that no half of the text is read."""
    trigger.with_suffix(".new").write_text(report)
    os.replace(trigger.with_suffix(".new"), trigger)


def shown(server: ServerProcess) -> Any:
    return expect_ok(server.client.get("/v1/admin/models"))["server"]["gpu_poisoned"]


def restarts(server: ServerProcess) -> float:
    name = f'rustedvino_worker_restarts_total{{device="CPU",kind="text_gen",model="{MODEL}",reason="gpu_poisoned"}} '
    (line,) = [line for line in server.client.get("/metrics").text.splitlines() if line.startswith(name)]
    return float(line.removeprefix(name))


def body(prompt: str, **fields: Any) -> dict[str, Any]:
    return completion_body(MODEL, prompt, max_tokens=5, temperature=0, ignore_eos=True, **fields)


def test_a_lost_device_costs_a_restart_and_is_shown(server: ServerProcess, trigger: Path) -> None:
    assert shown(server) is None
    assert restarts(server) == 0
    expected = whole_text(expect_ok(server.post(COMPLETIONS, body("y"))))
    for number, report in enumerate(REPORTS, start=1):
        before = card(server, MODEL)["worker_pid"]
        began = dt.datetime.now(dt.UTC) - dt.timedelta(milliseconds=1)  # as exact as it is shown
        poison(trigger, report)
        reply = server.post(COMPLETIONS, body(f"prompt {number}"))
        error = expect_error(reply, 503, "gpu_poisoned")
        assert report.splitlines()[-1] in error["message"]
        assert int(reply.headers["retry-after"]) >= 1
        # It waits for the new worker, and is answered as before.
        assert whole_text(expect_ok(server.post(COMPLETIONS, body("y")))) == expected
        assert card(server, MODEL)["worker_pid"] != before
        assert before not in server.workers()
        event = shown(server)
        assert (event["device"], event["model"], event["count"]) == ("CPU", MODEL, number)
        assert event["time"].endswith("Z")
        assert began <= dt.datetime.fromisoformat(event["time"]) <= dt.datetime.now(dt.UTC)
        assert restarts(server) == number
        server.wait_log(f"model {MODEL}: its worker lost the device CPU")
    assert card(server, MODEL)["state"] == "ready"


def test_a_stream_ends_with_the_error_and_the_event_outlives_its_model(server: ServerProcess, trigger: Path) -> None:
    expect_ok(server.post(COMPLETIONS, body("y")))  # a worker is there
    count = (shown(server) or {"count": 0})["count"]
    poison(trigger, REPORTS[0])
    events = sse_data(server.post(COMPLETIONS, body("streamed", stream=True)).text)
    assert '"code":"gpu_poisoned"' in events[-1]
    event = shown(server)
    assert event["count"] == count + 1
    expect_ok(server.client.delete(f"/v1/admin/models/{MODEL}/register"))
    assert shown(server) == event
