"""Bounds of the HTTP layer. Every wait and every buffer has one, each with its unit in its name."""

from __future__ import annotations

from collections.abc import Callable

from attrs import field, frozen, validators

KIB = 1024
MIB = 1024 * KIB


def _no_headers() -> list[tuple[bytes, bytes]]:
    return []


@frozen(kw_only=True)
class ServeOptions:
    """What one server allows its clients.

    A bound of 0 on a number of connections means "no bound of ours"; the others must be positive.
    """

    client_stall_secs: float = field(default=60.0, validator=validators.gt(0))
    """A client that accepts no byte for this long while we have one for it is aborted."""

    header_timeout_secs: float = field(default=15.0, validator=validators.gt(0))
    """From the first byte of a request (or the opening of a connection) to the end of its head."""

    keep_alive_timeout_secs: float = field(default=75.0, validator=validators.gt(0))
    """Idle time between two requests. Longer than the pools of common proxies and SDKs (60 s), so that it
    is they who retire a connection and no request crosses our close."""

    body_grace_secs: float = field(default=30.0, validator=validators.gt(0))
    """A body may take this long plus its bytes received so far / min_body_bytes_per_sec."""

    min_body_bytes_per_sec: float = field(default=4.0 * KIB, validator=validators.gt(0))

    half_close_grace_secs: float = field(default=0.1, validator=validators.ge(0))
    """How long after its last request byte an end of input may still mean "half closed", see peer.py.
    0 = an end of input is always a disconnect."""

    linger_secs: float = field(default=5.0, validator=validators.gt(0))
    """How long the rest of an unwanted body is discarded, so that the client reads our answer."""

    linger_bytes: int = field(default=64 * MIB, validator=validators.gt(0))

    max_head_bytes: int = field(default=64 * KIB, validator=validators.gt(0))
    """Request line and headers of one request (431 above), and pipelined bytes read ahead."""

    max_headers: int = field(default=256, validator=validators.gt(0))
    """Header lines of one request (431 above)."""

    max_body_bytes: int = field(default=50 * MIB, validator=validators.gt(0))
    """Body of one request (413 above), declared or chunked."""

    max_buffered_body_bytes: int = field(default=512 * MIB, validator=validators.gt(0))
    """Bodies of all requests in flight together (503 above)."""

    max_connections: int = field(default=2048, validator=validators.ge(0))
    """Open connections; when full the longest idle one makes room, else the new one gets a 503.
    Lowered at start to what the process's limit of open files leaves."""

    max_connections_per_peer: int = field(default=1024, validator=validators.ge(0))
    """Open connections of one address. A reverse proxy is one address."""

    max_requests_per_connection: int = field(default=10_000, validator=validators.gt(0))

    max_websocket_message_bytes: int = field(default=16 * MIB, validator=validators.gt(0))

    websocket_ping_interval_secs: float = field(default=20.0, validator=validators.gt(0))

    answer_headers: Callable[[], list[tuple[bytes, bytes]]] = _no_headers
    """Headers for answers made below the application (bad request line, too large, too many connections)."""
