"""Telling systemd how the service is: readiness, status, watchdog. Does nothing where no service manager listens.

Only the process that the manager started speaks to it (``NotifyAccess=main``): the server, or with ``--supervise`` the
supervisor. The variables are therefore removed from the environment that children inherit.
"""

import logging
import os
import socket
import sys
from collections.abc import Callable, MutableMapping
from typing import Final

import trio
from attrs import define, field

log = logging.getLogger(__name__)

_MICROSECS: Final = 1_000_000
_VARIABLES: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


@define(eq=False)
class Notifier:
    """Sends states to ``address`` (a path, or @name in the abstract namespace); without one every call does nothing.

    A message that cannot be sent is logged once and otherwise ignored: the service works without its manager.
    ``watchdog_secs``: how long the manager waits for a sign of life; None when it does not.
    """

    address: str | None = None
    watchdog_secs: float | None = None
    _complained: bool = field(default=False, init=False)

    def ready(self) -> None:
        """The service is up. Later calls change nothing."""
        self._send("READY=1")

    def stopping(self) -> None:
        """The service is ending."""
        self._send("STOPPING=1")

    def watchdog(self) -> None:
        """The service is alive. To be sent about every ``watchdog_secs`` / 2."""
        self._send("WATCHDOG=1")

    def status(self, text: str) -> None:
        """One line for ``systemctl status``."""
        self._send("STATUS=" + " ".join(text.split()))

    def _send(self, state: str) -> None:
        if sys.platform == "win32" or self.address is None:
            return
        target = "\0" + self.address[1:] if self.address.startswith("@") else self.address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.setblocking(False)  # a manager that does not read must not hold up the event loop
                sock.connect(target)
                sock.send(state.encode("utf-8", "replace"))
        except OSError as error:
            if not self._complained:
                self._complained = True
                log.warning("the service manager cannot be told %s: %s", state.partition("=")[0], error)


def take_notifier(environment: MutableMapping[str, str] = os.environ, *, pid: int | None = None) -> Notifier:
    """The notifier that the environment asks for; its variables are removed from it.

    A watchdog that is meant for another process than ``pid`` (ours) is left out, as is an address of a kind
    other than a socket's path or abstract name.
    """
    values = {name: environment.pop(name, "") for name in _VARIABLES}
    address: str | None = values["NOTIFY_SOCKET"]
    if address and address[0] not in "/@":
        log.warning("NOTIFY_SOCKET %r is neither a path nor an abstract name; the service manager is not told", address)
        address = None
    watchdog_secs = None
    for_us = not values["WATCHDOG_PID"] or values["WATCHDOG_PID"] == str(os.getpid() if pid is None else pid)
    if address and for_us and values["WATCHDOG_USEC"].isdecimal() and int(values["WATCHDOG_USEC"]) > 0:
        watchdog_secs = int(values["WATCHDOG_USEC"]) / _MICROSECS
    return Notifier(address or None, watchdog_secs)


async def keep_alive(notifier: Notifier, healthy: Callable[[], bool] = lambda: True) -> None:
    """Send signs of life as long as ``healthy`` says so; returns at once when nobody waits for them.

    Runs on the event loop on purpose: a loop that is held up sends none.
    """
    if notifier.watchdog_secs is None:
        return
    while True:
        if healthy():
            notifier.watchdog()
        await trio.sleep(notifier.watchdog_secs / 2)
