"""Where a config file and a server are found: one rule for the server and for ``rv``, which has no time for more."""

import os
import sys
from pathlib import Path
from typing import Final

VARIABLE: Final = "RUSTEDVINO_CONFIG"
FILE_NAME: Final = "config.json"
_NAME: Final = "rustedvino"
_ANY_ADDRESS: Final = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104  # read, not bound


class ConfigNotFound(Exception):
    """There is no such config file: name another one."""


class NoConfig(ConfigNotFound):
    """No config file was named, and none is where one is looked for."""

    def __init__(self) -> None:
        here, own = unnamed_places()
        super().__init__(
            f"there is no config: {VARIABLE} is not set, and neither {here} nor {own} exists\n"
            "--config FILE names one; --demo serves the embedded demo model without any; --print-default-config "
            "prints one to start from"
        )


def find_config(given: str | os.PathLike[str] | None) -> Path | None:
    """The absolute path of the config file: ``given``, else $RUSTEDVINO_CONFIG, else the first of ``unnamed_places``
    that is there; None without any.

    Raises ConfigNotFound when one that was named does not exist.
    """
    for named, source in ((given, "--config"), (os.environ.get(VARIABLE) or None, VARIABLE)):
        if named is not None:
            path = Path(os.path.abspath(named))
            if not path.is_file():
                raise ConfigNotFound(f"{source}: there is no file {path}")
            return path
    return next((path for path in unnamed_places() if path.is_file()), None)


def unnamed_places() -> tuple[Path, Path]:
    """Where a config is looked for when none is named, in this order: the current folder, the user's own."""
    return Path(os.path.abspath(FILE_NAME)), config_folder() / FILE_NAME


def config_folder() -> Path:
    """The folder of the user's own config file."""
    if sys.platform == "win32":
        return folder_from_environment("APPDATA", "AppData/Roaming") / _NAME
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / _NAME
    return folder_from_environment("XDG_CONFIG_HOME", ".config") / _NAME


def folder_from_environment(variable: str, otherwise: str) -> Path:
    """The absolute folder that a variable names, else ``otherwise`` in the home folder."""
    value = os.environ.get(variable, "")
    # A relative value is to be ignored by the XDG specification.
    return Path(value) if os.path.isabs(value) else Path.home() / otherwise


def reachable_host(bind_addr: str) -> str:
    """The address at which a server that listens on ``bind_addr`` is reached from its own machine."""
    return _ANY_ADDRESS.get(bind_addr, bind_addr)
