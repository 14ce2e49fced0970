"""Config, keys and voice sessions."""

import json
import stat
from collections.abc import Callable
from pathlib import Path

from tests.rv.conftest import Ended
from tests.rv.fake import FakeServer, error_answer

Rv = Callable[..., Ended]


def test_reload_config(rv: Rv, fake: FakeServer) -> None:
    answer = {
        "added": ["a"],
        "updated": [{"model_id": "b", "fields": ["pinned", "priority"]}],
        "next_load": [{"model_id": "b", "fields": ["device"]}],
        "removed": ["c"],
        "retried": [],
        "skipped": [{"model_id": "d", "reason": "is ready"}],
        "next_start": ["port"],
    }
    fake.add("POST /v1/admin/config/reload", answer, {name: [] for name in answer})
    assert rv("reload-config", host=fake).out == (
        "a: registered\nc: taken out\nb: pinned, priority in effect\nb: device from its next load on\n"
        "d: skipped, is ready\nfrom the next start on: port\n"
    )
    assert rv("reload-config", host=fake).out == "nothing has changed\n"


def test_reload_keys(rv: Rv, fake: FakeServer) -> None:
    fake.add("POST /v1/admin/keys/reload", {"status": "ok", "api_keys": 2, "warnings": ["readable by all"]})
    assert rv("reload-keys", host=fake).out == "status: ok\napi_keys: 2\nwarnings: readable by all\n"
    fake.add("POST /v1/admin/keys/reload", error_answer(409, "the keys in use are kept: …", "keys_invalid"))
    assert rv("reload-keys", host=fake).code == 1


def test_voice_sessions(rv: Rv, fake: FakeServer) -> None:
    base = "/v1/admin/realtime/sessions"
    fake.add(f"GET {base}", {"sessions": [{"session_id": "s/1", "age_secs": 5, "models": {"llm": "qwen"}}]})
    fake.add(f"GET {base}/s%2F1", {"session_id": "s/1", "models": {"llm": "qwen"}, "turns": [{"n": 1}, {"n": 2}]})
    fake.add(f"DELETE {base}/s%2F1", {"closed": True})
    fake.add("GET /v1/admin/voice-pin", {"pinned": None})
    assert rv("sessions", host=fake).out == "SESSION ID  AGE SECS  MODELS\ns/1         5         llm qwen\n"
    assert rv("session", "s/1", host=fake).out == "session_id: s/1\nmodels:\n  llm: qwen\nturns:\nN\n1\n2\n"
    assert rv("session-kill", "s/1", host=fake).code == 2
    assert rv("session-kill", "s/1", "-y", host=fake).out == "the session s/1 is closed\n"
    assert rv("voice-pin", host=fake).out == "pinned: –\n"
    assert rv("voice-pin", "--json", host=fake).json == {"pinned": None}
    fake.add(f"GET {base}", {"sessions": []})
    assert rv("sessions", host=fake).err == "no voice session is open\n"


def test_a_new_key_is_shown_once_and_others_never(rv: Rv, home: Path) -> None:
    (home / "config.json").write_text("{}")
    first = rv("keys", "new")
    assert first.code == 0
    assert "administration needs an admin key" in first.err
    key = first.out.strip()
    second = rv("keys", "new", "--admin", "--json")
    assert key not in second.out + second.err
    path = home / "config.keys.json"
    assert json.loads(path.read_text()) == {"api_keys": [key], "admin_api_keys": [second.json["key"]]}
    assert second.json["scope"] == "admin"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_keys_are_made_where_the_server_is(rv: Rv) -> None:
    done = rv("keys", "new", "--host", "elsewhere")
    assert (done.code, "use it there" in done.err) == (2, True)
    assert rv("keys", "new").code == 2
