"""What a verb's function is given."""

import argparse
from typing import TYPE_CHECKING

from rustedvino.rv.screen import Screen

if TYPE_CHECKING:
    from rustedvino.rv.client import Client
    from rustedvino.rv.target import Target


class Command:
    """One run of a verb. The server is looked for when it is asked for, not before."""

    def __init__(self, options: argparse.Namespace, screen: Screen) -> None:
        self.options = options
        self.screen = screen
        self._target: Target | None = None
        self._client: Client | None = None

    @property
    def target(self) -> "Target":
        """The server that is meant. Raises RvError."""
        if self._target is None:
            from rustedvino.rv.target import resolve

            self._target = resolve(self.options)
        return self._target

    @property
    def client(self) -> "Client":
        """A client of it. Raises RvError."""
        if self._client is None:
            self._client = self.target.client()
        return self._client
