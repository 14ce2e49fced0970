"""Web pages as clients: which origins may read answers, and what a browser is told before it asks."""

import re
from collections.abc import Iterable
from typing import Final, Self

from attrs import frozen
from quart import Response
from quart.wrappers.base import BaseRequestWebsocket
from werkzeug.datastructures import Headers

EXPOSED_HEADERS: Final = "x-request-id, retry-after"
ALLOWED_METHODS: Final = "GET, HEAD, POST"
PREFLIGHT_SECS: Final = 600
"""How long a browser may remember an answer to its preflight."""
MAX_ASKED_HEADERS_CHARS: Final = 2048

_DEFAULT_PORTS: Final = {"http": "80", "https": "443"}
_HEADER_NAMES: Final = re.compile(r"[\w!#$%&'*+.^`|~-]+(?:[ \t]*,[ \t]*[\w!#$%&'*+.^`|~-]+)*", re.ASCII)


def browser_form(origin: str) -> str:
    """An origin as browsers write it: in lower case and without the default port of its scheme."""
    scheme, _, rest = origin.lower().partition("://")
    host, colon, port = rest.rpartition(":")
    if colon and not rest.endswith("]") and port == _DEFAULT_PORTS.get(scheme):
        rest = host
    return f"{scheme}://{rest}"


@frozen
class OriginPolicy:
    """The web origins whose pages may call this server. None by default; there is no wildcard."""

    origins: frozenset[str] = frozenset()

    @classmethod
    def of(cls, origins: Iterable[str]) -> Self:
        """The policy of ``cors_allowed_origins``."""
        return cls(frozenset(map(browser_form, origins)))

    def allows(self, origin: str) -> bool:
        """Whether a page of this origin, as its browser sends it, may read answers. ``null`` never may."""
        return origin in self.origins

    def preflight(self, request: BaseRequestWebsocket) -> Response | None:
        """The answer to a preflight of an allowed origin, which carries no key; None for every other request.

        It is the same for every path, so it does not tell which ones there are.
        """
        headers = request.headers
        origin = _only(headers, "origin")
        if request.method != "OPTIONS" or origin is None or "access-control-request-method" not in headers:
            return None
        if not self.allows(origin):
            return None
        reply = Response(b"", status=204)
        del reply.headers["content-type"]
        reply.headers["access-control-allow-methods"] = ALLOWED_METHODS
        reply.headers["access-control-max-age"] = str(PREFLIGHT_SECS)
        asked = _only(headers, "access-control-request-headers")
        # A wildcard would not include Authorization. Whose page it is has been decided; what it sends is its affair.
        if asked and len(asked) <= MAX_ASKED_HEADERS_CHARS and _HEADER_NAMES.fullmatch(asked):
            reply.headers["access-control-allow-headers"] = asked
        if headers.get("access-control-request-private-network") == "true":
            reply.headers["access-control-allow-private-network"] = "true"
        return reply

    def mark(self, request: BaseRequestWebsocket, response: Response) -> None:
        """Let the page read this answer if it may. Credentials of the browser (cookies) are never allowed."""
        if not self.origins:
            return
        response.headers.add("vary", "Origin")
        origin = _only(request.headers, "origin")
        if origin is not None and self.allows(origin):
            response.headers["access-control-allow-origin"] = origin
            response.headers["access-control-expose-headers"] = EXPOSED_HEADERS


def is_from_page(headers: Headers) -> bool:
    """Whether a browser says that a page, of whatever origin, makes this request."""
    return "origin" in headers or headers.get("sec-fetch-site", "none") not in ("none", "")


def _only(headers: Headers, name: str) -> str | None:
    """The value of a header that was sent once."""
    values = headers.getlist(name)
    return values[0] if len(values) == 1 else None
