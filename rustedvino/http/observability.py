"""``/metrics``, the tail of the log, the age of what runs."""

from typing import Final

import trio
from quart import Blueprint, Response, request

from rustedvino.api import errors as api
from rustedvino.http.auth import require_admin
from rustedvino.http.context import context
from rustedvino.http.replies import json_reply
from rustedvino.observe.ring import DEFAULT_TAIL_LINES, MAX_LINES
from rustedvino.observe.watchdog import Watchdog

blueprint: Final = Blueprint("observability", __name__)


@blueprint.before_request
async def _gate() -> None:
    require_admin()


@blueprint.get("/metrics")
async def metrics() -> Response:
    """Prometheus text, or OpenMetrics for a scraper that asks for it."""
    scrape = context().hub.metrics.scrape()
    rendered = await trio.to_thread.run_sync(scrape.render, request.headers.get("accept", ""))
    return Response(rendered.body, content_type=rendered.content_type)


@blueprint.get("/v1/admin/logs/tail")
async def logs_tail() -> Response:
    """The last lines of the log: ``?lines=N``; ``?after=`` the ``last`` of an earlier answer gives only newer ones."""
    ring = context().log_ring
    lines = _whole_number("lines", DEFAULT_TAIL_LINES, MAX_LINES)
    after = _whole_number("after", None, None)
    page = ring.tail(lines if lines is not None else DEFAULT_TAIL_LINES, after=after)
    return json_reply({"lines": page.lines, "first": page.first, "last": page.last})


@blueprint.get("/v1/admin/health/watchdog")
async def watchdog() -> Response:
    """How old the oldest running generation is, and how long the most silent one has been silent."""
    server = context()
    ceiling_secs = server.settings.supervisor.watchdog_hang_ceiling_secs
    return json_reply(Watchdog(server.hub.running, ceiling_secs).report().as_json())


def _whole_number(name: str, default: int | None, most: int | None) -> int | None:
    text = request.args.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise api.bad_request(f"'{name}' must be a whole number", name)
    return int(text) if most is None else min(int(text), most)
