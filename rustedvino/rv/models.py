"""Verbs that change models."""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from rustedvino.rv.client import model_path
from rustedvino.rv.command import Command
from rustedvino.rv.errors import EXIT_FAILED, EXIT_OK, Refused, RvError, UsageError
from rustedvino.rv.look import memory_bytes
from rustedvino.rv.progress import Waiting, wait_for
from rustedvino.rv.screen import Cell
from rustedvino.rv.text import counted, duration, listed, safe, shown, size

MODELS: Final = "/v1/admin/models"
_PHASES: Final = {"not_loaded": "waiting for memory", "draining": "finishing its requests"}
"""What the states of a model mean while it is waited for."""


# Reading command lines.


def read_settings(words: list[str]) -> dict[str, Any]:
    """``NAME=VALUE`` as JSON fields. Raises UsageError."""
    settings: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not name:
            raise UsageError(f"{word!r} is not NAME=VALUE")
        if name in settings:
            raise UsageError(f"{name} is given twice")
        settings[name] = _value(name, text)
    return settings


def _value(name: str, text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_number)
    except _NoNumber as error:
        raise UsageError(f"{name}: {error} is not a number that can be sent") from error
    except (ValueError, RecursionError):
        if text[:1] in ("{", "[", '"'):
            raise UsageError(f"{name}: {text!r} is not JSON") from None
        return text


class _NoNumber(Exception):
    """NaN or Infinity."""


def _no_number(text: str) -> Any:
    raise _NoNumber(text)


# Looking before acting.


def check(command: Command) -> int:
    """``rv check``: fails when the model would not fit."""
    answer = _check(command)
    if command.options.json:
        command.screen.json(answer)
    else:
        _show_check(command, answer)
    return EXIT_OK if answer["fits"] else EXIT_FAILED


def _check(command: Command) -> dict[str, Any]:
    path = model_path(command.options.model, "check")
    return dict(command.client.call("POST", path, _load_body(command), timeout_secs=60.0))


def _load_body(command: Command) -> dict[str, Any]:
    """What is to be loaded how, the same for a load and for its preview."""
    options = command.options
    pool = {} if options.kv_cache_gb is None else {"kv_cache_gb": options.kv_cache_gb}
    return {"force": options.force, **pool}


def _show_check(command: Command, answer: Mapping[str, Any]) -> None:
    facts: list[tuple[str, Cell]] = [
        ("model", f"{answer['model_id']} ({shown(answer.get('state')).replace('_', ' ')})"),
        ("fits", ("yes", "green") if answer["fits"] else ("no", "bold red")),
    ]
    if answer["fits"]:
        facts.append(("device", shown(answer.get("device"))))
        facts += [(f"needs of {domain}", size(count)) for domain, count in answer.get("demand_bytes", {}).items()]
        if answer.get("kv_pool_bytes"):
            facts.append(("KV pool", size(answer["kv_pool_bytes"])))
        victims = answer.get("would_evict", [])
        facts.append(("would unload", (listed(victims), "yellow") if victims else "none"))
    else:
        facts.append(("because", str(answer.get("message"))))
        facts += [
            (name.replace("_", " ").removesuffix(" bytes"), size(answer[name]))
            for name in ("needed_bytes", "free_bytes", "evictable_bytes", "budget_bytes")
            if answer.get(name) is not None
        ]
        facts += [(f"protected {entry['model_id']}", shown(entry.get("reason"))) for entry in _protected(answer)]
        later = answer.get("retry_after_secs")
        facts.append(("later", "never, as things are configured" if later is None else f"perhaps in {duration(later)}"))
    command.screen.facts(facts)
    for reason in answer.get("reasons", []):
        command.screen.line((f"  {reason}", "dim"))


def _protected(answer: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [entry for entry in answer.get("protected", []) if isinstance(entry, dict) and "model_id" in entry]


# Loading.


def load(command: Command) -> int:
    """``rv load``: looks first, and asks when another model would have to go."""
    options = command.options
    if not options.no_check:
        answer = _check(command)
        if answer.get("state") != "ready":
            _require_room(command, answer)
            victims = answer["would_evict"]
            if victims:
                busy = " Requests that run on them may be ended." if options.force else ""
                command.screen.confirm(f"Loading {options.model} unloads {listed(victims)}.{busy}", yes=options.yes)
    elif options.force:
        what = f"Loading {options.model} by force may unload other models and end their requests."
        command.screen.confirm(what, yes=options.yes)
    view = _with_progress(
        command,
        f"loading {options.model}",
        lambda: command.client.call("POST", model_path(options.model, "load"), _load_body(command)),
    )
    _loaded(command, view)
    return EXIT_OK


def _require_room(command: Command, answer: Mapping[str, Any]) -> None:
    if answer["fits"]:
        return
    later = answer.get("retry_after_secs")
    hint = f"`rv check {command.options.model}` shows the numbers"
    if not command.options.force and any(entry.get("model_id") for entry in _protected(answer)):
        hint += "; --force may evict models that are busy or were just used"
    if later is not None:
        hint += f"; it may fit in {duration(later)}"
    raise RvError(str(answer.get("message")), code="insufficient_memory", hint=hint, answer=dict(answer))


def _with_progress(command: Command, doing: str, work: Callable[[], Any], *, is_load: bool = True) -> Any:
    """Do something long with one model and show the state it is in meanwhile."""
    model_id = command.options.model
    expected_secs = _usual_load_secs(command, model_id) if is_load else None
    with Waiting(command.screen, doing, expected_secs=expected_secs) as waiting:

        def phase() -> str | None:
            view = _view(command, model_id)
            state = None if view is None else str(view["state"])
            if state is None:
                return None
            if doing.startswith(state):
                return doing
            return f"{doing}: {_PHASES.get(state, state)}"

        return wait_for(work, waiting, phase)


def _view(command: Command, model_id: str) -> Mapping[str, Any] | None:
    """A model as the server sees it now; None when it cannot be told."""
    try:
        models = command.client.get(MODELS, timeout_secs=2.0)["models"]
    except RvError:
        return None  # what is waited for will say it
    return next((model for model in models if model["model_id"] == model_id), None)


def _usual_load_secs(command: Command, model_id: str) -> float | None:
    view = _view(command, model_id) if command.screen.err_is_terminal else None
    return None if view is None else view.get("load_secs")


def _loaded(command: Command, view: Mapping[str, Any]) -> None:
    if command.options.json:
        command.screen.json(view)
        return
    state = str(view.get("state"))
    if state == "not_loaded":
        command.screen.line((view["model_id"], "bold"), " is registered; its first request loads it")
        return
    details = [f"on {view['device']}"] if view.get("device") else []
    if view.get("load_secs") is not None:
        details.append(f"in {duration(view['load_secs'])}")
    if (memory := memory_bytes(view)) is not None:
        details.append(f"charged {size(memory)}")
    suffix = f" ({', '.join(details)})" if details else ""
    command.screen.line((view["model_id"], "bold"), f" is {state}{suffix}")


def add(command: Command) -> int:
    """``rv add``: registers, saves and, unless it loads on demand, loads."""
    options = command.options
    body = {"model_id": options.model, **read_settings(options.settings)}
    given = {
        "kind": options.kind,
        "device": options.device,
        "vram_gb": options.vram_gb,
        "kv_cache_gb": options.kv_cache_gb,
        "load": "on_demand" if options.on_demand else None,
        "pinned": options.pinned or None,
        "priority": options.priority,
    }
    for name, value in given.items():
        if value is not None:
            if name in body:
                raise UsageError(f"{name} is given twice")
            body[name] = value
    add_model(command, body)
    return EXIT_OK


def add_model(command: Command, body: dict[str, Any]) -> None:
    """Register a model with these fields and say what came of it. Raises RvError."""
    command.options.model = body["model_id"]
    view = _with_progress(command, f"adding {body['model_id']}", lambda: command.client.call("POST", MODELS, body))
    _loaded(command, view)


# Ending.


def unload(command: Command) -> int:
    """``rv unload``."""
    model_id = command.options.model
    if not command.options.yes:
        command.screen.confirm(_ending(command, f"This unloads {model_id}."), yes=False)
    view = _with_progress(
        command, f"unloading {model_id}", lambda: command.client.call("DELETE", model_path(model_id)), is_load=False
    )
    _answer(command, view, f"{model_id} is unloaded")
    return EXIT_OK


def deregister(command: Command) -> int:
    """``rv deregister``."""
    model_id = command.options.model
    if not command.options.yes:
        what = f"This takes {model_id} out of the registry and of the config; its files stay."
        command.screen.confirm(_ending(command, what), yes=False)
    answer = _with_progress(
        command,
        f"deregistering {model_id}",
        lambda: command.client.call("DELETE", model_path(model_id, "register")),
        is_load=False,
    )
    _answer(command, answer, f"{model_id} is no longer registered")
    return EXIT_OK


def resize(command: Command) -> int:
    """``rv resize``."""
    options = command.options
    what = f"Resizing unloads {options.model} and loads it again with another KV pool."
    if not options.yes:
        command.screen.confirm(_ending(command, what), yes=False)
    view = _with_progress(
        command,
        f"resizing {options.model}",
        lambda: command.client.call("POST", model_path(options.model, "resize"), {"kv_cache_gb": options.kv_cache_gb}),
    )
    _loaded(command, view)
    return EXIT_OK


def _ending(command: Command, what: str) -> str:
    """The question before a model ends. Raises Refused for a model that does not exist."""
    models = command.client.get(MODELS)["models"]
    view = next((model for model in models if model["model_id"] == command.options.model), None)
    if view is None:
        message = f"the model {command.options.model!r} does not exist"
        raise Refused(404, message, code="model_not_found")
    running = view.get("running") or 0
    return f"{what} {counted(running, 'request')} {'runs' if running == 1 else 'run'} on it." if running else what


def _answer(command: Command, answer: Any, words: str) -> None:
    if command.options.json:
        command.screen.json(answer)
    else:
        command.screen.line(words)


# Settings.


def patch(command: Command) -> int:
    """``rv patch``."""
    body = read_settings(command.options.settings)
    answer = command.client.call("PATCH", model_path(command.options.model), body, timeout_secs=60.0)
    if command.options.json:
        command.screen.json(answer)
        return EXIT_OK
    for name, words in (("live", "in effect"), ("next_load", "from its next load on"), ("unchanged", "unchanged")):
        if answer.get(name):
            command.screen.line(f"{', '.join(answer[name])}: {words}")
    return EXIT_OK


def preload(command: Command) -> int:
    """``rv preload``."""
    options = command.options
    if bool(options.models) == options.from_live:
        raise UsageError("name the models, or give --from-live")
    _preload(command, {"from_live": True} if options.from_live else {"model_ids": options.models})
    return EXIT_OK


def save_defaults(command: Command) -> int:
    """``rv save-defaults``: the same as ``rv preload --from-live``."""
    _preload(command, {"from_live": True})
    return EXIT_OK


def _preload(command: Command, body: dict[str, Any]) -> None:
    answer = command.client.call("POST", "/v1/admin/config/preload", body, timeout_secs=60.0)
    if command.options.json:
        command.screen.json(answer)
        return
    command.screen.line(f"saved: {safe(listed(answer['preload']))} will be loaded at start")
    others = [model_id for model_id in answer.get("eager", []) if model_id not in answer["preload"]]
    if others:
        command.screen.line((f"so will {listed(others)}, whose load is eager", "dim"))
