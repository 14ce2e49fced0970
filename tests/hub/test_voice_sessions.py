"""Voice sessions as an administrator sees them."""

import pytest
import trio
import trio.testing

from rustedvino.hub.errors import UnknownSession
from rustedvino.hub.voice_sessions import CLOSE_SECS, VoiceSession, VoiceSessions


async def test_a_session_is_listed_while_it_runs(autojump_clock: trio.testing.MockClock) -> None:
    sessions = VoiceSessions()
    assert list(sessions) == []
    with sessions.opened(lambda: {"turns": 1}) as first, sessions.opened(dict) as second:
        await trio.sleep(5)
        assert list(sessions) == [first, second]
        assert sessions.get(first.session_id) is first
        assert first.session_id != second.session_id
        assert first.describe() == {"turns": 1}
        assert first.age_secs == pytest.approx(5)
    assert list(sessions) == []
    assert not first.closed_by_force
    with pytest.raises(UnknownSession, match=first.session_id):
        sessions.get(first.session_id)


async def test_a_fault_of_a_session_takes_it_off_the_list() -> None:
    sessions = VoiceSessions()
    with pytest.raises(ZeroDivisionError), sessions.opened(dict):
        _ = 1 / 0
    assert list(sessions) == []


async def test_closing_ends_one_session_and_waits_for_its_end(autojump_clock: trio.testing.MockClock) -> None:
    sessions = VoiceSessions()
    said: list[str] = []
    both: list[VoiceSession] = []

    async def talk(name: str) -> None:
        with sessions.opened(dict) as session:
            both.append(session)
            try:
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    await trio.sleep(1)
                said.append(f"{name} ends")
        said.append(f"{name} was closed: {session.closed_by_force}")
        await trio.lowlevel.checkpoint()  # it may go on: the cancellation was of its block alone

    async with trio.open_nursery() as nursery:
        for name in ("a", "b"):
            nursery.start_soon(talk, name)
            await trio.testing.wait_all_tasks_blocked()
        assert await sessions.close(both[0].session_id)
        assert said == ["a ends", "a was closed: True"]
        assert list(sessions) == [both[1]]
        nursery.cancel_scope.cancel()
    with pytest.raises(UnknownSession):
        await sessions.close(both[0].session_id)


async def test_one_that_does_not_end_is_said_so(autojump_clock: trio.testing.MockClock) -> None:
    sessions = VoiceSessions()

    async def stubborn() -> None:
        with sessions.opened(dict), trio.CancelScope(shield=True):
            await trio.sleep(10 * CLOSE_SECS)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stubborn)
        await trio.testing.wait_all_tasks_blocked()
        (session,) = sessions
        assert not await sessions.close(session.session_id)
        assert list(sessions) == [session]
