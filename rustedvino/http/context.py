"""What every route needs: the hub, the settings, and facts about this server."""

import socket
import time
from pathlib import Path
from typing import Final

import trio
from attrs import define, field
from quart import current_app

from rustedvino.config.keys import KeyRing
from rustedvino.config.types import ServerSettings
from rustedvino.http.cors import OriginPolicy
from rustedvino.hub.admin import Admin
from rustedvino.hub.hub import Hub
from rustedvino.observe.ring import LogRing

SERVER_NAME: Final = "rustedvino"
API_VERSION: Final = "1"
CONTEXT_KEY: Final = "rustedvino"


@define(eq=False)
class ServerContext:
    """One running server."""

    settings: ServerSettings
    hub: Hub
    git_hash: str
    admin: Admin | None = None
    log_ring: LogRing = field(factory=LogRing)
    keys: KeyRing = field(factory=KeyRing)
    keys_reloading: trio.Lock = field(factory=trio.Lock)
    origins: OriginPolicy = field(init=False)
    host_name: str = field(factory=socket.gethostname)
    started_at: float = field(factory=time.time)
    started_clock: float = field(factory=trio.current_time)

    @origins.default
    def _origins_default(self) -> OriginPolicy:
        return OriginPolicy.of(self.settings.cors_allowed_origins)


def context() -> ServerContext:
    """The context of the application that handles the current request."""
    value = current_app.extensions[CONTEXT_KEY]
    assert isinstance(value, ServerContext)
    return value


def git_hash() -> str:
    """The commit this code was checked out at; ``unknown`` for an installed package."""
    git = Path(__file__).resolve().parents[2] / ".git"
    try:
        head = (git / "HEAD").read_text().strip()
        if head.startswith("ref: "):
            name = head.removeprefix("ref: ")
            if (git / name).is_file():
                return (git / name).read_text().strip()[:12]
            for line in (git / "packed-refs").read_text().splitlines():
                if line.endswith(f" {name}"):
                    return line[:12]
            return "unknown"
        return head[:12]
    except OSError:
        return "unknown"
