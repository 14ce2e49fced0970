"""Admin routes of voice sessions and of the models they share."""

import json
from pathlib import Path
from typing import Any

import trio
from quart_trio import QuartTrio

from rustedvino.config.types import ModelSettings, RealtimeDefaults, ServerSettings
from rustedvino.http.app import create_app
from rustedvino.http.context import ServerContext
from rustedvino.hub.hub import Hub

SESSIONS = "/v1/admin/realtime/sessions"


def make(**settings: Any) -> tuple[QuartTrio, Hub]:
    """The application of a server that runs no models, and its hub."""
    hub = Hub(ServerSettings(models_dir=Path("/nonexistent"), device="CPU", total_vram_gb=0, **settings))
    return create_app(ServerContext(hub.settings, hub, "unknown")), hub


async def ask(app: QuartTrio, method: str, path: str) -> tuple[int, Any]:
    reply = await app.test_client().open(path, method=method)
    return reply.status_code, json.loads(await reply.get_data())


async def test_no_session_is_open() -> None:
    app, _ = make()
    assert await ask(app, "GET", SESSIONS) == (200, {"object": "list", "sessions": []})
    for method in ("GET", "DELETE"):
        for name in ("sess_1", "%20", "x" * 300):
            status, body = await ask(app, method, f"{SESSIONS}/{name}")
            assert (status, body["error"]["code"], body["error"]["param"]) == (404, "session_not_found", None)
            assert len(body["error"]["message"]) < 150
    assert (await ask(app, "DELETE", SESSIONS))[0] == 405


async def test_an_open_session_is_shown_and_closed() -> None:
    app, hub = make()

    async def talk() -> None:
        with hub.voice_sessions.opened(lambda: {"models": {"llm": "qwen"}, "turns": 3}):
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(talk)
        await trio.testing.wait_all_tasks_blocked()
        status, body = await ask(app, "GET", SESSIONS)
        assert status == 200
        (shown,) = body["sessions"]
        assert (shown["models"], shown["turns"]) == ({"llm": "qwen"}, 3)
        assert shown["opened_at"].endswith("Z")
        path = f"{SESSIONS}/{shown['session_id']}"
        status, one = await ask(app, "GET", path)
        assert (status, one | {"age_secs": 0}) == (200, shown | {"age_secs": 0})
        assert one["age_secs"] >= shown["age_secs"]
        assert await ask(app, "DELETE", path) == (200, {"session_id": shown["session_id"], "closed": True})
        assert (await ask(app, "DELETE", path))[0] == 404
        assert await ask(app, "GET", SESSIONS) == (200, {"object": "list", "sessions": []})


async def test_no_shared_models() -> None:
    app, _ = make()
    nothing = {"stt_model": None, "llm_model": None, "tts_model": None, "embed_model": None}
    assert await ask(app, "GET", "/v1/admin/voice-pin") == (
        200,
        {"configured": False, "ready": False, "models": nothing},
    )


async def test_shared_models_and_how_they_are() -> None:
    entry = ModelSettings(kind="text_gen", pinned=True, device="GPU", load="on_demand")
    app, hub = make(
        models={"qwen": entry}, realtime_defaults=RealtimeDefaults(llm_model="qwen", stt_model="not-registered")
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(hub.run)
        status, body = await ask(app, "GET", "/v1/admin/voice-pin")
        nursery.cancel_scope.cancel()
    assert status == 200
    assert body["configured"]
    assert not body["ready"]
    registered = {"registered": True, "kind": "text_gen", "state": "not_loaded", "pinned": True, "device": "GPU"}
    unknown = {"registered": False, "kind": None, "state": None, "pinned": None, "device": None}
    assert body["models"] == {
        "stt_model": {"model_id": "not-registered", **unknown},
        "llm_model": {"model_id": "qwen", **registered},
        "tts_model": None,
        "embed_model": None,
    }
