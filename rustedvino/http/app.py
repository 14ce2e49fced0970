"""The application: routes, errors, headers."""

import logging
from collections.abc import Sequence
from typing import Final, cast

from quart import Response, has_websocket_context, request, websocket
from quart.typing import ResponseTypes
from quart.wrappers.base import BaseRequestWebsocket
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException, MethodNotAllowed, NotFound
from werkzeug.routing.exceptions import WebsocketMismatch

from rustedvino.api import errors as api
from rustedvino.api.errors import ApiError
from rustedvino.http import admin, auth, chat, completions, health, keys, models, observability, responses, voice
from rustedvino.http.asgi import BodyTooLarge, HttpConnection
from rustedvino.http.bodies import MAX_BODY_BYTES
from rustedvino.http.context import API_VERSION, CONTEXT_KEY, SERVER_NAME, ServerContext
from rustedvino.http.errors import from_hub
from rustedvino.http.replies import error_reply
from rustedvino.http.request_ids import new_request_id, request_id
from rustedvino.hub.errors import HubError
from rustedvino.hub.model_files import ModelProblem

log = logging.getLogger(__name__)

_BLUEPRINTS: Final = (
    health.blueprint,
    models.blueprint,
    chat.blueprint,
    completions.blueprint,
    responses.blueprint,
    admin.blueprint,
    keys.blueprint,
    observability.blueprint,
    voice.blueprint,
)


def create_app(server: ServerContext) -> QuartTrio:
    """The application of one server."""
    app = QuartTrio(__name__, static_folder=None)
    app.asgi_http_class = HttpConnection
    # Otherwise `//` in a path is answered by a redirect in HTML to whatever the Host header says.
    app.url_map.merge_slashes = False
    app.extensions[CONTEXT_KEY] = server
    app.config.update(
        MAX_CONTENT_LENGTH=MAX_BODY_BYTES,
        # Both are bounded elsewhere: a body by its progress, an answer by its client's.
        BODY_TIMEOUT=None,
        RESPONSE_TIMEOUT=None,
        PROVIDE_AUTOMATIC_OPTIONS=True,
    )
    for blueprint in _BLUEPRINTS:
        app.register_blueprint(blueprint)
    app.register_error_handler(ApiError, _api_error)
    app.register_error_handler(HubError, _hub_error)
    app.register_error_handler(ModelProblem, _model_problem)
    app.register_error_handler(HTTPException, _framework_error)
    app.register_error_handler(Exception, _internal_error)
    app.before_request(auth.guard)
    app.before_websocket(auth.guard_websocket)
    app.after_request(_headers)
    app.after_websocket(_websocket_headers)
    return app


async def _api_error(error: ApiError) -> Response:
    return error_reply(error)


async def _hub_error(error: HubError) -> Response:
    return error_reply(from_hub(error, request_id(_asked())))


async def _model_problem(error: ModelProblem) -> Response:
    return error_reply(api.unavailable("model_failed", str(error), 60.0))


async def _framework_error(error: HTTPException) -> Response:
    """Errors of the framework in our envelope."""
    asked = _asked()
    if isinstance(error, BodyTooLarge):
        return error_reply(api.too_large(f"the request body is larger than {error.max_bytes} bytes"))
    if isinstance(error, NotFound):
        return error_reply(api.unknown_url(asked.method, asked.path))
    if has_websocket_context() and isinstance(error, (WebsocketMismatch, MethodNotAllowed)):
        return error_reply(api.no_websocket(asked.path))
    if isinstance(error, WebsocketMismatch):
        return error_reply(api.upgrade_required(asked.path))
    if isinstance(error, MethodNotAllowed):
        return error_reply(api.method_not_allowed(asked.method, error.valid_methods or ()))
    status = error.code or 500
    if status == 413:
        return error_reply(api.too_large(f"the request body is larger than {MAX_BODY_BYTES} bytes"))
    if status >= 500:
        return await _internal_error(error)
    return error_reply(ApiError(status, error.description or error.name, code=error.name.lower().replace(" ", "_")))


async def _internal_error(error: Exception) -> Response:
    """A fault of ours: the log has the details, the client the id to find them by."""
    number = request_id(_asked())
    log.error("request %s failed", number, exc_info=error)
    return error_reply(api.internal(number))


def _asked() -> BaseRequestWebsocket:
    """The request, or the handshake of a WebSocket, that is being handled."""
    return cast("BaseRequestWebsocket", websocket if has_websocket_context() else request)


async def _headers(response: Response) -> Response:
    asked = _asked()
    response.headers["x-request-id"] = request_id(asked)
    response.headers["x-server"] = SERVER_NAME
    response.headers["x-api-version"] = API_VERSION
    auth.add_headers(asked, response)
    return response


async def _websocket_headers(response: ResponseTypes | None) -> ResponseTypes | None:
    return await _headers(response) if isinstance(response, Response) else response


def plain_headers() -> Sequence[tuple[bytes, bytes]]:
    """Headers of answers that are made below the application, where there may be no request to take an id from."""
    pairs = (("x-request-id", new_request_id()), ("x-server", SERVER_NAME), ("x-api-version", API_VERSION))
    return [(name.encode(), value.encode()) for name, value in pairs]
