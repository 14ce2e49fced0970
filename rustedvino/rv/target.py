"""Which server a command is about, and with which key it talks to it."""

import argparse
import os
from pathlib import Path
from typing import Final, NamedTuple

from rustedvino.places import reachable_host
from rustedvino.rv import background
from rustedvino.rv.client import Client, Key
from rustedvino.rv.config_file import DEFAULT_HOST, DEFAULT_PORT, ConfigFile, find_config, read_config
from rustedvino.rv.errors import Unreachable, UsageError
from rustedvino.rv.keys_file import admin_key

HOST_VARIABLE: Final = "RUSTEDVINO_HOST"
KEY_VARIABLE: Final = "RUSTEDVINO_KEY"


class Target(NamedTuple):
    """A server. ``config`` and ``record`` are None for one that was named by its address."""

    base_url: str
    named: bool
    key: Key | None
    config: ConfigFile | None
    record: background.Record | None

    def client(self) -> Client:
        """A client of it."""
        keys_path = None if self.config is None else str(self.config.keys_path)
        return Client(self.base_url, self.key, keys_expected=keys_path, when_down=self._when_down)

    def _when_down(self) -> Unreachable | None:
        if self.named:
            return None
        if self.record is not None:
            return Unreachable(
                f"the server is starting: process {self.record.pid} does not listen at {self.base_url} yet",
                code="starting",
                hint=f"its log is {self.record.log}",
            )
        return Unreachable(f"no server answers at {self.base_url}", hint="`rv start` starts one")

    def require_local(self, verb: str) -> None:
        """Raise UsageError for a server that was named by its address."""
        if self.named:
            raise UsageError(
                f"rv {verb} works on files of the machine that the server runs on: use it there, without a host",
                code="local_only",
                hint=f"a host was given by --host or {HOST_VARIABLE}",
            )

    def require_config(self, verb: str) -> ConfigFile:
        """The config of a local server. Raises UsageError without one."""
        self.require_local(verb)
        if self.config is None:
            raise UsageError(
                f"rv {verb} needs a config: there is none here and none of yours",
                code="config_not_found",
                hint="--config FILE or RUSTEDVINO_CONFIG names one; `rustedvino --print-default-config` prints one",
            )
        return self.config


def resolve(options: argparse.Namespace) -> Target:
    """Find out what a command is about. Raises RvError."""
    host = options.host or os.environ.get(HOST_VARIABLE) or None
    key = _given_key(options)
    if host is not None:
        # The keys of the server here are nobody else's business: they are not looked for.
        return Target(address(host), named=True, key=key, config=None, record=None)
    path = find_config(options.config)
    config = None if path is None else read_config(path)
    record = background.find(path)
    if key is None and config is not None:
        value = admin_key(config.keys_path)
        key = None if value is None else Key(value, str(config.keys_path))
    if record is not None:
        base_url = record.base_url
    elif config is not None:
        base_url = local_url(config.bind_addr, config.port or DEFAULT_PORT)
    else:
        base_url = local_url(DEFAULT_HOST, DEFAULT_PORT)
    return Target(base_url, named=False, key=key, config=config, record=record)


def _given_key(options: argparse.Namespace) -> Key | None:
    for value, source in ((options.key, "--key"), (os.environ.get(KEY_VARIABLE) or None, KEY_VARIABLE)):
        if value is None:
            continue
        if not value.isascii() or not value.isprintable() or not value:
            raise UsageError(f"the key from {source} is not a printable ASCII text")
        return Key(value, source)
    return None


def address(host: str) -> str:
    """The URL of HOST, HOST:PORT, [IPV6]:PORT or a URL. Without a port it is that of the server's default."""
    if "://" in host:
        return host
    if host.count(":") > 1 and not host.startswith("["):
        host = f"[{host}]"
    has_port = host.rpartition("]")[2].count(":") == 1
    return f"http://{host}" if has_port else f"http://{host}:{DEFAULT_PORT}"


def local_url(bind_addr: str, port: int) -> str:
    """Where a server that listens so is reached from this machine."""
    host = reachable_host(bind_addr)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def config_path(target: Target) -> Path | None:
    """The path of the target's config."""
    return None if target.config is None else target.config.path
