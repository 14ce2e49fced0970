"""Saving changes of the config: one file, read anew before each change, replaced as a whole or not at all."""

import contextlib
import json
import os
import re
import stat
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import trio
from attrs import define, field

from rustedvino.config.load import load_config, parse_config
from rustedvino.config.problems import ConfigError, Literal
from rustedvino.config.types import LoadedConfig

BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"
DEFAULT_INDENT: Final = "  "
_INDENT: Final = re.compile(rb"\{[ \t]*\r?\n([ \t]+)\"")

Edit = Callable[[dict[str, object]], None]
"""Changes the content of a config in place, leaving alone what is not its own. Runs in a thread."""


class ConfigNotWritable(Exception):
    """A change cannot be saved; the file is as it was. ``path`` is None when there is no file at all."""

    def __init__(self, path: Path | None, reason: str) -> None:
        super().__init__(f"nothing can be saved: {reason}" if path is None else f"{path} cannot be saved: {reason}")
        self.path = path
        self.reason = reason


class EntryExists(Exception):
    """The file has an entry that a change was to add."""


@define(eq=False)
class ConfigStore:
    """The file behind the settings. Changes by several tasks are made one after the other.

    The settings in effect are not held here: what the file says and what the server does are compared by others.
    """

    config: LoadedConfig
    """As it was read at start, or saved or read again last."""
    _lock: trio.Lock = field(factory=trio.Lock, init=False)

    @property
    def path(self) -> Path | None:
        """The file; None when the server runs on built-in settings."""
        return self.config.path

    async def read(self) -> LoadedConfig:
        """What the file says now. Raises ConfigError, and ConfigNotWritable when there is no file."""
        path = self._path()
        async with self._lock:
            self.config = await trio.to_thread.run_sync(load_config, path)
            return self.config

    async def change(self, edit: Edit) -> LoadedConfig:
        """Apply ``edit`` to what the file says now and save the result, which is returned.

        Raises ConfigNotWritable, and ConfigError when the file's content, before or after, is not valid; the file is
        then unchanged. A change that changes nothing is not written. Cancellation comes before the file is touched
        or not at all: a caller that acts right after the return leaves nothing half done.
        """
        path = self._path()
        async with self._lock:
            self.config = await trio.to_thread.run_sync(_change, path, edit)
            return self.config

    def _path(self) -> Path:
        if self.path is None:
            raise ConfigNotWritable(None, "the server was started without a config file")
        return self.path


def _change(path: Path, edit: Edit) -> LoadedConfig:
    before, content = parse_config(path)
    raw = _copy(before.raw)
    edit(raw)
    if raw == before.raw and list(raw) == list(before.raw):
        return before
    try:
        new = render(raw, like=content)
    except ValueError as error:
        raise ConfigNotWritable(path, str(error)) from error
    config, _ = parse_config(path, new)
    replace_file(path, new)
    return config


def render(raw: Mapping[str, object], *, like: bytes) -> bytes:
    """``raw`` as JSON in the manner of ``like``: indentation, line ends, byte order mark, end of file.

    Raises ValueError for a number that JSON cannot hold.
    """
    found = _INDENT.search(like)
    indent = DEFAULT_INDENT if found is None else found[1].decode()
    try:
        text = json.dumps(raw, indent=indent, ensure_ascii=False, allow_nan=False, default=_refuse)
        data = text.encode()
    except UnicodeEncodeError:  # a lone surrogate, which only an escape can write
        data = json.dumps(raw, indent=indent, allow_nan=False, default=_refuse).encode()
    if like.endswith(b"\n") or found is None:
        data += b"\n"
    if b"\r\n" in like:
        data = data.replace(b"\n", b"\r\n")
    return BYTE_ORDER_MARK + data if like.startswith(BYTE_ORDER_MARK) else data


def _refuse(value: object) -> object:
    assert isinstance(value, Literal)  # only a comment can still have one: a setting's was a problem
    raise ValueError(f"a comment holds {value.text[:40]}, which JSON cannot write")


def _copy(value: dict[str, object]) -> dict[str, object]:
    return {name: _copy(item) if isinstance(item, dict) else item for name, item in value.items()}


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file's content at once: at any moment, also after a crash, the old or the new one is there, whole.

    A symbolic link stays one; mode and, where allowed, owner stay. A file without any write permission is refused
    even to those who could replace it. Raises ConfigNotWritable.
    """
    try:
        target = path.resolve(strict=True)
        before = target.stat()
        if not before.st_mode & 0o222 or not os.access(target, os.W_OK):
            raise ConfigNotWritable(path, "it is read-only")
        temporary = _write_beside(target, content, before)
        try:
            os.replace(temporary, target)
        except BaseException:
            with contextlib.suppress(OSError):  # the first error is the one to tell
                temporary.unlink()
            raise
    except OSError as error:
        raise ConfigNotWritable(path, error.strerror or str(error)) from error
    # From here on the change has been made: what fails below only leaves it less sure to survive a power cut.
    with contextlib.suppress(OSError):
        _sync_folder(target.parent)


def _write_beside(target: Path, content: bytes, before: os.stat_result) -> Path:
    """A complete, synced file in the folder of ``target``, ready to take its place."""
    number, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
    try:
        with os.fdopen(number, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        if sys.platform != "win32":
            with contextlib.suppress(PermissionError):  # only root gives files away
                os.chown(name, before.st_uid, before.st_gid)
        os.chmod(name, stat.S_IMODE(before.st_mode))  # after chown, which may clear bits
    except BaseException:
        os.unlink(name)
        raise
    return Path(name)


def _sync_folder(folder: Path) -> None:
    """Make the rename durable; there is no such call on Windows."""
    if sys.platform == "win32":
        return
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


# What changes consist of.


def set_model(model_id: str, changes: Mapping[str, object], otherwise: Mapping[str, object]) -> Edit:
    """Change fields of a model's entry; None takes a field out. ``otherwise`` is the entry to change when the file
    has none."""
    return partial(_set_model, model_id, changes, otherwise)


def _set_model(
    model_id: str, changes: Mapping[str, object], otherwise: Mapping[str, object], raw: dict[str, object]
) -> None:
    models = raw.setdefault("models", {})
    assert isinstance(models, dict)
    entry = models.setdefault(model_id, dict(otherwise))
    for name, value in changes.items():
        if value is None:
            entry.pop(name, None)
        else:
            entry[name] = value


def add_model(model_id: str, entry: Mapping[str, object]) -> Edit:
    """Add an entry. The change raises EntryExists when the file has one for that id, whatever is in it."""
    return partial(_add_model, model_id, entry)


def _add_model(model_id: str, entry: Mapping[str, object], raw: dict[str, object]) -> None:
    models = raw.setdefault("models", {})
    assert isinstance(models, dict)
    if model_id in models:
        raise EntryExists(f"the config file has an entry for {model_id!r} already; apply it by reloading the config")
    models[model_id] = dict(entry)


def remove_model(model_id: str) -> Edit:
    """Take a model's entry out, and the id out of ``preload``, where it would be an error."""
    return partial(_remove_model, model_id)


def _remove_model(model_id: str, raw: dict[str, object]) -> None:
    models, preload = raw.get("models"), raw.get("preload")
    if isinstance(models, dict):
        models.pop(model_id, None)
    if isinstance(preload, list) and model_id in preload:
        raw["preload"] = [other for other in preload if other != model_id]


def set_preload(model_ids: list[str]) -> Edit:
    """Replace the list of models to load at start."""
    return partial(_set_preload, model_ids)


def _set_preload(model_ids: list[str], raw: dict[str, object]) -> None:
    raw["preload"] = model_ids


__all__ = [
    "ConfigError",
    "ConfigNotWritable",
    "ConfigStore",
    "Edit",
    "EntryExists",
    "add_model",
    "remove_model",
    "render",
    "replace_file",
    "set_model",
    "set_preload",
]
