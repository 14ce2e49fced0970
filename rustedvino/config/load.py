"""Reading a config file into settings, with every problem reported at once."""

import ipaddress
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from attrs import asdict

from rustedvino.config.kinds import plain_text_fault
from rustedvino.config.model_table import MODEL_ENTRY
from rustedvino.config.problems import (
    ConfigError,
    ConfigProblem,
    JsonObject,
    Literal,
    Reading,
    show,
    suggestion,
)
from rustedvino.config.table import SERVER
from rustedvino.config.types import LoadedConfig, ModelSettings, ServerSettings, keys_file_name

CONFIG_MAX_BYTES: Final = 16 * 2**20
COMMENT_PREFIXES: Final = ("_", "//")
"""Keys that begin so are comments. In ``models`` only ``//`` does: an id may begin with ``_``."""
MAX_DEPTH: Final = 50
DEMO_MODEL_ID: Final = "rv-demo"
PACKAGED_MODELS_DIR: Final = Path(__file__).parent.parent / "models"


def load_config(path: str | os.PathLike[str]) -> LoadedConfig:
    """Read and check a config file (JSON, UTF-8, with or without a byte order mark).

    Raises `ConfigError` with all problems when it cannot be read or any of its settings is wrong.
    """
    return parse_config(path)[0]


def parse_config(path: str | os.PathLike[str], content: bytes | None = None) -> tuple[LoadedConfig, bytes]:
    """As `load_config`, with the bytes that were read; ``content`` stands for those of the file."""
    absolute = Path(os.path.abspath(path))  # links are kept: relative paths start beside the name that was given
    try:
        content = _read(absolute) if content is None else content
        raw = parse_json_object(content)
        keys_path = absolute.with_name(keys_file_name(absolute))
        settings = read_settings(raw, absolute.parent, keys_path=keys_path)
    except ConfigError as error:
        raise ConfigError(error.problems, str(absolute)) from None
    return LoadedConfig(settings=settings, path=absolute, folder=absolute.parent, raw=raw), content


def demo_config(models_dir: Path = PACKAGED_MODELS_DIR) -> LoadedConfig:
    """Settings that serve the embedded demo model on the CPU; no file is read."""
    raw: dict[str, object] = {
        "models_dir": str(models_dir.absolute()),
        "device": "CPU",
        "total_vram_gb": 0,
        "models": {DEMO_MODEL_ID: {"kind": "text_gen"}},
    }
    settings = read_settings(raw, models_dir.absolute())
    return LoadedConfig(settings=settings, path=None, folder=models_dir.absolute(), raw=raw)


def read_settings(raw: Mapping[str, object], folder: Path, *, keys_path: Path | None = None) -> ServerSettings:
    """Check the content of a config. Raises `ConfigError` with all problems.

    Relative paths start at ``folder``; ``keys_path`` is where keys are without ``keys_file``.
    """
    raw = without_comments(raw)
    reading = Reading(folder, _keys_name(keys_path), _models_dir(raw, folder))
    values = SERVER.read_values(raw, "", reading)
    _check_preload(raw, values, reading)
    _check_kv_pressure(raw, values, reading)
    _check_bind(raw, values, keys_path, reading)
    if reading.problems:
        raise ConfigError(reading.problems)
    return ServerSettings(**values)  # type: ignore[arg-type]  # each value was read by the row of its field


def read_model_settings(
    raw: object, where: str, *, folder: Path, models_dir: Path, keys_path: Path | None = None
) -> ModelSettings:
    """Check one entry of ``models``; problems are placed under ``where``. Raises `ConfigError`."""
    reading = Reading(folder, _keys_name(keys_path), models_dir)
    raw = without_comments(raw) if isinstance(raw, dict) else raw
    settings = MODEL_ENTRY.read(raw, where, reading)
    if not isinstance(settings, ModelSettings):
        raise ConfigError(reading.problems)
    return settings


def without_comments(raw: Mapping[str, object], *, free_names: bool = False) -> JsonObject:
    """The content of a config, or of a part of it, without its comments.

    ``free_names`` is for the content of ``models``, whose keys are ids. A comment's key must be written only once,
    as any other: saving the file could not keep both.
    """
    prefixes = COMMENT_PREFIXES[1:] if free_names else COMMENT_PREFIXES
    plain = JsonObject(
        (name, without_comments(value, free_names=name == "models" and not free_names))
        if isinstance(value, dict)
        else (name, value)
        for name, value in _with_repetitions(raw)
    )
    for name in list(plain):
        if name.startswith(prefixes):
            del plain[name]
    return plain


def _with_repetitions(raw: Mapping[str, object]) -> list[tuple[str, object]]:
    """The members of an object, those that were written more than once twice."""
    repeated = raw.repeated if isinstance(raw, JsonObject) else ()
    return [*raw.items(), *((name, raw[name]) for name in repeated)]


def dump_settings(settings: ServerSettings | ModelSettings) -> dict[str, object]:
    """The settings as JSON values under the names of the file; reading them again gives the same settings."""
    return asdict(settings, value_serializer=_json_value)


def check_bind(settings: ServerSettings, *, has_keys: bool) -> ConfigProblem | None:
    """The problem of listening beyond loopback without keys, unless that was allowed expressly."""
    if has_keys or settings.allow_insecure_public_bind or is_loopback(settings.bind_addr):
        return None
    return ConfigProblem("bind_addr", _public_bind_message(settings.bind_addr))


def is_loopback(bind_addr: str) -> bool:
    """Whether only this machine can reach an address; a host name other than localhost never counts."""
    try:
        return ipaddress.ip_address(bind_addr).is_loopback
    except ValueError:
        return bind_addr.casefold() == "localhost"


def parse_json_object(content: bytes) -> JsonObject:
    """Decode a JSON object; repeated keys and unusable numbers are kept to be reported at their place."""
    try:
        value = json.loads(
            content.decode("utf-8-sig"),
            object_pairs_hook=JsonObject,
            parse_constant=Literal,
            parse_int=_parse_int,
        )
    except UnicodeDecodeError as error:
        raise _file_error(f"is not UTF-8: {error.reason} at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise _file_error(f"is not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except RecursionError:
        raise _file_error("is not usable: its values are nested too deeply") from None
    if not isinstance(value, JsonObject):
        raise _file_error(f"must hold one JSON object, got {show(value)}")
    _check_depth(value)
    return value


def _check_depth(value: JsonObject) -> None:
    """Keep what is read shallow enough to be walked, and written, by recursion."""
    level: list[object] = [value]
    for _ in range(MAX_DEPTH):
        level = [
            item
            for container in level
            for item in (container.values() if isinstance(container, dict) else container)  # type: ignore[attr-defined]
            if isinstance(item, dict | list)
        ]
        if not level:
            return
    raise _file_error("is not usable: its values are nested too deeply")


def _parse_int(digits: str) -> int | Literal:
    try:
        return int(digits)
    except ValueError:  # more digits than the interpreter converts
        return Literal(digits)


def _read(path: Path) -> bytes:
    try:
        if not path.is_file():  # a pipe or a device would block
            raise _file_error("is a folder" if path.is_dir() else "is not an existing file")
        with path.open("rb") as stream:
            content = stream.read(CONFIG_MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise _file_error(f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(content) > CONFIG_MAX_BYTES:
        raise _file_error(f"is larger than {CONFIG_MAX_BYTES} bytes")
    return content


def _file_error(message: str) -> ConfigError:
    return ConfigError([ConfigProblem("", f"the file {message}")])


def _keys_name(keys_path: Path | None) -> str:
    return "config.keys.json" if keys_path is None else keys_path.name


def _models_dir(raw: Mapping[str, object], folder: Path) -> Path | None:
    value = raw.get("models_dir")
    return folder / value if isinstance(value, str) and plain_text_fault(value) is None else None


def _check_preload(raw: Mapping[str, object], values: Mapping[str, object], reading: Reading) -> None:
    models = raw.get("models", {})
    preload = values.get("preload")
    if not isinstance(models, dict) or not isinstance(preload, tuple):
        return  # reported already
    for index, model_id in enumerate(preload):
        if model_id not in models:
            reading.problem(
                f"preload[{index}]", f"{show(model_id)} is not listed in models{suggestion(model_id, models)}"
            )


def _check_kv_pressure(raw: Mapping[str, object], values: Mapping[str, object], reading: Reading) -> None:
    if values.get("kv_pressure_monitor_enabled") is not True:
        return
    for name in ("kv_pressure_threshold_pct", "kv_pressure_sustained_secs"):
        if raw.get(name) is None:
            reading.problem(name, "must be given when kv_pressure_monitor_enabled is true")


def _check_bind(
    raw: Mapping[str, object], values: Mapping[str, object], keys_path: Path | None, reading: Reading
) -> None:
    bind_addr = values.get("bind_addr")
    if not isinstance(bind_addr, str) or is_loopback(bind_addr):
        return
    # a value that is there but wrong has been reported: what it would have allowed is not known
    if raw.get("keys_file") is not None or raw.get("allow_insecure_public_bind", False) is not False:
        return
    if keys_path is None or not os.path.isfile(keys_path):
        reading.problem("bind_addr", _public_bind_message(bind_addr))


def _public_bind_message(bind_addr: str) -> str:
    return (
        f"{show(bind_addr)} is reachable from outside this machine and there is no keys file: "
        "add one, use 127.0.0.1, or set allow_insecure_public_bind to true"
    )


def _json_value(_instance: object, _attribute: object, value: object) -> object:
    if isinstance(value, tuple):
        return list(value)
    return str(value) if isinstance(value, Path) else value
