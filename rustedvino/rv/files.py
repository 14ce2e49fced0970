"""Where a user's files are on each system, and writing files that only that user may read."""

import os
import sys
from pathlib import Path
from typing import Final

from rustedvino.places import folder_from_environment

NAME: Final = "rustedvino"


def state_folder() -> Path:
    """The folder of what rv remembers: background servers, their logs, the chat's history.

    Not the session's runtime folder: a server outlives the login that started it, and cron has no session.
    """
    if sys.platform == "win32":
        return folder_from_environment("LOCALAPPDATA", "AppData/Local") / NAME
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / NAME / "state"
    return folder_from_environment("XDG_STATE_HOME", ".local/state") / NAME


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
