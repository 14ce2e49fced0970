"""Every verb: what it is called, what it does in a line, which function does it, and what it takes."""

import argparse
from collections.abc import Callable
from typing import Final, NamedTuple

Adder = Callable[[argparse.ArgumentParser], None]


class Verb(NamedTuple):
    """``function`` is ``module:name`` within this package; it takes a Command and returns an exit code or None.

    ``asks``: it has ``-y``. ``has_json``: it has ``--json``. ``add``: its own arguments.
    """

    name: str
    group: str
    summary: str
    function: str
    add: Adder | None = None
    asks: bool = False
    has_json: bool = True


def _model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="model id")


def _ids(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("models", metavar="MODEL", nargs="*", help="model ids, in the order to load them in")
    parser.add_argument("--from-live", action="store_true", help="those that are loaded now, the oldest first")


def _check(parser: argparse.ArgumentParser) -> None:
    _model(parser)
    parser.add_argument("--force", action="store_true", help="preview a load by force")
    parser.add_argument("--kv-cache-gb", type=float, metavar="GB", help="preview a load with this KV pool")


def _load(parser: argparse.ArgumentParser) -> None:
    _model(parser)
    parser.add_argument("--force", action="store_true", help="may also evict models that are busy or were just used")
    parser.add_argument("--no-check", action="store_true", help="load without looking first at what it would evict")
    parser.add_argument("--kv-cache-gb", type=float, metavar="GB", help="KV pool until it is unloaded; 0 = automatic")


def _add(parser: argparse.ArgumentParser) -> None:
    _model(parser)
    parser.add_argument("--kind", help="what the model does, where its files do not tell")
    parser.add_argument("--device", help="OpenVINO device to load it on")
    parser.add_argument("--vram-gb", type=float, metavar="GB", help="memory it needs, instead of its size on disk")
    parser.add_argument("--kv-cache-gb", type=float, metavar="GB", help="size of its KV pool")
    parser.add_argument("--on-demand", action="store_true", help="load it at its first request, not now and at start")
    parser.add_argument("--pinned", action="store_true", help="never evict it")
    parser.add_argument("--priority", type=int, help="the lowest is evicted first")
    _settings(parser, "*")


def _patch(parser: argparse.ArgumentParser) -> None:
    _model(parser)
    _settings(parser, "+")


def _settings(parser: argparse.ArgumentParser, count: str) -> None:
    parser.add_argument(
        "settings",
        metavar="NAME=VALUE",
        nargs=count,
        help="a setting; the value is JSON, or text where it is no JSON; null takes it back to its default",
    )


def _resize(parser: argparse.ArgumentParser) -> None:
    _model(parser)
    parser.add_argument("kv_cache_gb", metavar="GB", type=float, help="new size of its KV pool; 0 = automatic")


def _completeness(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--local", action="store_true", help="look at the files of this machine instead of asking the server"
    )


def _logs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-n", "--lines", type=_natural, default=200, metavar="N", help="how many lines (200)")
    parser.add_argument("-f", "--follow", action="store_true", help="go on with new lines until interrupted")
    parser.add_argument("--file", action="store_true", help="read the log file of `rv start`; needs no server")


def _session(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("session", metavar="ID", help="id of the session, as `rv sessions` shows it")


def _start(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--demo", action="store_true", help="serve the embedded demo model, without a config")
    parser.add_argument("--supervise", action="store_true", help="with a supervisor that starts it again")
    parser.add_argument("--wait-ready", action="store_true", help="wait for the models that are loaded at start, too")


def _stop(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--demo", action="store_true", help="the server of the demo model")
    parser.add_argument("--kill", action="store_true", help="end by force what has not ended in time")


def _restart(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--demo", action="store_true", help="the server of the demo model")
    parser.add_argument("--kill", action="store_true", help="end by force what has not ended in time")
    parser.add_argument("--supervise", action="store_true", default=None, help="with a supervisor from now on")
    parser.add_argument("--wait-ready", action="store_true", help="wait for the models that are loaded at start, too")


def _chat(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", nargs="?", help="model id; without: one that is ready")
    parser.add_argument("-p", "--prompt", metavar="TEXT", help="ask this, print the answer and end")
    parser.add_argument("--system", metavar="TEXT", help="system message")
    parser.add_argument("--temperature", type=float, help="0 = always the likeliest token")
    parser.add_argument("--max-tokens", type=_natural, metavar="N", help="longest answer")
    parser.add_argument("--no-think", action="store_true", help="ask the model not to think first")


def _pull(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("repository", metavar="OWNER/NAME", help="repository with an OpenVINO model")
    parser.add_argument("--revision", help="branch, tag or commit")
    parser.add_argument("--name", metavar="MODEL", help="model id to store it as, instead of NAME")
    parser.add_argument("--add", action="store_true", help="add it to the server without asking")
    parser.add_argument("--no-add", action="store_true", help="do not offer to add it")


def _top(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--interval", type=float, default=1.0, metavar="SECS", help="time between two looks (1)")


def _keys(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["new"], help="new: make a random key and add it to the keys file")
    parser.add_argument("--admin", action="store_true", help="a key that may administer, too")


def _completion(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=["bash", "zsh", "fish"])


def _help(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("verb", nargs="?", help="verb to explain")


def _natural(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is less than 1")
    return value


LOOK: Final = "Look"
MODELS: Final = "Models"
SERVER: Final = "Server"
VOICE: Final = "Voice sessions"
OTHER: Final = "More"

VERBS: Final = (
    Verb("status", LOOK, "the server, its memory and what its models do", "look:status"),
    Verb("list", LOOK, "registered models", "look:list_models"),
    Verb("ps", LOOK, "loaded models and what they use", "look:ps"),
    Verb("top", LOOK, "live view of models, speed, queue and memory", "top:top", _top),
    Verb("logs", LOOK, "the server's log", "logs:logs", _logs),
    Verb("completeness", LOOK, "which registered models lack files", "look:completeness", _completeness),
    Verb("chat", MODELS, "talk to a model", "chat:chat", _chat, has_json=False),
    Verb("pull", MODELS, "download an OpenVINO model", "pull:pull", _pull, asks=True, has_json=False),
    Verb("add", MODELS, "register a model and load it", "models:add", _add),
    Verb("check", MODELS, "what a load would do now", "models:check", _check),
    Verb("load", MODELS, "load a model", "models:load", _load, asks=True),
    Verb("unload", MODELS, "unload a model; it stays registered", "models:unload", _model, asks=True),
    Verb("resize", MODELS, "load a model again with another KV pool", "models:resize", _resize, asks=True),
    Verb("patch", MODELS, "change settings of a model", "models:patch", _patch),
    Verb(
        "deregister", MODELS, "take a model out of the registry and the config", "models:deregister", _model, asks=True
    ),
    Verb("preload", MODELS, "save which models are loaded at start", "models:preload", _ids),
    Verb("save-defaults", MODELS, "save what is loaded now as what is loaded at start", "models:save_defaults"),
    Verb("start", SERVER, "start a server in the background", "lifecycle:start", _start, has_json=False),
    Verb("stop", SERVER, "stop it", "lifecycle:stop", _stop, asks=True, has_json=False),
    Verb("restart", SERVER, "stop it and start it again", "lifecycle:restart", _restart, asks=True, has_json=False),
    Verb("reload-config", SERVER, "apply what the config file says now", "admin:reload_config"),
    Verb("reload-keys", SERVER, "apply what the keys file says now", "admin:reload_keys"),
    Verb("keys", SERVER, "`rv keys new` makes a random key", "admin:keys", _keys),
    Verb("voice-pin", VOICE, "the models that voice sessions share", "admin:voice_pin"),
    Verb("sessions", VOICE, "voice sessions that are open", "admin:sessions"),
    Verb("session", VOICE, "one voice session", "admin:session", _session),
    Verb("session-kill", VOICE, "close a voice session", "admin:session_kill", _session, asks=True),
    Verb("version", OTHER, "versions of rv and of the server", "look:version"),
    Verb(
        "completion", OTHER, "script of completions for a shell", "completion:completion", _completion, has_json=False
    ),
    Verb("help", OTHER, "this, or what a verb takes", "main:show_help", _help, has_json=False),
)
BY_NAME: Final = {verb.name: verb for verb in VERBS}
TAKES_MODEL: Final = frozenset({"check", "load", "unload", "resize", "patch", "deregister", "preload", "chat"})
"""Verbs whose first argument is the id of a registered model."""
