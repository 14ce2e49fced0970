"""From the bytes of a request to its typed form."""

from typing import Any, Final, TypeVar

import trio
from quart import Request

from rustedvino.api import errors as api
from rustedvino.api.body import parse_json
from rustedvino.api.converter import structure
from rustedvino.http.asgi import read_body

MAX_BODY_BYTES: Final = 50 * 1024 * 1024
THREAD_BYTES: Final = 64 * 1024
"""Bodies above this are parsed in a thread, so that the event loop runs beside the Python part of it."""

T = TypeVar("T")


async def read_json(request: Request) -> dict[str, Any]:
    """The JSON object of a request's body. Raises ApiError (400, 413, 415) and BodyTooLarge."""
    kind = request.mimetype
    if kind != "application/json" and not kind.endswith("+json"):
        raise api.unsupported_media_type(request.headers.get("content-type"))
    body = [await read_body(request, MAX_BODY_BYTES)]
    if len(body[0]) <= THREAD_BYTES:
        return parse_json(body.pop())
    return await trio.to_thread.run_sync(_parse_last, body)


def _parse_last(body: list[bytes]) -> dict[str, Any]:
    """Parse what is taken out of ``body``, so that nobody holds the bytes any more once they are text."""
    return parse_json(body.pop())


async def read_request(request: Request, cls: type[T]) -> T:
    """The body as ``cls``. Raises ApiError naming the field."""
    return structure(await read_json(request), cls)
