"""When a worker is started again, and whose fault it was."""

from hypothesis import given, settings
from hypothesis import strategies as st

from rustedvino.hub.restarts import MAX_SUSPECTS, DeathRecord, RestartPolicy

POLICY = RestartPolicy(backoff_base_secs=5, backoff_max_secs=60, max_restarts=5, window_secs=600)


def test_backoff_doubles_from_the_second_death_and_is_bounded() -> None:
    assert [POLICY.backoff_secs(deaths) for deaths in range(8)] == [0, 0, 5, 10, 20, 40, 60, 60]
    assert POLICY.backoff_secs(900) == 60


def test_six_deaths_within_the_window_are_too_many() -> None:
    record = DeathRecord(POLICY)
    for death in range(5):
        record.died(float(death), ())
        assert not record.exhausted(float(death))
    record.died(5.0, ())
    assert record.exhausted(5.0)
    assert record.count(599.9) == 6
    assert record.count(600.0) == 5
    assert not record.exhausted(600.0)
    assert record.count(605.0) == 0


def test_a_culprit_ran_in_two_deaths() -> None:
    record = DeathRecord(POLICY)
    record.died(0, [b"bad", b"neighbour"])
    assert not record.is_culprit(b"bad")
    record.completed(b"neighbour")
    record.died(1, [b"bad", b"neighbour", b"new"])
    assert record.is_culprit(b"bad")
    assert not record.is_culprit(b"neighbour")
    assert not record.is_culprit(b"new")
    assert not record.is_culprit(b"never seen")


def test_one_request_counts_once_in_a_death_however_often_it_ran() -> None:
    record = DeathRecord(POLICY)
    record.died(0, [b"twice", b"twice"])
    assert not record.is_culprit(b"twice")


def test_one_culprit_cannot_use_up_the_restarts() -> None:
    record = DeathRecord(POLICY)
    for death in range(50):
        record.died(float(death), [b"bad", b"innocent %d" % death])
    assert record.count(50) == 1
    assert not record.exhausted(50)


def test_forgiving_forgets_deaths_but_not_culprits() -> None:
    record = DeathRecord(POLICY)
    for death in range(9):
        record.died(death, [])
    record.died(9, [b"bad"])
    record.died(9, [b"bad"])
    record.forgive()
    assert record.count(9) == 0
    assert record.is_culprit(b"bad")


def test_a_load_that_ran_out_of_memory_is_tried_once_more_however_long_it_took() -> None:
    record = DeathRecord(POLICY)
    for way_out in (record.loaded, record.forgive):
        record.load_lacked_memory()
        assert not record.out_of_memory
        record.died(POLICY.window_secs * 9, ())  # another kind of death between changes nothing
        record.load_lacked_memory()
        assert record.out_of_memory
        assert record.loads_without_memory == 2
        way_out()
        assert record.loads_without_memory == 0
        assert not record.out_of_memory


@settings(deadline=None)
@given(deaths=st.lists(st.lists(st.binary(min_size=1, max_size=2), max_size=6), max_size=20))
def test_memory_is_bounded_and_counts_never_exceed_deaths(deaths: list[list[bytes]]) -> None:
    record = DeathRecord(POLICY)
    for now, running in enumerate(deaths):
        record.died(now, running)
    assert record.count(len(deaths)) <= len(deaths)
    assert record.count(len(deaths)) >= sum(not running for running in deaths)
    record.died(0, [b"%d" % number for number in range(MAX_SUSPECTS + 50)])
    assert len(record._suspects) <= MAX_SUSPECTS
