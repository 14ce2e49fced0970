"""The error envelope of answers made below the application, where no route and no request type exists yet."""

from __future__ import annotations

import json
from http import HTTPStatus

CODES = {
    400: "bad_request",
    403: "forbidden",
    404: "unknown_url",
    408: "request_timeout",
    413: "request_too_large",
    417: "expectation_failed",
    431: "headers_too_large",
    500: "internal_error",
    501: "unsupported_transfer_encoding",
    503: "server_busy",
    505: "unsupported_http_version",
}


def default_message(status: int) -> str:
    return HTTPStatus(status).phrase


def envelope(status: int, message: str, code: str | None = None) -> bytes:
    """The JSON body of an error answer."""
    error = {
        "message": message,
        "type": "invalid_request_error" if status < 500 or status in (501, 505) else "server_error",
        "param": None,
        "code": code or CODES.get(status, "bad_request" if status < 500 else "internal_error"),
    }
    return json.dumps({"error": error}, ensure_ascii=False).encode()
