"""Where a user's files are on each system, and writing files that only that user may read."""

import os
import sys
from pathlib import Path
from typing import Final

NAME: Final = "rustedvino"


def config_folder() -> Path:
    """The folder of the user's own ``config.json``."""
    if sys.platform == "win32":
        return _from_environment("APPDATA", "AppData/Roaming") / NAME
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / NAME
    return _from_environment("XDG_CONFIG_HOME", ".config") / NAME


def state_folder() -> Path:
    """The folder of what rv remembers: background servers, their logs, the chat's history.

    Not the session's runtime folder: a server outlives the login that started it, and cron has no session.
    """
    if sys.platform == "win32":
        return _from_environment("LOCALAPPDATA", "AppData/Local") / NAME
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / NAME / "state"
    return _from_environment("XDG_STATE_HOME", ".local/state") / NAME


def _from_environment(variable: str, otherwise: str) -> Path:
    value = os.environ.get(variable, "")
    # A relative value is to be ignored by the XDG specification.
    return Path(value) if os.path.isabs(value) else Path.home() / otherwise


def make_private_folder(folder: Path) -> None:
    """Make a folder, and those above it, that only the user may look into. Raises OSError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def write_private(path: Path, content: bytes) -> None:
    """Replace a file at once by one that only the user may read (mode 0600). A link stays one. Raises OSError."""
    import tempfile

    target = path.resolve()
    number, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)  # mode 0600
    try:
        with os.fdopen(number, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(name, target)
    except BaseException:
        os.unlink(name)
        raise
