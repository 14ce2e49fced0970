"""``rv logs``: the end of the server's log, and what comes after."""

import sys
import time
from collections import deque
from pathlib import Path
from typing import Any, Final

from rustedvino.rv import background
from rustedvino.rv.command import Command
from rustedvino.rv.errors import EXIT_OK, RvError, Unreachable
from rustedvino.rv.text import counted, safe

ROUTE: Final = "/v1/admin/logs/tail"
POLL_SECS: Final = 1.0
FOLLOW_LINES: Final = 5000


def logs(command: Command) -> int:
    """``rv logs``. When the server does not answer, the log file of ``rv start`` is read."""
    options = command.options
    if options.file:
        command.target.require_local("logs --file")
        return _from_file(command)
    try:
        page = command.client.get(ROUTE, {"lines": options.lines})
    except Unreachable as error:
        if command.target.named or not _log_file(command).is_file():
            raise
        command.screen.note((f"{error.message}: this is its log file", "yellow"))
        return _from_file(command)
    if options.json and not options.follow:
        command.screen.json(page)
        return EXIT_OK
    _print(command, page["lines"])
    if options.follow:
        _follow(command, page)
    return EXIT_OK


def _follow(command: Command, page: dict[str, Any]) -> None:
    last = int(page["last"])
    while True:
        time.sleep(POLL_SECS)
        page = command.client.get(ROUTE, {"lines": FOLLOW_LINES, "after": last})
        if int(page["last"]) < last:
            command.screen.note(("the server was started again", "yellow"))
            page = command.client.get(ROUTE, {"lines": FOLLOW_LINES})
        elif (missed := int(page["first"]) - last - 1) > 0:
            command.screen.note((f"{counted(missed, 'line')} came too fast to be shown", "yellow"))
        _print(command, page["lines"])
        last = int(page["last"])


def _print(command: Command, lines: list[str]) -> None:
    for line in lines:
        if command.options.json:
            command.screen.json(line)
        else:
            print(safe(line) if command.screen.is_terminal else line)
    sys.stdout.flush()


def _log_file(command: Command) -> Path:
    config = command.target.config
    record = background.read(None if config is None else config.path)
    return background.log_path(None if config is None else config.path) if record is None else Path(record.log)


def _from_file(command: Command) -> int:
    path = _log_file(command)
    try:
        with path.open(encoding="utf-8", errors="replace") as stream:
            tail = deque(stream, maxlen=command.options.lines)
            _print(command, [line.rstrip("\n") for line in tail])
            if command.options.follow:
                _follow_file(command, stream)
    except OSError as error:
        hint = "only servers that `rv start` started have one"
        raise RvError(f"there is no log file {path}: {error.strerror}", code="no_log_file", hint=hint) from error
    return EXIT_OK


def _follow_file(command: Command, stream: Any) -> None:
    rest = ""
    while True:
        text = rest + stream.read()
        *lines, rest = text.split("\n")
        _print(command, lines)
        time.sleep(POLL_SECS)
