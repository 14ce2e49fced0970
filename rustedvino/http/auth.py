"""Who may ask what: API keys, and what protects a server without keys from web pages.

Each request passes `guard` before its route is looked for and before its body is read, so without a key nobody learns
which routes there are. Each WebSocket passes `guard_websocket` before its handshake is answered.
"""

import ipaddress
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, Literal, cast

from attrs import frozen
from quart import Response, request, websocket
from quart.wrappers.base import BaseRequestWebsocket
from werkzeug.datastructures import Headers

from rustedvino import __version__
from rustedvino.api import errors as api
from rustedvino.config import is_loopback
from rustedvino.config.keys import ApiKey
from rustedvino.http.context import ServerContext, context
from rustedvino.http.cors import is_from_page

Gate = Literal["open", "inference", "admin"]

OPEN_PATHS: Final = frozenset({"/health", "/readyz"})
ADMIN_PATHS: Final = ("/v1/admin", "/metrics")
"""These and whatever is below them."""

WEBSOCKET_KEY_PREFIX: Final = "openai-insecure-api-key."
"""How a page shows its key: as a subprotocol, since it cannot set headers on a WebSocket."""

_CALLER: Final = "rustedvino.caller"
_FORM_TYPES: Final = frozenset({"", "text/plain", "multipart/form-data", "application/x-www-form-urlencoded"})
"""Bodies that a page may send to any server without a preflight."""
_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})

_HOST: Final = re.compile(r"(?:\[(?P<bracketed>[0-9A-Fa-f:.]+)\]|(?P<plain>[A-Za-z0-9._-]+))(?::\d{0,5})?", re.ASCII)
_EVERY_ADDRESS: Final = ("0.0.0.0", "::")  # noqa: S104  # read, not bound

_NO_KEY: Final = "No API key was sent. Send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'."
_WRONG_KEY: Final = "Incorrect API key."


@frozen
class Caller:
    """Who makes a request, as far as that was checked."""

    key: ApiKey | None = None
    """The right key that was sent; None without one, and always on a server without keys."""
    admin: bool = False
    """Whether admin routes are open to this request."""


def caller(asked: BaseRequestWebsocket) -> Caller:
    """Who makes a request that has passed its gate."""
    return cast("Caller", cast("dict[str, Any]", asked.scope).get(_CALLER) or Caller())


def gate_of(path: str) -> Gate:
    """What opens a path, whether a route has it or not."""
    if path in OPEN_PATHS:
        return "open"
    if any(path == prefix or path.startswith(f"{prefix}/") for prefix in ADMIN_PATHS):
        return "admin"
    return "inference"


async def guard() -> Response | None:
    """Before each request: the answer to a preflight, or None to go on. Raises ApiError (401, 403)."""
    server = context()
    asked = cast("BaseRequestWebsocket", request)
    gate = gate_of(asked.path)
    _check_host(asked, server)
    if gate != "admin":
        preflight = server.origins.preflight(asked)
        if preflight is not None:
            return preflight
    _pass(asked, gate, server)
    return None


async def guard_websocket() -> None:
    """Before each WebSocket's handshake. Raises ApiError (401, 403).

    Browsers let any page open a WebSocket and read from it, so the origin is checked here, keys or no keys.
    """
    server = context()
    asked = cast("BaseRequestWebsocket", websocket)
    _check_host(asked, server)
    origins = asked.headers.getlist("origin")
    if origins and not (len(origins) == 1 and server.origins.allows(origins[0])):
        message = "Pages of this origin may not open a WebSocket here; cors_allowed_origins lists those that may."
        raise api.forbidden(message, "browser_origin_refused")
    _pass(asked, gate_of(asked.path), server, websocket.requested_subprotocols)


def require_admin() -> None:
    """For admin routes, behind the gate of their path: refuse who has not passed it. Raises ApiError."""
    if not caller(cast("BaseRequestWebsocket", request)).admin:
        raise api.forbidden("This route needs an admin key.")


def add_headers(asked: BaseRequestWebsocket, response: Response) -> None:
    """What only some callers are told, and what lets a page read the answer."""
    server = context()
    known = caller(asked).key
    if known is not None:
        response.headers["x-ruvi-host"] = server.host_name
        if known.admin:
            response.headers["x-server-version"] = __version__
    if gate_of(asked.path) != "admin":
        server.origins.mark(asked, response)


# Keys.


def _pass(asked: BaseRequestWebsocket, gate: Gate, server: ServerContext, subprotocols: Sequence[str] = ()) -> None:
    if not server.keys.in_use:
        _pass_without_keys(asked, gate, server)
        return
    shown = [*_keys_in(asked.headers), *_keys_among(subprotocols)]
    key = server.keys.find(shown)
    if gate != "open":
        if key is None:
            raise api.invalid_api_key(_WRONG_KEY if shown else _NO_KEY)
        if gate == "admin" and not key.admin:
            _remember(asked, Caller(key))
            raise api.forbidden("This route needs an admin key; the key sent is for inference only.")
    _remember(asked, Caller(key, key is not None and key.admin))


def _remember(asked: BaseRequestWebsocket, who: Caller) -> None:
    cast("dict[str, Any]", asked.scope)[_CALLER] = who


def _keys_in(headers: Headers) -> Iterator[str]:
    """The keys that a request carries. A header that was sent twice is passed over."""
    authorization = headers.getlist("authorization")
    if len(authorization) == 1:
        scheme, _, rest = authorization[0].strip().partition(" ")
        if scheme.lower() == "bearer" and rest.strip():
            yield rest.strip()
    plain = headers.getlist("x-api-key")
    if len(plain) == 1 and plain[0].strip():
        yield plain[0].strip()


def _keys_among(subprotocols: Sequence[str]) -> Iterator[str]:
    offered = [protocol for protocol in subprotocols if protocol.startswith(WEBSOCKET_KEY_PREFIX)]
    if len(offered) == 1:
        yield offered[0].removeprefix(WEBSOCKET_KEY_PREFIX)


# Without keys.


def _pass_without_keys(asked: BaseRequestWebsocket, gate: Gate, server: ServerContext) -> None:
    if gate == "open":
        return
    if gate == "admin":
        if is_from_page(asked.headers):
            raise api.browser_origin_refused()
        if not is_loopback(server.settings.bind_addr):
            _check_is_local(asked, server)
        _remember(asked, Caller(admin=True))
    elif asked.method not in _SAFE_METHODS and asked.mimetype in _FORM_TYPES and _is_foreign_page(asked, server):
        # JSON needs a preflight, which fails; a form would be served, though its page could not read the answer.
        raise api.browser_origin_refused()


def _is_foreign_page(asked: BaseRequestWebsocket, server: ServerContext) -> bool:
    origins = asked.headers.getlist("origin")
    if len(origins) == 1 and server.origins.allows(origins[0]):
        return False
    return is_from_page(asked.headers)


def _check_is_local(asked: BaseRequestWebsocket, server: ServerContext) -> None:
    """On a server that others reach, and that has no keys, only this machine may administer."""
    client, own = asked.scope.get("client"), asked.scope.get("server")
    # What connects from this machine to an address of it comes from the same address.
    is_ours = client is not None and (_is_local_address(client[0]) or (own is not None and client[0] == own[0]))
    if not is_ours or not is_local_host(_hosts(asked), server.settings.bind_addr):
        raise api.forbidden("Without API keys this route is open to programs on the server's own machine only.")


def _check_host(asked: BaseRequestWebsocket, server: ServerContext) -> None:
    """Refuse a name that is not this machine's: a page whose own name was made to lead here (DNS rebinding) is of the
    same origin as the server for its browser, which then protects nothing.

    Not checked with keys, which such a page has not, nor beyond loopback, where our names are not known.
    """
    bind_addr = server.settings.bind_addr
    if server.keys.in_use or not is_loopback(bind_addr) or is_local_host(_hosts(asked), bind_addr):
        return
    message = (
        "The Host header names another machine. Without API keys only localhost and loopback addresses are served."
    )
    raise api.forbidden(message, "host_not_allowed")


def _hosts(asked: BaseRequestWebsocket) -> list[str]:
    """The Host header; nothing where there was none (HTTP/1.0, no browser), which the framework makes an empty one."""
    return [host for host in asked.headers.getlist("host") if host or asked.http_version != "1.0"]


def is_local_host(hosts: Iterable[str], bind_addr: str) -> bool:
    """Whether a Host header names this machine in a way that no name server has a say in: localhost, a loopback
    address, or the address that was configured. The port does not matter: it may be forwarded.
    """
    return all(_is_local_name(host, bind_addr) for host in hosts)


def _is_local_name(host: str, bind_addr: str) -> bool:
    found = _HOST.fullmatch(host)
    if found is None:
        return False
    name = (found["bracketed"] or found["plain"]).lower()
    if name in ("localhost", bind_addr.lower()) and name not in _EVERY_ADDRESS:
        return True
    return _is_local_address(name)


def _is_local_address(text: str) -> bool:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((address if mapped is None else mapped).is_loopback)
