"""Verbs for the config, the keys and voice sessions."""

from typing import Any, Final
from urllib.parse import quote

from rustedvino.rv.command import Command
from rustedvino.rv.errors import EXIT_OK

SESSIONS: Final = "/v1/admin/realtime/sessions"


def reload_config(command: Command) -> int:
    """``rv reload-config``."""
    answer = command.client.call("POST", "/v1/admin/config/reload")
    if command.options.json:
        command.screen.json(answer)
        return EXIT_OK
    screen = command.screen
    words = {
        "added": "registered",
        "removed": "taken out",
        "retried": "given another chance",
        "updated": "in effect",
        "next_load": "from its next load on",
        "skipped": "skipped",
    }
    said = False
    for name, meaning in words.items():
        for entry in answer.get(name) or []:
            said = True
            screen.line(_reloaded(entry, meaning))
    if answer.get("next_start"):
        said = True
        screen.line(f"from the next start on: {', '.join(answer['next_start'])}")
    if not said:
        screen.line("nothing has changed")
    return EXIT_OK


def _reloaded(entry: Any, meaning: str) -> str:
    if not isinstance(entry, dict):
        return f"{entry}: {meaning}"
    if "fields" in entry:
        return f"{entry['model_id']}: {', '.join(entry['fields'])} {meaning}"
    return f"{entry['model_id']}: {meaning}, {entry.get('reason')}"


def reload_keys(command: Command) -> int:
    """``rv reload-keys``."""
    answer = command.client.call("POST", "/v1/admin/keys/reload")
    _show(command, answer)
    return EXIT_OK


def voice_pin(command: Command) -> int:
    """``rv voice-pin``."""
    _show(command, command.client.get("/v1/admin/voice-pin"))
    return EXIT_OK


def sessions(command: Command) -> int:
    """``rv sessions``."""
    answer = command.client.get(SESSIONS)
    if command.options.json:
        command.screen.json(answer)
        return EXIT_OK
    entries = answer.get("sessions") if isinstance(answer, dict) else answer
    if entries:
        command.screen.records(entries)
    else:
        command.screen.note("no voice session is open")
    return EXIT_OK


def session(command: Command) -> int:
    """``rv session``."""
    _show(command, command.client.get(_session_path(command)))
    return EXIT_OK


def session_kill(command: Command) -> int:
    """``rv session-kill``."""
    command.screen.confirm(f"This closes the voice session {command.options.session}.", yes=command.options.yes)
    answer = command.client.call("DELETE", _session_path(command), timeout_secs=60.0)
    if command.options.json:
        command.screen.json(answer)
    else:
        command.screen.line(f"the session {command.options.session} is closed")
    return EXIT_OK


def _session_path(command: Command) -> str:
    return f"{SESSIONS}/{quote(command.options.session, safe='')}"


def _show(command: Command, answer: Any) -> None:
    if command.options.json:
        command.screen.json(answer)
    else:
        command.screen.object(answer)


def keys(command: Command) -> int:
    """``rv keys new``: the new key is printed this once."""
    from rustedvino.rv.keys_file import add_key

    config = command.target.require_config("keys new")
    first = not config.keys_path.exists()
    key = add_key(config.keys_path, admin=command.options.admin)
    scope = "inference and administration" if command.options.admin else "inference"
    if command.options.json:
        command.screen.json(
            {"key": key, "scope": "admin" if command.options.admin else "inference", "file": str(config.keys_path)}
        )
        return EXIT_OK
    command.screen.line(key)
    command.screen.note((f"a key for {scope}, added to {config.keys_path}; it is not shown again", "dim"))
    command.screen.note(("`rv reload-keys` makes a running server take it", "dim"))
    if first and not command.options.admin:
        command.screen.note(("once it is taken, administration needs an admin key: `rv keys new --admin`", "dim"))
    return EXIT_OK
