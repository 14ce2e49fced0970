"""``/v1/admin/voice-pin`` and ``/v1/admin/realtime/sessions``: voice sessions as an administrator sees them."""

from typing import Final

from quart import Blueprint, Response

from rustedvino.api import errors as api
from rustedvino.http.auth import require_admin
from rustedvino.http.context import context
from rustedvino.http.replies import json_reply
from rustedvino.hub.admin_views import session_view, voice_pin_view

blueprint: Final = Blueprint("voice", __name__, url_prefix="/v1/admin")


@blueprint.before_request
async def _gate() -> None:
    require_admin()


@blueprint.get("/voice-pin")
async def voice_pin() -> Response:
    """The models that voice sessions share when they name none, and how they are."""
    return json_reply(voice_pin_view(context().hub))


@blueprint.get("/realtime/sessions")
async def list_sessions() -> Response:
    """The open sessions, the oldest first."""
    return json_reply({"object": "list", "sessions": [session_view(each) for each in context().hub.voice_sessions]})


@blueprint.get("/realtime/sessions/<session_id>")
async def get_session(session_id: str) -> Response:
    """One open session now."""
    return json_reply(session_view(context().hub.voice_sessions.get(session_id)))


@blueprint.delete("/realtime/sessions/<session_id>")
async def close_session(session_id: str) -> Response:
    """End a session by force and wait for its end."""
    if not await context().hub.voice_sessions.close(session_id):
        raise api.conflict(f"the session {session_id} was told to end, but has not ended yet", "session_closing")
    return json_reply({"session_id": session_id, "closed": True})
