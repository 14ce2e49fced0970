"""Ages and silences of running generations."""

import pytest

from rustedvino.observe.watchdog import RunningGeneration, Watchdog


def watchdog(*running: tuple[str, float, float]) -> Watchdog:
    generations = [
        RunningGeneration(model=model, started_at=started, progressed_at=progressed)
        for model, started, progressed in running
    ]
    return Watchdog(lambda: generations, 600.0, clock=lambda: 1000.0)


def test_nothing_runs() -> None:
    report = watchdog().report()
    assert not report.hung
    assert report.as_json() == {
        "status": "ok",
        "running": 0,
        "oldest_generation_age_secs": None,
        "oldest_generation_model": None,
        "oldest_silence_secs": None,
        "oldest_silence_model": None,
        "hang_ceiling_secs": 600.0,
    }


def test_the_oldest_and_the_most_silent_may_differ() -> None:
    report = watchdog(("a", 100.0, 999.5), ("b", 900.0, 950.0), ("c", 990.0, 1000.5)).report()
    assert (report.running, report.oldest_age_secs, report.oldest_age_model) == (3, 900.0, "a")
    assert (report.oldest_silence_secs, report.oldest_silence_model) == (50.0, "b")


@pytest.mark.parametrize(("progressed", "hung"), [(999.0, False), (400.0, False), (399.0, True)])
def test_age_is_no_hang_but_silence_is(progressed: float, hung: bool) -> None:
    report = watchdog(("m", 0.0, progressed)).report()
    assert report.hung is hung
    assert report.as_json()["status"] == ("hung" if hung else "ok")


def test_clocks_that_disagree_give_no_negative_age() -> None:
    report = watchdog(("m", 1000.2, 1000.3)).report()
    assert (report.oldest_age_secs, report.oldest_silence_secs) == (0.0, 0.0)
