"""Verbs that only look: status, list, ps, completeness, version."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from rustedvino import __version__
from rustedvino.rv.command import Command
from rustedvino.rv.errors import EXIT_FAILED, EXIT_OK, Refused, RvError, Unreachable
from rustedvino.rv.screen import Cell, state_cell
from rustedvino.rv.text import counted, duration, shown, size

MODELS: Final = "/v1/admin/models"
NUMBERS: Final = ("MEMORY", "KV POOL", "KV", "RUNNING", "WAITING", "IDLE", "PRIORITY", "USED", "FREE", "BUDGET")


def version(command: Command) -> int:
    """``rv version``."""
    server: dict[str, Any] | None = None
    url = None
    try:
        url = command.target.base_url
        health = command.client.get("/health", timeout_secs=2.0)
        server = {"url": url, "version": health["version"], "git_hash": health.get("git_hash")}
    except (RvError, LookupError, TypeError, AttributeError):
        server = None  # a version is asked for when things do not work, too
    if command.options.json:
        command.screen.json({"rv": __version__, "server": server})
        return EXIT_OK
    command.screen.line(f"rv      {__version__}")
    if server is None:
        command.screen.line("server  ", ("none answers" + (f" at {url}" if url else ""), "dim"))
    else:
        command.screen.line(f"server  {server['version']} ({server['git_hash']}) at {server['url']}")
    return EXIT_OK


# Status.


def status(command: Command) -> int:
    """``rv status``: what anybody may know, then what an administrator may. Fails when the latter is refused."""
    client, target = command.client, command.target
    health = client.get("/health")
    ready = client.raw("GET", "/readyz")
    refusal: Refused | None = None
    admin: dict[str, Any] = {}
    try:
        admin = client.get(MODELS)
    except Refused as error:
        refusal = error
    waiting = _not_ready(ready.body) if ready.status != 200 else []
    models = admin.get("models", [])
    record = target.record
    if command.options.json:
        command.screen.json(
            {
                "url": target.base_url,
                "version": health.get("version"),
                "git_hash": health.get("git_hash"),
                "ready": ready.status == 200,
                "not_ready": waiting,
                "server": admin.get("server"),
                "models": _states(models) if refusal is None else None,
                "background": None if record is None else {"pid": record.pid, "log": record.log},
            }
        )
    else:
        _show_status(command, health, ready.status == 200, waiting, admin)
    if refusal is not None:
        raise refusal
    return EXIT_OK


def _show_status(
    command: Command, health: Mapping[str, Any], ready: bool, waiting: list[dict[str, Any]], admin: Mapping[str, Any]
) -> None:
    screen, target = command.screen, command.target
    server, models = admin.get("server"), admin.get("models", [])
    facts: list[tuple[str, Cell]] = [
        ("server", target.base_url),
        ("state", ("ready", "green") if ready else ("not ready", "yellow")),
        ("version", f"{health.get('version')} ({health.get('git_hash')})"),
    ]
    if server:
        facts.append(("process", f"{server.get('pid')}, up {duration(server.get('uptime_secs'))}"))
        runtime = f"{server.get('engine')} {server.get('engine_version') or server.get('openvino_version') or ''}"
        facts.append(("runtime", runtime.rstrip()))
        if server.get("gpu_poisoned"):
            facts.append(("poisoned", (shown(server["gpu_poisoned"]), "bold red")))
        facts.append(("models", _model_summary(models)))
        running, queued = (sum(model.get(name) or 0 for model in models) for name in ("running", "waiting"))
        facts.append(("requests", f"{running} running, {queued} waiting"))
    if target.config is not None:
        facts.append(("config", str(target.config.path)))
    if target.record is not None:
        facts.append(("log", target.record.log))
    screen.facts(facts)
    if server and server.get("memory"):
        screen.line("")
        screen.table(["MEMORY", "USED", "FREE", "BUDGET", "SOURCE"], _memory_rows(server["memory"]), right=NUMBERS[1:])
    if waiting:
        screen.line("")
        screen.table(
            ["NOT READY", "STATE", "ERROR"],
            [
                [str(entry.get("model")), state_cell(str(entry.get("state"))), entry.get("error") or ""]
                for entry in waiting
            ],
        )


def _not_ready(body: bytes) -> list[dict[str, Any]]:
    import json

    try:
        return list(json.loads(body)["models"])
    except (ValueError, LookupError, TypeError):
        return []


def _states(models: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for model in models:
        counts[str(model.get("state"))] = counts.get(str(model.get("state")), 0) + 1
    return counts


def _model_summary(models: list[Mapping[str, Any]]) -> str:
    states = ", ".join(f"{count} {state.replace('_', ' ')}" for state, count in _states(models).items())
    return f"{len(models)} registered" + (f": {states}" if states else "")


def _memory_rows(domains: Mapping[str, Mapping[str, Any]]) -> list[list[Cell]]:
    rows: list[list[Cell]] = []
    for name, domain in domains.items():
        used: Cell = size(domain.get("used_bytes"))
        if domain.get("over_bytes"):
            used = (str(used), "bold red")
        rows.append(
            [
                name,
                used,
                _limit(domain.get("free_bytes")),
                _limit(domain.get("budget_bytes")),
                shown(domain.get("source")),
            ]
        )
    return rows


def _limit(count: float | None) -> str:
    return "no limit" if count is None else size(count)


# Models.


def list_models(command: Command) -> int:
    """``rv list``, with the folders of a local models_dir that are not registered yet."""
    models = command.client.get(MODELS)["models"]
    unregistered = _unregistered(command, models)
    if command.options.json:
        command.screen.json({"models": models, "unregistered": unregistered})
        return EXIT_OK
    if models:
        command.screen.table(
            ["MODEL", "KIND", "STATE", "DEVICE", "LOAD", "PRIORITY", "NOTES"],
            [
                [
                    model["model_id"],
                    shown(model.get("kind")),
                    state_cell(model["state"]),
                    shown(model.get("device")),
                    shown(model.get("load")),
                    shown(model.get("priority")),
                    _notes(model),
                ]
                for model in models
            ],
            right=NUMBERS,
        )
    else:
        command.screen.note("no model is registered")
    if unregistered:
        command.screen.note(f"in the models folder, not registered: {', '.join(unregistered)} (rv add MODEL)")
    return EXIT_OK


def _notes(model: Mapping[str, Any]) -> Cell:
    if model.get("last_error") and model["state"] != "ready":
        return str(model["last_error"]), "red"
    words = ["pinned"] if model.get("pinned") else []
    words += ["never evicted"] if model.get("evictable") is False and not words else []
    words += [counted(model["restarts"], "restart")] if model.get("restarts") else []
    words += ["KV pressure"] if (model.get("kv_pressure") or {}).get("flagged") else []
    return ", ".join(words)


def _unregistered(command: Command, models: Iterable[Mapping[str, Any]]) -> list[str]:
    config = command.target.config
    if config is None or config.models_dir is None:
        return []
    known = {model["model_id"] for model in models}
    try:
        folders = [entry for entry in config.models_dir.iterdir() if entry.is_dir() and any(entry.glob("*.xml"))]
    except OSError:
        return []  # the server says what is wrong with it
    return sorted(entry.name for entry in folders if entry.name not in known)


def ps(command: Command) -> int:
    """``rv ps``: models that hold memory or are about to."""
    models = [model for model in command.client.get(MODELS)["models"] if model["state"] != "not_loaded"]
    if command.options.json:
        command.screen.json({"models": models})
    elif models:
        command.screen.table(
            ["MODEL", "STATE", "DEVICE", "MEMORY", "KV POOL", "KV", "RUNNING", "WAITING", "IDLE"],
            [ps_row(model) for model in models],
            right=NUMBERS,
        )
    else:
        command.screen.note("no model is loaded")
    return EXIT_OK


def ps_row(model: Mapping[str, Any]) -> list[Cell]:
    """A model's line in ``rv ps``."""
    pool = model.get("kv_cache") or {}
    idle = model.get("idle_secs") if not model.get("running") else None
    return [
        model["model_id"],
        state_cell(model["state"]),
        shown(model.get("device")),
        size(memory_bytes(model)),
        size(pool.get("pool_bytes")),
        f"{pool['used_percent']:.0f} %" if pool.get("used_percent") is not None else "–",
        shown(model.get("running")),
        shown(model.get("waiting")),
        duration(idle),
    ]


def memory_bytes(model: Mapping[str, Any]) -> int | None:
    """What a model is charged in all domains together."""
    charged = (model.get("memory") or {}).get("charged")
    return None if charged is None else sum(charged.values())


# Files.


def completeness(command: Command) -> int:
    """``rv completeness``; fails when files are missing. Without a server the files here are looked at."""
    report = _local_completeness(command) if command.options.local else _asked_completeness(command)
    if command.options.json:
        command.screen.json(report)
    else:
        command.screen.table(
            ["MODEL", "KIND", "COMPLETE", "PROBLEM"],
            [
                [
                    entry["model_id"],
                    shown(entry.get("kind")),
                    ("yes", "green") if entry["complete"] else ("no", "bold red"),
                    entry.get("problem") or "",
                ]
                for entry in report["models"]
            ],
        )
    return EXIT_OK if report["complete"] else EXIT_FAILED


def _asked_completeness(command: Command) -> dict[str, Any]:
    try:
        return dict(command.client.get(f"{MODELS}/completeness", timeout_secs=120.0))
    except Unreachable as error:
        if command.target.config is None:
            raise
        command.screen.note(f"{error.message}: looking at the files of this machine")
        return _local_completeness(command)


def _local_completeness(command: Command) -> dict[str, Any]:
    from rustedvino.config import ConfigError, load_config
    from rustedvino.hub.model_files import folder_report

    config = command.target.require_config("completeness --local")
    try:
        settings = load_config(config.path).settings
    except ConfigError as error:
        raise RvError(str(error), code="config_invalid") from error
    models = [
        {"model_id": model_id, **folder_report(settings.models_dir / model_id, model.kind)}
        for model_id, model in settings.models.items()
    ]
    return {"complete": all(entry["complete"] for entry in models), "models": models}
