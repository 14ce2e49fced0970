"""Pools that stay nearly full: what is flagged, when, and what is said of it."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import trio
from attrs import define, field
from hypothesis import given
from hypothesis import strategies as st

from rustedvino.config.types import ModelSettings, ServerSettings
from rustedvino.hub.admin_views import model_view
from rustedvino.hub.hub import Hub
from rustedvino.hub.kv_pressure import KvPressureMonitor, PoolUse, Pressure, PressureTracker, pool_bytes, used_percent
from rustedvino.hub.model_files import inspect_folder
from rustedvino.hub.states import State
from tests.support.actors import EXACT, finish, first_token, model_folder, request, server_settings, until

THRESHOLD, SUSTAINED = 80.0, 60.0


@define
class Statistics:
    cache_usage_percent: float


@define(eq=False)
class FakeActor:
    """What the monitor sees of a model."""

    model_id: str = "m"
    used: float = 0.0
    state: State = State.READY
    loaded_at: float = 1.0
    facts: dict[str, Any] = field(factory=lambda: {"kv_cache_bytes": 1000})

    def statistics(self) -> Statistics:
        return Statistics(self.used)


def use(percent: float, *, model: str = "m", residence: float = 1.0) -> PoolUse:
    return PoolUse(model_id=model, residence=residence, used_percent=percent)


def changes(tracker: PressureTracker, now: float, *pools: PoolUse) -> list[tuple[str, str]]:
    return [(change.model_id, change.change) for change in tracker.look(pools, now)]


@pytest.fixture
def tracker() -> PressureTracker:
    return PressureTracker(THRESHOLD, SUSTAINED)


def test_flagged_after_the_sustained_time_and_cleared_below(tracker: PressureTracker) -> None:
    assert changes(tracker, 0, use(THRESHOLD)) == []
    assert changes(tracker, 59, use(100)) == []
    assert tracker.get("m", 1.0) == Pressure(residence=1.0, above_since=0, flagged_at=None)
    assert changes(tracker, 60, use(95)) == [("m", "flagged")]
    assert changes(tracker, 75, use(95)) == []
    assert tracker.get("m", 1.0) == Pressure(residence=1.0, above_since=0, flagged_at=60)
    [cleared] = tracker.look([use(79.9)], 90)
    assert (cleared.change, cleared.used_percent, cleared.lasted_secs) == ("cleared", 79.9, 30)
    assert tracker.get("m", 1.0) is None


def test_a_dip_begins_the_time_anew(tracker: PressureTracker) -> None:
    for now, percent in ((0, 90), (30, 79), (45, 90), (100, 90)):
        assert changes(tracker, now, use(percent)) == []
    assert changes(tracker, 105, use(90)) == [("m", "flagged")]


def test_a_sustained_time_of_nothing_flags_at_once() -> None:
    assert changes(PressureTracker(THRESHOLD, 0.0), 5, use(80)) == [("m", "flagged")]


def test_a_model_that_is_gone_is_cleared_and_said_once(tracker: PressureTracker) -> None:
    changes(tracker, 0, use(90), use(90, model="b"))
    changes(tracker, 60, use(90), use(90, model="b"))
    [gone] = tracker.look([use(90, model="b")], 75)
    assert (gone.model_id, gone.change, gone.used_percent) == ("m", "cleared", None)
    assert changes(tracker, 90, use(90, model="b")) == []


def test_the_next_load_of_a_model_begins_without_a_past(tracker: PressureTracker) -> None:
    changes(tracker, 0, use(90))
    changes(tracker, 60, use(90))
    assert changes(tracker, 61, use(90, residence=2.0)) == [("m", "cleared")]
    assert tracker.get("m", 1.0) is None
    assert tracker.get("m", 2.0) == Pressure(residence=2.0, above_since=61, flagged_at=None)


@given(
    looks=st.lists(
        st.tuples(
            st.floats(0.1, 50),
            st.dictionaries(st.sampled_from("ab"), st.sampled_from([0.0, 79.0, 80.0, 100.0])),
        ),
        max_size=30,
    )
)
def test_flags_are_as_the_history_says(looks: list[tuple[float, dict[str, float]]]) -> None:
    """Against the definition: flagged is who was at or above the threshold at every look of the sustained time."""
    tracker = PressureTracker(THRESHOLD, SUSTAINED)
    now, flagged = 0.0, set[str]()
    above: dict[str, float] = {}
    for step, pools in looks:
        now += step
        for name in "ab":
            if pools.get(name, 0.0) < THRESHOLD:
                above.pop(name, None)
            else:
                above.setdefault(name, now)
        expected = {name for name, since in above.items() if now - since >= SUSTAINED}
        said = changes(tracker, now, *(use(percent, model=name) for name, percent in pools.items()))
        assert set(said) == {(name, "flagged") for name in expected - flagged} | {
            (name, "cleared") for name in flagged - expected
        }
        flagged = expected


@pytest.fixture
def messages(caplog: pytest.LogCaptureFixture) -> Iterator[list[tuple[str, str]]]:
    """Level and text of what the monitor logs."""
    caplog.set_level(logging.INFO, logger="rustedvino.hub.kv_pressure")
    found: list[tuple[str, str]] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append((record.levelname, record.getMessage()))

    handler = Keep()
    logger = logging.getLogger("rustedvino.hub.kv_pressure")
    logger.addHandler(handler)
    yield found
    logger.removeHandler(handler)


def monitoring(**changes: Any) -> ServerSettings:
    own = {"kv_pressure_threshold_pct": THRESHOLD, "kv_pressure_sustained_secs": SUSTAINED}
    return server_settings(kv_pressure_monitor_enabled=True, **{**own, **changes})


def monitor_of(*actors: Any, **changes: Any) -> KvPressureMonitor:
    monitor = KvPressureMonitor.from_settings(monitoring(**changes), lambda: actors)
    assert monitor is not None
    return monitor


def flagged(monitor: KvPressureMonitor, actor: Any) -> bool:
    pressure = monitor.pressure(actor)
    return pressure is not None and pressure.flagged_at is not None


async def test_the_task_looks_at_its_interval_and_logs_each_change_once(
    mock_clock: trio.testing.MockClock, messages: list[tuple[str, str]]
) -> None:
    actor = FakeActor(used=85)
    monitor = monitor_of(actor)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(monitor.run)
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(5):  # looks at 15, 30, 45, 60 and 75 s
            assert not flagged(monitor, actor)
            mock_clock.jump(15)
            await trio.testing.wait_all_tasks_blocked()
        assert flagged(monitor, actor)
        mock_clock.jump(15)
        await trio.testing.wait_all_tasks_blocked()
        assert [level for level, _ in messages] == ["WARNING"]
        assert "at least 80 % full for 60 s, now 85.0 %" in messages[0][1]
        actor.used = 0
        mock_clock.jump(14.9)
        await trio.testing.wait_all_tasks_blocked()
        assert flagged(monitor, actor)
        for _ in range(2):
            mock_clock.jump(15)
            await trio.testing.wait_all_tasks_blocked()
        assert not flagged(monitor, actor)
        assert [level for level, _ in messages] == ["WARNING", "INFO"]
        assert "below 80 % full, now 0.0 %" in messages[1][1]
        nursery.cancel_scope.cancel()


async def test_a_flag_ends_with_the_load_it_is_about(
    mock_clock: trio.testing.MockClock, messages: list[tuple[str, str]]
) -> None:
    actor = FakeActor(used=90)
    monitor = monitor_of(actor)
    monitor.sweep()
    mock_clock.jump(SUSTAINED)
    monitor.sweep()
    assert flagged(monitor, actor)
    for state in State:
        actor.state = state
        assert flagged(monitor, actor) == (state is State.READY)  # at once, not at the next look
    actor.state, actor.loaded_at = State.READY, 99.0
    assert not flagged(monitor, actor)
    actor.state = State.RESTARTING
    monitor.sweep()
    monitor.sweep()
    assert [level for level, _ in messages] == ["WARNING", "INFO"]
    assert "not loaded as it was" in messages[1][1]


async def test_a_pool_whose_use_is_not_reported_is_never_flagged(mock_clock: trio.testing.MockClock) -> None:
    static = FakeActor(used=100, facts={"kv_cache_bytes": 0, "num_kv_blocks": 1152})
    without = FakeActor(model_id="embedder", used=100, facts={})
    monitor = monitor_of(static, without, kv_pressure_sustained_secs=0.0)
    monitor.sweep()
    for actor in (static, without):
        assert not flagged(monitor, actor)
        assert (pool_bytes(actor), used_percent(actor)) == (None, None)  # type: ignore[arg-type]


def test_off_unless_it_is_enabled() -> None:
    settings = server_settings(kv_pressure_threshold_pct=1.0, kv_pressure_sustained_secs=0.0)
    assert KvPressureMonitor.from_settings(settings, tuple) is None


async def test_a_real_model_fills_its_pool(tmp_path: Any, messages: list[tuple[str, str]]) -> None:
    name, blocks = "tiny-qwen3", 64
    (tmp_path / name).symlink_to(model_folder(name))
    shape = inspect_folder(model_folder(name)).kv_shape
    assert shape is not None
    pool = blocks * shape.block_bytes(32, "u8")
    entry = ModelSettings(kv_cache_gb=pool / 2**30, plugin_config=EXACT)
    hub = Hub(
        monitoring(
            models_dir=tmp_path,
            models={name: entry},
            kv_pressure_threshold_pct=50.0,
            kv_pressure_sustained_secs=0.02,
            kv_pressure_sweep_interval_secs=0.005,
        )
    )
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            await nursery.start(hub.run)
            actor = hub.get(name).actor
            before = snapshot(hub)
            assert (before.kv_pool_bytes, before.kv_usage_percent, before.kv_pressure_flagged) == (None, None, False)
            assert model_view(hub, name)["kv_pressure"] is None
            assert await actor.wait_state(State.READY, State.FAILED) is State.READY, actor.last_error
            idle = snapshot(hub)
            assert (idle.kv_pool_bytes, idle.kv_usage_percent, idle.kv_pressure_flagged) == (pool, 0.0, False)
            lease = await actor.lease(request(range(1100), 900))  # more than half of 2048 tokens from its first token
            await first_token(lease)
            await until(lambda: snapshot(hub).kv_pressure_flagged)
            full, view = snapshot(hub), model_view(hub, name)
            assert full.kv_usage_percent is not None
            assert 50 <= full.kv_usage_percent <= 100
            assert view["kv_pressure"]["flagged"] is True
            assert view["kv_pressure"]["above_threshold_secs"] >= 0.02
            assert view["kv_cache"]["usage_supported"] is True
            assert view["kv_cache"]["used_percent"] >= 50
            await finish(lease)
            await until(lambda: not snapshot(hub).kv_pressure_flagged)
            assert snapshot(hub).kv_usage_percent == 0.0  # the prefix cache keeps its blocks, as free ones
            assert [level for level, _ in messages] == ["WARNING", "INFO"]
            lease = await actor.lease(request(range(1100), 900))
            await until(lambda: snapshot(hub).kv_pressure_flagged)
            actor.unload(0)
            assert not snapshot(hub).kv_pressure_flagged
            await actor.wait_unloaded()
            gone = snapshot(hub)
            assert (gone.kv_pool_bytes, gone.kv_usage_percent, gone.kv_pressure_flagged) == (None, None, False)
            assert model_view(hub, name)["kv_pressure"] is None
            lease.close()
            nursery.cancel_scope.cancel()


def snapshot(hub: Hub) -> Any:
    [model] = hub.snapshot().models
    return model
