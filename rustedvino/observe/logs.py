"""The server's log: one format for every line, the fields that find a request in it, no secrets, no prompts.

Times are UTC with milliseconds, in both formats: logs of several machines compare, and no hour comes twice.
"""

import json
import logging
import re
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, TextIO

from attrs import define, evolve, field, frozen

from rustedvino.config.types import LogFormat, LogLevel
from rustedvino.observe.redact import Redactor
from rustedvino.observe.ring import LogRing
from rustedvino.observe.writer import FLUSH_BOUND_SECS, LineWriter

MAX_RECORD_CHARS: Final = 32 * 1024
ACCESS_EXTRA: Final = "access"
"""The attribute of a record that holds further fields: a mapping of names to numbers and texts."""

MAX_CLIENT_TEXT_CHARS: Final = 256
_MAX_SECRET_CHARS: Final = 512
"""No key is longer (see config.keys)."""

_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


class ClientText(str):
    """A client's own text as an argument or a field of a record. It is masked as a whole, and then cut to
    MAX_CLIENT_TEXT_CHARS: cut before, it could show half of a key."""

    __slots__ = ()


@frozen(kw_only=True)
class LogFields:
    """What the lines of a task belong to."""

    request_id: str | None = None
    model: str | None = None
    worker: str | None = None


_NAMES: Final = ("request_id", "model", "worker")
_NO_FIELDS: Final = LogFields()
_FIELDS: Final[ContextVar[LogFields]] = ContextVar("rustedvino_log_fields", default=_NO_FIELDS)


@contextmanager
def log_fields(**fields: str | None) -> Iterator[None]:
    """Put ``request_id``, ``model`` or ``worker`` on every line of this task, and of tasks started inside."""
    token = _FIELDS.set(evolve(_FIELDS.get(), **fields))
    try:
        yield
    finally:
        _FIELDS.reset(token)


def bind_log_fields(**fields: str | None) -> None:
    """Like ``log_fields``, until the task ends: for what is learned on the way, such as the model of a request."""
    _FIELDS.set(evolve(_FIELDS.get(), **fields))


class LineFormatter(logging.Formatter):
    """What both formats have in common. ``show_prompts`` lets exception messages through while a request is served:
    they may quote what the client sent. Without it such a line has the exception's type and its place in the code."""

    def __init__(self, redact: Redactor, show_prompts: bool) -> None:
        super().__init__()
        self.redact = redact
        self.show_prompts = show_prompts

    def _time(self, record: logging.LogRecord) -> str:
        return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"

    def _message(self, record: logging.LogRecord) -> str:
        if isinstance(record.args, tuple) and any(type(value) is ClientText for value in record.args):
            return self._clean(str(record.msg) % tuple(map(self._shown, record.args)))
        return self._clean(record.getMessage())

    def _shown(self, value: object) -> object:
        return self.redact(value)[:MAX_CLIENT_TEXT_CHARS] if type(value) is ClientText else value

    def _clean(self, text: str) -> str:
        # Masked before it is cut: half a key is a secret too. Far beyond the cut nothing is looked at, and what masking
        # has drawn near from there may be half a key.
        far = len(text) > 2 * MAX_RECORD_CHARS
        text = self.redact(text[: 2 * MAX_RECORD_CHARS])
        if far:
            text = text[:-_MAX_SECRET_CHARS]
        return text if not far and len(text) <= MAX_RECORD_CHARS else f"{text[:MAX_RECORD_CHARS]}… (cut)"

    def _values(self, record: logging.LogRecord) -> dict[str, str]:
        fields = _FIELDS.get()
        found = {name: getattr(record, name, None) or getattr(fields, name) for name in _NAMES}
        return {name: self._clean(str(value)) for name, value in found.items() if value is not None}

    def _extra(self, record: logging.LogRecord) -> Mapping[str, object]:
        extra: Mapping[str, object] = getattr(record, ACCESS_EXTRA, {})
        shown = ((name, self._shown(value)) for name, value in extra.items())
        return {name: self._clean(value) if isinstance(value, str) else value for name, value in shown}

    def _exception(self, record: logging.LogRecord, *, in_request: bool) -> str | None:
        error = record.exc_info[1] if record.exc_info else None
        if error is None:
            return None
        if self.show_prompts or not in_request:
            return self._clean("".join(traceback.format_exception(error)).rstrip())
        return self._clean("\n".join(_places(error, set())))


class TextFormatter(LineFormatter):
    """Lines for people: time, level, logger, message, fields. Further lines of a record are indented, and control
    characters are shown as escapes, so that no text of a client can look like a line of ours."""

    def format(self, record: logging.LogRecord) -> str:
        values = self._values(record)
        text = self._message(record)
        exception = self._exception(record, in_request="request_id" in values)
        if values:
            text += " [" + " ".join(f"{name}={value}" for name, value in values.items()) + "]"
        if exception is not None:
            text += "\n" + exception
        text = _CONTROL.sub(_escape, text).replace("\n", "\n    ")
        return f"{self._time(record)} {record.levelname:<7} {record.name}: {text}"


class JsonFormatter(LineFormatter):
    """One JSON object a line, in ASCII: ``time``, ``level``, ``logger``, ``message``, the fields, ``exception``."""

    def format(self, record: logging.LogRecord) -> str:
        values = self._values(record)
        line: dict[str, object] = {
            "time": self._time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self._message(record),
            **values,
            **self._extra(record),
        }
        exception = self._exception(record, in_request="request_id" in values)
        if exception is not None:
            line["exception"] = exception
        return json.dumps(line)


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape", "surrogatepass").decode()


def _places(error: BaseException, seen: set[int]) -> Iterator[str]:
    """Types and code places of an exception and of what led to it, without any message."""
    seen.add(id(error))
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if before is not None and id(before) not in seen:
        yield from _places(before, seen)
        yield "which led to:"
    for entry in traceback.format_tb(error.__traceback__):
        yield from entry.rstrip().splitlines()
    yield f"{type(error).__module__}.{type(error).__qualname__} (its message is left out: it may quote the request)"
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            if id(inner) not in seen:
                yield "in the group:"
                yield from _places(inner, seen)


class LineHandler(logging.Handler):
    """Formats each record once, for the ring and for the stream."""

    def __init__(self, formatter: LineFormatter, ring: LogRing, writer: LineWriter) -> None:
        super().__init__()
        self.setFormatter(formatter)
        self.ring = ring
        self.writer = writer

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record)
        except Exception as error:  # a wrong call of the log must not end what called it
            line = f"a log record of {record.pathname}:{record.lineno} could not be made: {type(error).__name__}"
        self.ring.append(line)
        self.writer.write(line)

    def flush(self) -> None:
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()
        super().close()


@define(eq=False)
class Logs:
    """The log as configured. ``redact.hide(keys)`` masks the server's own keys wherever they would stand."""

    ring: LogRing
    redact: Redactor
    _handler: LineHandler
    _before: list[logging.Handler] = field(factory=list)
    _level_before: int = logging.WARNING

    def flush(self, bound_secs: float = FLUSH_BOUND_SECS) -> bool:
        """Wait until what was logged is written; False when the bound came first."""
        return self._handler.writer.flush(bound_secs)

    def close(self) -> None:
        """Write the rest and give logging back as it was. For tests and embedders; a server just ends."""
        root = logging.getLogger()
        root.removeHandler(self._handler)
        for handler in self._before:
            root.addHandler(handler)
        root.setLevel(self._level_before)
        logging.captureWarnings(False)
        self._handler.close()


def configure(
    level: LogLevel,
    log_format: LogFormat,
    *,
    stream: TextIO | None = None,
    ring: LogRing | None = None,
    show_prompts: bool = False,
) -> Logs:
    """Send all logging of this process, warnings included, to ``stream`` (standard error) and to ``ring``.

    Replaces whatever handlers the root logger has. Everything queued is written when the interpreter ends.
    """
    redact = Redactor()
    kind = JsonFormatter if log_format == "json" else TextFormatter
    ring = LogRing() if ring is None else ring
    handler = LineHandler(kind(redact, show_prompts), ring, LineWriter(sys.stderr if stream is None else stream))
    root = logging.getLogger()
    before = list(root.handlers)
    logs = Logs(ring, redact, handler, before, root.level)
    for old in before:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    logging.captureWarnings(True)
    return logs
