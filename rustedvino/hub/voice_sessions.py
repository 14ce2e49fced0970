"""Open voice sessions: what an administrator sees of them, and how one is ended from outside."""

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import trio
from attrs import define, field

from rustedvino.hub.errors import UnknownSession

CLOSE_SECS: Final = 10.0
"""How long whoever closes a session waits for its end."""
_SHOWN_ID_CHARS: Final = 64


@define(eq=False)
class VoiceSession:
    """A session from its begin to its end. ``describe`` tells what the session itself knows, as JSON values."""

    session_id: str
    describe: Callable[[], Mapping[str, Any]]
    opened_at: float = field(factory=time.time)
    """Seconds since 1970."""
    closed_by_force: bool = False
    ended: trio.Event = field(factory=trio.Event)
    _opened_clock: float = field(factory=trio.current_time)
    _scope: trio.CancelScope = field(factory=trio.CancelScope)

    @property
    def age_secs(self) -> float:
        """Since it was opened."""
        return trio.current_time() - self._opened_clock


@define(eq=False)
class VoiceSessions:
    """The sessions that are open now, the oldest first."""

    _sessions: dict[str, VoiceSession] = field(factory=dict)

    def __iter__(self) -> Iterator[VoiceSession]:
        return iter(list(self._sessions.values()))

    def get(self, session_id: str) -> VoiceSession:
        """The open session of that id. Raises UnknownSession."""
        session = self._sessions.get(session_id)
        if session is None:
            raise UnknownSession(f"there is no open voice session {session_id[:_SHOWN_ID_CHARS]!r}")
        return session

    @contextlib.contextmanager
    def opened(self, describe: Callable[[], Mapping[str, Any]]) -> Iterator[VoiceSession]:
        """Be a session: it is listed for as long as the block runs. When it is closed by force the block is cancelled
        and left, with ``closed_by_force`` set; clean up and say goodbye behind it."""
        session = VoiceSession(f"sess_{secrets.token_hex(12)}", describe)
        self._sessions[session.session_id] = session
        try:
            with session._scope:  # noqa: SLF001  # the two are one
                yield session
        finally:
            del self._sessions[session.session_id]
            session.ended.set()

    async def close(self, session_id: str) -> bool:
        """End a session by force and wait for its end; False when that takes longer than CLOSE_SECS.

        Raises UnknownSession.
        """
        session = self.get(session_id)
        session.closed_by_force = True
        session._scope.cancel()  # noqa: SLF001
        with trio.move_on_after(CLOSE_SECS):
            await session.ended.wait()
        return session.ended.is_set()
