"""One line of the log for each request, written when its answer has ended."""

import logging
import time
from collections.abc import Callable
from typing import Final

from attrs import define, field

from rustedvino.observe.logs import ACCESS_EXTRA, ClientText

log = logging.getLogger("rustedvino.access")

QUIET_PATHS: Final = frozenset(
    {"/health", "/readyz", "/metrics", "/v1/admin/models", "/v1/admin/logs/tail", "/v1/admin/health/watchdog"}
)
"""Asked every few seconds by machines: logged for debugging only, as long as the answer is no error."""
CLIENT_GONE: Final = 499
"""Status of the line of a request whose client left before an answer began."""


@define(eq=False)
class Access:
    """What the line of one request will say; filled in while it is served. ``path`` is without the query."""

    method: str
    path: str
    request_id: str
    status: int | None = None
    """None until the head of the answer was sent."""
    model: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    complete: bool = True
    """False when the answer broke off: the client left, or an error ended the stream."""
    clock: Callable[[], float] = time.perf_counter
    started: float = field(init=False)
    ended: bool = field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self.started = self.clock()

    @property
    def duration_secs(self) -> float:
        """Since the request began."""
        return self.clock() - self.started

    def end(self) -> None:
        """Write the line. Only the first call does."""
        if self.ended:
            return
        self.ended = True
        status = CLIENT_GONE if self.status is None else self.status
        level = logging.DEBUG if self.path in QUIET_PATHS and status < 400 else logging.INFO
        if not log.isEnabledFor(level):
            return
        duration_ms = round(self.duration_secs * 1000, 1)
        path = ClientText(self.path)
        extra: dict[str, object] = {
            "method": self.method,
            "path": path,
            "status": status,
            "duration_ms": duration_ms,
        }
        text = f"{status} {duration_ms:g} ms"
        for name, value in (("prompt_tokens", self.prompt_tokens), ("completion_tokens", self.completion_tokens)):
            if value is not None:
                extra[name] = value
                text += f" {name}={value}"
        if not self.complete or self.status is None:
            extra["complete"] = False
            text += " (broken off)"
        fields = {ACCESS_EXTRA: extra, "request_id": self.request_id, "model": self.model}
        log.log(level, "%s %s %s", self.method, path, text, extra=fields)
