"""Servers that ``rv start`` started: one record, log and lock for each config."""

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from rustedvino.rv import processes
from rustedvino.rv.errors import RvError
from rustedvino.rv.files import make_private_folder, state_folder, write_private

DEMO: Final = "demo"
"""Stands for the config of a server that was started without one."""


class Record(NamedTuple):
    """A background server. ``pid`` is the process that was started: the supervisor, when there is one."""

    pid: int
    identity: str
    base_url: str
    config: str | None
    log: str
    arguments: tuple[str, ...]
    """What the server was started with, beyond its config."""
    drain_secs: float


def _place(config: Path | None, suffix: str) -> Path:
    name = DEMO
    if config is not None:
        import hashlib

        digest = hashlib.sha256(str(config.resolve()).encode("utf-8", "surrogateescape")).hexdigest()
        name = f"{config.stem[:40]}-{digest[:16]}"
    return state_folder() / "servers" / f"{name}{suffix}"


def log_path(config: Path | None) -> Path:
    """Where the background server of a config logs to."""
    return _place(config, ".log")


def read(config: Path | None) -> Record | None:
    """What was noted for a config, whether or not that server still runs."""
    path = _place(config, ".json")
    try:
        raw = json.loads(path.read_bytes())
        pid = int(raw["pid"])
        if pid < 1:  # to a signal that is a group of processes, or all of them
            return None
        return Record(
            pid=pid,
            identity=str(raw["identity"]),
            base_url=str(raw["base_url"]),
            config=raw["config"],
            log=str(raw["log"]),
            arguments=tuple(map(str, raw["arguments"])),
            drain_secs=float(raw["drain_secs"]),
        )
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RvError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, LookupError, TypeError):
        return None  # half a record of a machine that lost power says nothing


def is_running(record: Record) -> bool:
    """Whether the process that was noted is still there, and not another one with its number."""
    return processes.identity(record.pid) == record.identity


def find(config: Path | None) -> Record | None:
    """The background server of a config that runs now."""
    record = read(config)
    return record if record is not None and is_running(record) else None


def write(config: Path | None, record: Record) -> None:
    """Note a server. Raises OSError."""
    path = _place(config, ".json")
    make_private_folder(path.parent)
    write_private(path, json.dumps(record._asdict(), indent=2).encode())


def forget(config: Path | None) -> None:
    """Remove what was noted for a config."""
    _place(config, ".json").unlink(missing_ok=True)


@contextlib.contextmanager
def locked(config: Path | None) -> Iterator[None]:
    """Nobody else starts or stops the server of this config meanwhile. Raises RvError when somebody does."""
    path = _place(config, ".lock")
    try:
        make_private_folder(path.parent)
        number = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)  # not inherited: Python's own rule
    except OSError as error:
        raise RvError(f"{path} cannot be made: {error.strerror}") from error
    try:
        try:
            if sys.platform == "win32":
                import msvcrt

                msvcrt.locking(number, msvcrt.LK_NBLCK, 1)
            else:
                import fcntl

                fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise RvError("another rv is starting or stopping this server", code="busy") from error
        yield
    finally:
        os.close(number)
