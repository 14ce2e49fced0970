"""The id of a request, in every answer and every line of the log about it."""

import re
import secrets
from typing import Any, Final, cast

from quart.wrappers.base import BaseRequestWebsocket

_REQUEST_ID: Final = re.compile(r"[\x21-\x7e]{1,128}")


def request_id(request: BaseRequestWebsocket) -> str:
    """The id of a request: the client's if it sent a usable one, else a fresh one; the same at every call."""
    scope = cast("dict[str, Any]", request.scope)
    known = scope.get("rustedvino.request_id")
    if known is None:
        sent = request.headers.get("x-request-id", "")
        known = sent if _REQUEST_ID.fullmatch(sent) else new_request_id()
        scope["rustedvino.request_id"] = known
    return str(known)


def new_request_id() -> str:
    """A fresh request id."""
    return f"req_{secrets.token_hex(16)}"
