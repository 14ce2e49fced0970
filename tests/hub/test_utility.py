"""The utility worker: bounded, restartable, one call at a time."""

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from rustedvino.hub.errors import BadInput, WorkerLost
from rustedvino.hub.process import Launcher, WorkerStartError
from rustedvino.hub.utility import UtilityCrashed, UtilityTimeout, UtilityWorker
from rustedvino.text.probes import ProbeResult
from rustedvino.worker import platform
from tests.support.actors import faulty, model_folder


@asynccontextmanager
async def utility(launcher: Launcher = platform.spawn_worker) -> AsyncIterator[UtilityWorker]:
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            yield UtilityWorker(nursery, 60.0, launcher=launcher)
            nursery.cancel_scope.cancel()


def probe(source: str) -> dict[str, Any]:
    return {"source": source, "tool_use": False, "variables": {}}


async def test_templates_are_probed_and_bombs_are_stopped() -> None:
    async with utility() as worker:
        text = (model_folder("rv-demo") / "chat_template.jinja").read_text()
        found = ProbeResult(**await worker.call("probe_template", probe(text), bound_secs=20))
        assert found.ok
        endless = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
        with pytest.raises(UtilityTimeout, match=r"longer than 0\.5 s") as found_slow:
            await worker.call("probe_template", probe(endless), bound_secs=0.5)
        assert not found_slow.value.starved
        assert worker.pid is None
        huge = "{{ 'x' * 3000000000 }}"
        bomb = ProbeResult(**await worker.call("probe_template", probe(huge), bound_secs=20))
        assert not bomb.ok
        with pytest.raises(BadInput):
            await worker.call("make_coffee", {}, bound_secs=20)
        assert ProbeResult(**await worker.call("probe_template", probe(text), bound_secs=20)) == found
        assert worker.restarts == 1


async def test_a_call_that_gets_no_processor_time_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a call takes longer by the clock; that is bounded too."""
    async with utility(faulty("")) as worker:
        pid = await started(worker)
        await worker.call("sleep", {"secs": 0.6}, bound_secs=0.2)
        assert worker.pid == pid
        monkeypatch.setattr("rustedvino.hub.utility.PATIENCE_SECS", 0.1)
        with pytest.raises(UtilityTimeout) as found:
            await worker.call("sleep", {"secs": 3600}, bound_secs=0.2)
        assert found.value.starved
        assert worker.pid is None


async def started(worker: UtilityWorker) -> int:
    await worker.start()
    assert worker.pid is not None
    return worker.pid


async def test_a_call_survives_the_death_of_its_worker_once(tmp_path: Path) -> None:
    async with utility(faulty("")) as worker:
        assert await worker.call("crash-once", {"mark": str(tmp_path / "died")}) == "second"
        assert worker.restarts == 1
        with pytest.raises(WorkerLost, match="SIGKILL") as found:
            await worker.call("crash", {})
        assert not isinstance(found.value, UtilityCrashed)
        assert await worker.call("echo", {}) == ["echo", {}]
        pid = worker.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        assert await worker.call("echo", {"after": 1}) == ["echo", {"after": 1}]
        assert worker.pid not in (None, pid)


async def test_one_at_a_time_in_order_and_a_cancelled_one_is_killed() -> None:
    async with utility(faulty("")) as worker:
        order: list[int] = []

        async def one(number: int) -> None:
            await worker.call("sleep", {"secs": 0.01})
            order.append(number)

        async with trio.open_nursery() as nursery:
            for number in range(5):
                nursery.start_soon(one, number)
                await trio.testing.wait_all_tasks_blocked()
        assert order == [0, 1, 2, 3, 4]
        first = worker.pid
        with trio.move_on_after(0.1):
            await worker.call("sleep", {"secs": 3600}, bound_secs=3600)
        assert worker.pid is None
        assert await worker.call("echo", {}) == ["echo", {}]
        assert worker.pid != first


async def test_a_call_waits_behind_others_as_long_as_it_says() -> None:
    async with utility(faulty("")) as worker, trio.open_nursery() as nursery:
        await worker.start()
        nursery.start_soon(worker.call, "sleep", {"secs": 0.5})
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(trio.TooSlowError):
            await worker.call("echo", {}, queue_secs=0.01)
        assert await worker.call("echo", {}, queue_secs=60) == ["echo", {}]
        assert worker.restarts == 0


async def test_it_is_ended_and_comes_back_and_says_why_it_cannot_start() -> None:
    async with utility(faulty("", "import-dies", "")) as worker:
        await worker.start()
        first = worker.pid
        await worker.start()
        assert worker.pid == first
        worker.kill()
        with pytest.raises(WorkerStartError, match="SIGILL"):
            await worker.call("echo", {})
        assert await worker.call("echo", {}) == ["echo", {}]


async def test_a_utility_worker_that_generates_is_replaced() -> None:
    async with utility(faulty("garbage-and-exit", "")) as worker:
        await worker.start()
        process = worker._worker
        assert process is not None
        process.send("load", {"block_size": 1, "num_kv_blocks": 1})
        await process.ended.wait()
        assert process.end is not None
        assert "a utility worker sent loaded" in process.end.text
        assert await worker.call("echo", {}) == ["echo", {}]
