"""Whole JSON answers."""

from quart import Response

from rustedvino.api.errors import ApiError
from rustedvino.api.results import to_json


def json_reply(value: object, status: int = 200) -> Response:
    """A JSON response as our encoder writes it."""
    return Response(to_json(value), status=status, content_type="application/json")


def error_reply(error: ApiError) -> Response:
    """The envelope of an error with its status and headers."""
    reply = json_reply(error.envelope(), error.status)
    for name, value in error.response_headers().items():
        reply.headers[name] = value
    return reply
