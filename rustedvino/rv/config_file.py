"""What rv needs to know of a config file. The server checks the rest, and says what is wrong with it."""

import json
from pathlib import Path
from typing import Any, Final, NamedTuple

from rustedvino import places
from rustedvino.rv.errors import RvError, UsageError

DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 11437
DEFAULT_DRAIN_SECS: Final = 30.0
MAX_BYTES: Final = 16 * 2**20


class ConfigFile(NamedTuple):
    """A config file's part in finding its server, its keys and its models. All paths are absolute."""

    path: Path
    bind_addr: str
    port: int
    models_dir: Path | None
    keys_path: Path
    shutdown_drain_secs: float
    model_ids: tuple[str, ...]


def find_config(given: str | None) -> Path | None:
    """As `places.find_config`. Raises UsageError when a config that was named does not exist."""
    try:
        return places.find_config(given)
    except places.ConfigNotFound as error:
        raise UsageError(str(error), code="config_not_found") from error


def read_config(path: Path) -> ConfigFile:
    """Read the file. Raises RvError when it cannot be used."""
    raw = _read(path)
    models = raw.get("models")
    models_dir = _value(path, raw, "models_dir", str, None)
    keys_file = _value(path, raw, "keys_file", str, None)
    port = _value(path, raw, "port", int, DEFAULT_PORT)
    if not 0 <= port <= 65535:
        raise _bad(path, f"port {port} is not between 0 and 65535")
    return ConfigFile(
        path=path,
        bind_addr=_value(path, raw, "bind_addr", str, DEFAULT_HOST),
        port=port,
        models_dir=None if models_dir is None else path.parent / models_dir,
        keys_path=path.with_name(f"{path.stem}.keys.json") if keys_file is None else path.parent / keys_file,
        shutdown_drain_secs=float(_value(path, raw, "shutdown_drain_secs", (int, float), DEFAULT_DRAIN_SECS)),
        model_ids=tuple(models) if isinstance(models, dict) else (),
    )


def _value(path: Path, raw: dict[str, Any], name: str, kind: Any, default: Any) -> Any:
    value = raw.get(name)
    if value is None:
        return default
    if not isinstance(value, kind) or isinstance(value, bool):
        raise _bad(path, f"{name} is {json.dumps(value)[:60]}")
    return value


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as stream:
            value = json.loads(stream.read(MAX_BYTES).decode("utf-8-sig"))
    except OSError as error:
        raise RvError(f"{path} cannot be read: {error.strerror}", code="config_invalid") from error
    except (ValueError, RecursionError) as error:
        raise _bad(path, f"it is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise _bad(path, "it does not hold a JSON object")
    return value


def _bad(path: Path, reason: str) -> RvError:
    hint = f"`rustedvino --config {path} --check-config` reports every problem"
    return RvError(f"{path} cannot be used: {reason}", code="config_invalid", hint=hint)
