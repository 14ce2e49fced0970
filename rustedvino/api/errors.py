"""What a client is told when a request cannot be served.

One exception carries everything an answer needs: the HTTP status, the four fields of the OpenAI error
envelope, how long to wait before trying again, and further headers. Layers that know why a request fails
raise it; the HTTP layer only writes it out, as a JSON body or as an error event in a stream that has begun.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final, TypedDict

__all__ = [
    "MAX_MESSAGE_CHARS",
    "MAX_VALUE_CHARS",
    "ApiError",
    "ErrorBody",
    "ErrorEnvelope",
    "bad_request",
    "browser_origin_refused",
    "conflict",
    "context_length_exceeded",
    "forbidden",
    "internal",
    "invalid_api_key",
    "method_not_allowed",
    "no_websocket",
    "not_found_model",
    "printable",
    "rate_limited",
    "shown",
    "too_large",
    "unavailable",
    "unknown_url",
    "unsupported_media_type",
    "upgrade_required",
]

#: Longest `message` of an envelope. A client value never makes an error answer large.
MAX_MESSAGE_CHARS: Final = 2000
#: Longest piece of a client value inside a message.
MAX_VALUE_CHARS: Final = 80
#: Longest `param`: a path repeats names of the client's own fields.
MAX_PARAM_CHARS: Final = 300

INVALID_REQUEST: Final = "invalid_request_error"
AUTHENTICATION: Final = "authentication_error"
PERMISSION: Final = "permission_error"
RATE_LIMIT: Final = "rate_limit_error"
SERVER: Final = "server_error"
UNAVAILABLE: Final = "service_unavailable_error"


class ErrorBody(TypedDict):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorEnvelope(TypedDict):
    error: ErrorBody


def printable(text: str, limit: int = MAX_VALUE_CHARS) -> str:
    """`text` on one line, safe to encode as UTF-8 and at most `limit` characters, the middle cut out.

    Control characters, line separators and lone surrogates become escapes.
    """
    limit = max(limit, 8)
    head = text if len(text) <= limit else text[:limit]
    if not head.isprintable():
        head = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in head)
    if len(text) <= limit and len(head) <= limit:
        return head
    return head[: limit - 1] + "…"


def shown(value: object, limit: int = MAX_VALUE_CHARS) -> str:
    """A client value for a message: `"abc…"`, `true`, `null`, `12`, `an array of 3 items`."""
    if value is None:
        return "null"
    if value is True:
        return "true"
    if value is False:
        return "false"
    if isinstance(value, str):
        return f'"{printable(value, limit)}"'
    if isinstance(value, int):
        # Writing a very long int costs quadratic time and is refused by the interpreter beyond 4300 digits.
        return str(value) if value.bit_length() <= 256 else f"an integer of {value.bit_length()} bits"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, Mapping):
        return "{}" if not value else f"an object with {len(value)} field{'s' * (len(value) != 1)}"
    if isinstance(value, list | tuple):
        return "[]" if not value else f"an array of {len(value)} item{'s' * (len(value) != 1)}"
    return printable(type(value).__name__, limit)


class ApiError(Exception):
    """A request that ends with an error answer.

    `status` is the HTTP status; `message`, `type`, `param` and `code` are the envelope's fields;
    `retry_after_secs` becomes the `retry-after` header (whole seconds, rounded up, at least 1);
    `headers` are further response headers, names in lower case.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = INVALID_REQUEST,  # noqa: A002 - the wire's name
        param: str | None = None,
        code: str | None = None,
        retry_after_secs: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status = status
        self.message = _bounded(message, MAX_MESSAGE_CHARS)
        self.type = type
        self.param = None if param is None else printable(param, MAX_PARAM_CHARS)
        self.code = code
        self.retry_after_secs = retry_after_secs
        self.headers: Mapping[str, str] = dict(headers or {})
        super().__init__(self.message)

    def __repr__(self) -> str:
        return f"ApiError({self.status}, {self.message!r}, param={self.param!r}, code={self.code!r})"

    def envelope(self) -> ErrorEnvelope:
        """The response body: `{"error": {message, type, param, code}}`."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    def response_headers(self) -> dict[str, str]:
        """`headers` plus `retry-after` when there is something to wait for."""
        headers = dict(self.headers)
        if self.retry_after_secs is not None:
            headers["retry-after"] = str(_whole_secs(self.retry_after_secs))
        return headers


def bad_request(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """400: the request itself is wrong; `param` is the path of the field (`messages[2].role`)."""
    return ApiError(400, message, param=param, code=code)


def context_length_exceeded(prompt_tokens: int, limit_tokens: int, param: str = "messages") -> ApiError:
    """400: the prompt leaves no room for a single generated token."""
    message = (
        f"This model's maximum context length is {limit_tokens} tokens, but the prompt has "
        f"{prompt_tokens} tokens. Please shorten the prompt."
    )
    return ApiError(400, message, param=param, code="context_length_exceeded")


def invalid_api_key(message: str = "Incorrect or missing API key.") -> ApiError:
    """401."""
    return ApiError(401, message, type=AUTHENTICATION, code="invalid_api_key", headers={"www-authenticate": "Bearer"})


def forbidden(message: str, code: str = "insufficient_scope") -> ApiError:
    """403: the key is known but does not open this route."""
    return ApiError(403, message, type=PERMISSION, code=code)


def browser_origin_refused() -> ApiError:
    """403: without keys, admin routes do not answer a web page."""
    message = "Requests from a browser page are refused here while no API keys are set."
    return forbidden(message, "browser_origin_refused")


def not_found_model(model: str, param: str | None = "model") -> ApiError:
    """404: the model id is not registered."""
    message = f"The model '{printable(model)}' does not exist."
    return ApiError(404, message, param=param, code="model_not_found")


def unknown_url(method: str, path: str) -> ApiError:
    """404: no route has this path."""
    return ApiError(404, f"Unknown request URL: {printable(method)} {printable(path, 200)}.", code="unknown_url")


def no_websocket(path: str) -> ApiError:
    """400: the handshake of a WebSocket on a path of plain requests."""
    message = f"There is no WebSocket at {printable(path, 200)}; send a plain request."
    return ApiError(400, message, code="websocket_not_supported")


def upgrade_required(path: str) -> ApiError:
    """426: a plain request on the path of a WebSocket."""
    message = f"{printable(path, 200)} is a WebSocket; open one with 'Upgrade: websocket'."
    return ApiError(426, message, code="upgrade_required", headers={"upgrade": "websocket"})


def method_not_allowed(method: str, allow: Iterable[str]) -> ApiError:
    """405 with an `allow` header."""
    allowed = ", ".join(sorted(allow))
    message = f"Method {printable(method)} is not allowed here. Allowed: {allowed}."
    return ApiError(405, message, code="method_not_allowed", headers={"allow": allowed})


def conflict(message: str, code: str = "wrong_state", retry_after_secs: float | None = None) -> ApiError:
    """409: the model's state does not allow this."""
    return ApiError(409, message, code=code, retry_after_secs=retry_after_secs)


def too_large(message: str, param: str | None = None) -> ApiError:
    """413."""
    return ApiError(413, message, param=param, code="request_too_large")


def unsupported_media_type(given: str | None, expected: str = "application/json") -> ApiError:
    """415: `given` is the content type that was sent, None when there was none."""
    was = "no content type was sent" if not given else f"got '{printable(given)}'"
    return ApiError(415, f"Expected content type {expected}; {was}.", code="unsupported_media_type")


def rate_limited(message: str, retry_after_secs: float, code: str = "rate_limit_exceeded") -> ApiError:
    """429: over capacity in a way that passes."""
    return ApiError(429, message, type=RATE_LIMIT, code=code, retry_after_secs=retry_after_secs)


def unavailable(code: str, message: str, retry_after_secs: float) -> ApiError:
    """503 that a client may retry.

    `code` is one of model_loading, model_unloading, worker_restarting, worker_lost, model_failed,
    insufficient_memory, gpu_poisoned.
    """
    return ApiError(503, message, type=UNAVAILABLE, code=code, retry_after_secs=retry_after_secs)


def internal(request_id: str) -> ApiError:
    """500 that names the request, so that the log can be searched, and tells nothing else."""
    message = f"Internal error. Request id: {printable(request_id)}."
    return ApiError(500, message, type=SERVER, code="internal_error")


def _whole_secs(secs: float) -> int:
    if not math.isfinite(secs):
        return 120 if secs > 0 else 1  # clients ignore longer waits
    return max(1, math.ceil(secs))


def _bounded(text: str, limit: int) -> str:
    """Cut to `limit` characters and made safe for UTF-8; unlike `printable` it keeps line breaks."""
    if len(text) > limit:
        text = text[: limit - 1] + "…"
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
