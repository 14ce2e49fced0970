"""The application's tasks on a connection, and the one place where what they raise ends."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, cast

import trio
from hypercorn.config import Config
from hypercorn.protocol.http_stream import ASGIHTTPState, HTTPStream
from hypercorn.trio.task_group import TaskGroup
from hypercorn.typing import AppWrapper, ASGIReceiveEvent, ASGISendEvent, Scope

from rustedvino.http.exchange import EXCHANGE, Exchange

if TYPE_CHECKING:
    from rustedvino.http.connections import Connection

log = logging.getLogger(__name__)


class RequestTasks(TaskGroup):
    """Runs the application for each request of a connection."""

    tasks: trio.Nursery

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self._connection = connection
        self._helpers: list[trio.CancelScope] = []

    def spawn(self, func: Callable[..., Awaitable[Any]], *args: Any) -> None:
        """Run a helper of the protocol (the pings of a WebSocket) until the connection ends."""

        async def run() -> None:
            with trio.CancelScope() as scope:
                self._helpers.append(scope)
                await func(*args)

        self.tasks.start_soon(run)

    def end_helpers(self) -> None:
        for scope in self._helpers:
            scope.cancel()

    async def spawn_app(
        self,
        app: AppWrapper,
        config: Config,
        scope: Scope,
        send: Callable[[ASGISendEvent | None], Awaitable[None]],
    ) -> Callable[[ASGIReceiveEvent], Awaitable[None]]:
        into_app, from_client = trio.open_memory_channel[ASGIReceiveEvent](config.max_app_queue_size)
        stream = self._connection.protocol.http_stream
        if stream is not None and scope["type"] == "http":
            extensions = cast("dict[str, Any]", scope["extensions"])
            extensions[EXCHANGE] = Exchange(self._connection, stream, from_client.receive_nowait)

        async def put(event: ASGIReceiveEvent) -> None:
            try:
                try:
                    # Without giving up the processor, so that a small request is whole when its handler begins.
                    into_app.send_nowait(event)
                except trio.WouldBlock:
                    await into_app.send(event)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return  # the application has ended and reads no more

        async def run() -> None:
            host = self._connection.host
            host.request_begins()
            try:
                await self._run_app(app, scope, from_client.receive, send, stream)
            finally:
                host.request_ends()
                into_app.close()
                from_client.close()

        self.tasks.start_soon(run)
        return put

    async def _run_app(
        self,
        app: AppWrapper,
        scope: Scope,
        receive: Callable[[], Awaitable[ASGIReceiveEvent]],
        send: Callable[[ASGISendEvent | None], Awaitable[None]],
        stream: HTTPStream | None,
    ) -> None:
        """One request. This is the one place where what an application raises ends.

        An error before the answer began is a 500; after that the answer stays without its end, so that the
        client can tell. Cancellation passes.
        """
        path = str(scope.get("path"))
        status, message, code = 503, "the server is shutting down", "model_unloading"
        try:
            await app(scope, receive, send, trio.to_thread.run_sync, trio.from_thread.run)
            status, message, code = 500, "the handler gave no answer", "internal_error"
        except BaseExceptionGroup as group:
            errors = group.split(trio.Cancelled)[1]
            if errors is not None:
                status, message, code = 500, "internal error", "internal_error"
                log.error("error in the handler of %s", path, exc_info=errors)
            beyond_errors = group.split(Exception)[1]
            if beyond_errors is not None:
                raise beyond_errors from None
        except Exception:
            status, message, code = 500, "internal error", "internal_error"
            log.exception("error in the handler of %s", path)
        finally:
            # The disconnect that these sends report would cancel them half-way.
            with trio.move_on_after(self._connection.host.options.client_stall_secs, shield=True):
                if stream is not None and not stream.closed and stream.state is ASGIHTTPState.REQUEST:
                    await self._connection.protocol.refuse(status, message, code)
                await send(None)
