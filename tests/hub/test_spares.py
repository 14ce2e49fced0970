"""Warm workers: kept, handed out, replaced with patience."""

import errno
import itertools
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from rustedvino.hub import spares as spares_module
from rustedvino.hub.process import Launcher, WorkerStartError
from rustedvino.hub.spares import SparePool
from tests.support.actors import faulty, until


@asynccontextmanager
async def pool(launcher: Launcher, count: int = 1) -> AsyncIterator[SparePool]:
    with trio.fail_after(40):
        async with trio.open_nursery() as nursery:
            made = SparePool(nursery, count, 60.0, launcher=launcher)
            nursery.start_soon(made.run)
            yield made
            nursery.cancel_scope.cancel()


async def filled(made: SparePool, count: int = 1) -> None:
    await until(lambda: len(made.idle()) >= count)


async def test_spares_are_filled_taken_and_replaced() -> None:
    launcher = faulty("")
    async with pool(launcher, 2) as made:
        await filled(made, 2)
        worker = await made.take()
        assert worker.alive
        assert worker.facts["role"] == "model"
        await filled(made, 2)
        assert worker not in made.idle()
        assert launcher.started == 3
        assert made.problem is None


async def test_without_spares_each_is_started_when_it_is_wanted() -> None:
    launcher = faulty("")
    async with pool(launcher, 0) as made:
        first, second = await made.take(), await made.take()
        assert first is not second
        assert launcher.started == 2
        assert made.idle() == []


async def test_a_spare_that_is_dying_is_not_handed_out() -> None:
    async with pool(faulty("")) as made:
        await filled(made)
        (spare,) = made.idle()
        spare.kill("killed", "test")
        assert made.idle() == []
        assert await made.take() is not spare


async def test_an_import_that_dies_is_told_and_tried_with_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spares_module, "START_BACKOFF_BASE_SECS", 0.05)
    launcher = faulty("import-dies", "import-dies", "import-dies", "")
    async with pool(launcher) as made:
        with pytest.raises(WorkerStartError, match="SIGILL"):
            await made.take()
        await until(lambda: made._failures)
        assert "signal SIGILL; last output: importing the runtime" in str(made.problem)
        await filled(made)
        assert made.problem is None
    assert launcher.started == 4


async def test_the_wait_between_failed_starts_doubles_up_to_a_minute(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    attempts: list[float] = []

    def launcher(role: str, environment: dict[str, str]) -> Any:
        attempts.append(trio.current_time())
        raise OSError(errno.EAGAIN, "no more processes")

    async with trio.open_nursery() as nursery:
        made = SparePool(nursery, 1, 60.0, launcher=launcher)
        nursery.start_soon(made.run)
        await trio.sleep(300)
        nursery.cancel_scope.cancel()
    waits = [round(later - earlier) for earlier, later in itertools.pairwise(attempts)]
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert "no more processes" in str(made.problem)


async def test_spares_that_die_one_after_the_other_burn_no_processor_time() -> None:
    launcher = faulty("dies-after-hello")
    async with pool(launcher) as made:
        await until(lambda: made._failures >= 2)
        assert "exit code 5" in str(made.problem)
        assert launcher.started == 2


async def test_a_killed_spare_is_replaced() -> None:
    launcher = faulty("")
    async with pool(launcher) as made:
        await filled(made)
        (spare,) = made.idle()
        os.kill(spare.pid, signal.SIGKILL)
        await spare.ended.wait()
        await filled(made)
        assert made.idle() != [spare]
        await made.take()
        assert made._failures == 0


async def test_a_start_that_is_cancelled_at_any_moment_leaves_no_process() -> None:
    launcher = faulty("")
    with trio.fail_after(40):
        async with trio.open_nursery() as nursery:
            made = SparePool(nursery, 0, 60.0, launcher=launcher)

            async def cancel(scope: trio.CancelScope, ticks: int) -> None:
                for _ in range(ticks):
                    await trio.lowlevel.checkpoint()
                scope.cancel()

            for ticks in range(8):
                with trio.CancelScope() as scope:
                    nursery.start_soon(cancel, scope, ticks)
                    await made.take()
                assert scope.cancelled_caught, "it started within so few ticks"
                await until(lambda: all(process.returncode is not None for process in launcher.processes))
    assert launcher.started >= 4
