"""HTTP to one server: JSON in and out, streams of events, and errors in words."""

import http.client
import json
import socket
from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

from rustedvino import __version__
from rustedvino.rv.errors import Refused, RvError, Unreachable, UsageError
from rustedvino.rv.events import EventParser

CONNECT_SECS: Final = 5.0
READ_SECS: Final = 15.0
"""For what a server answers from memory."""
WORK_SECS: Final = 3600.0
"""For what the server itself bounds: loads, drains, generations."""
MAX_ANSWER_BYTES: Final = 256 * 2**20
CHUNK_BYTES: Final = 65536
USER_AGENT: Final = f"rv/{__version__}"


class Key(NamedTuple):
    """An API key and where it came from, which may be told; the key itself never is."""

    value: str
    source: str


class Reply(NamedTuple):
    """An answer as it came. Names of headers are lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Client:
    """One server. ``when_down`` may know why nothing answers: it returns what to raise instead, or None."""

    def __init__(
        self,
        base_url: str,
        key: Key | None = None,
        *,
        keys_expected: str | None = None,
        when_down: Callable[[], Unreachable | None] = lambda: None,
    ) -> None:
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UsageError(f"{base_url!r} is not an address: give HOST, HOST:PORT or http(s)://HOST[:PORT]")
        try:
            self._port = parts.port
        except ValueError as error:
            raise UsageError(f"{base_url!r} is not an address: {error}") from error
        self.base_url = base_url.rstrip("/")
        self.key = key
        self._secure = parts.scheme == "https"
        self._host = parts.hostname
        self._prefix = parts.path.rstrip("/")
        self._keys_expected = keys_expected
        self._when_down = when_down

    # Whole answers.

    def get(self, path: str, query: Mapping[str, Any] | None = None, *, timeout_secs: float = READ_SECS) -> Any:
        """GET JSON. Raises Refused and Unreachable, as all of these do."""
        return self.call("GET", path, query=query, timeout_secs=timeout_secs)

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, Any] | None = None,
        timeout_secs: float = WORK_SECS,
    ) -> Any:
        """Send a request and return the JSON of its answer. Raises Refused and Unreachable."""
        reply = self.raw(method, path, body, query=query, timeout_secs=timeout_secs)
        if reply.status >= 400:
            raise self._refusal(method, path, reply)
        return self._json(reply)

    def text(self, path: str) -> str:
        """GET text."""
        reply = self.raw("GET", path, timeout_secs=READ_SECS)
        if reply.status >= 400:
            raise self._refusal("GET", path, reply)
        return reply.body.decode("utf-8", "replace")

    def raw(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, Any] | None = None,
        timeout_secs: float = READ_SECS,
    ) -> Reply:
        """Send a request and return its answer, whatever its status. Raises Unreachable."""
        with (
            closing(self._connect(timeout_secs)) as connection,
            _Told(self, timeout_secs),
            closing(self._send(connection, method, path, body, query)) as answer,
        ):
            return _whole(answer)

    # Streams.

    def events(self, path: str, body: Any) -> Generator[str, None, None]:
        """POST, and yield the data of the events that come back, ``[DONE]`` included.

        Closing the generator closes the connection, by which the server knows that nobody waits any more.
        """
        with (
            closing(self._connect(WORK_SECS)) as connection,
            _Told(self, WORK_SECS),
            # It has taken the socket over: closing the connection alone would leave that open.
            closing(self._send(connection, "POST", path, body, None)) as answer,
        ):
            if answer.status >= 400:
                raise self._refusal("POST", path, _whole(answer))
            content_type = answer.getheader("content-type", "")
            if not content_type.startswith("text/event-stream"):
                raise self._stranger(f"content of type {content_type!r}")
            parser = EventParser()
            while received := answer.read1(CHUNK_BYTES):
                yield from parser.feed(received)

    # Inside.

    def _connect(self, timeout_secs: float) -> http.client.HTTPConnection:
        with _Told(self, CONNECT_SECS):
            connection: http.client.HTTPConnection
            if self._secure:
                import ssl

                context = ssl.create_default_context()
                connection = http.client.HTTPSConnection(self._host, self._port, timeout=CONNECT_SECS, context=context)
            else:
                connection = http.client.HTTPConnection(self._host, self._port, timeout=CONNECT_SECS)
            connection.connect()
            connection.sock.settimeout(timeout_secs)
            # A machine that vanishes during a long load is noticed without a byte of ours in flight.
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            return connection

    def _send(
        self, connection: http.client.HTTPConnection, method: str, path: str, body: Any, query: Mapping[str, Any] | None
    ) -> http.client.HTTPResponse:
        headers = {"Accept": "*/*", "Connection": "close", "User-Agent": USER_AGENT}
        if self.key is not None:
            headers["Authorization"] = f"Bearer {self.key.value}"
        content = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            content = json.dumps(body).encode()
        target = self._prefix + path + (f"?{urlencode(query)}" if query else "")
        connection.request(method, target, content, headers)
        return connection.getresponse()

    def _json(self, reply: Reply) -> Any:
        try:
            return json.loads(reply.body)
        except (ValueError, RecursionError) as error:
            raise self._stranger("no JSON") from error

    def _stranger(self, sent: str) -> Unreachable:
        return Unreachable(f"what answers at {self.base_url} is not this server: it sent {sent}", code="not_rustedvino")

    def _refusal(self, method: str, path: str, reply: Reply) -> RvError:
        """The error of an answer, in words."""
        try:
            answer = json.loads(reply.body)
            error = answer["error"]
            message, code = str(error["message"]), str(error.get("code") or error.get("type") or reply.status)
        except (ValueError, RecursionError, TypeError, LookupError, AttributeError):
            answer, message, code = None, "", ""
        if "x-server" not in reply.headers or not message:
            return self._stranger(f"status {reply.status} and no error of ours to {method} {path}")
        hint = None
        if reply.status == 401:
            hint = self._key_hint()
        elif code == "insufficient_scope":
            source = "the key" if self.key is None else f"the key from {self.key.source}"
            hint = f"{source} may not administer: an admin key is needed"
        elif code == "unknown_url":
            message = f"this server does not know {method} {path}"
            hint = f"it is version {self._version()}, this rv is {__version__}"
        elif "retry-after" in reply.headers:
            hint = f"try again in {reply.headers['retry-after']} s"
        return Refused(reply.status, message, code=code, hint=hint, answer=answer)

    def _key_hint(self) -> str:
        if self.key is not None:
            return f"the key from {self.key.source} was sent"
        where = f"; the admin key of a local server is read from {self._keys_expected}" if self._keys_expected else ""
        return f"no key was sent: use RUSTEDVINO_KEY or --key{where}"

    def _version(self) -> str:
        try:
            return str(json.loads(self.raw("GET", "/health").body)["version"])
        except (RvError, ValueError, LookupError, TypeError):
            return "unknown"

    def explain(self, error: Exception, timeout_secs: float) -> Unreachable:
        """Why there is no answer."""
        where = self.base_url
        if isinstance(error, ConnectionRefusedError):
            return self._when_down() or Unreachable(f"no server answers at {where}")
        if isinstance(error, TimeoutError):
            return Unreachable(f"{where} did not answer within {timeout_secs:g} s", code="timeout")
        if isinstance(error, socket.gaierror):
            return Unreachable(f"the host {self._host!r} is not known: {error.strerror}")
        if self._secure and type(error).__module__ == "ssl":
            reason = getattr(error, "verify_message", None) or getattr(error, "reason", None) or str(error)
            return Unreachable(f"no secure connection to {where}: {reason}", code="tls")
        if isinstance(error, http.client.RemoteDisconnected | ConnectionResetError | BrokenPipeError):
            return Unreachable(f"{where} closed the connection without an answer", code="disconnected")
        if isinstance(error, http.client.IncompleteRead):
            return Unreachable(f"{where} ended its answer early", code="disconnected")
        if isinstance(error, http.client.HTTPException):
            return Unreachable(f"what answers at {where} does not speak HTTP", code="not_rustedvino")
        return Unreachable(f"{where} cannot be reached: {getattr(error, 'strerror', None) or error}")


def _whole(answer: http.client.HTTPResponse) -> Reply:
    content = answer.read(MAX_ANSWER_BYTES)
    if answer.length:  # a read with a bound does not complain of an early end
        raise http.client.IncompleteRead(content, answer.length)
    return Reply(answer.status, {name.lower(): value for name, value in answer.getheaders()}, content)


class _Told:
    """Errors of the network raised within it become Unreachable."""

    def __init__(self, client: Client, timeout_secs: float) -> None:
        self._client = client
        self._timeout_secs = timeout_secs

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if isinstance(error, OSError | http.client.HTTPException):
            raise self._client.explain(error, self._timeout_secs) from error


def model_path(model_id: str, *rest: str) -> str:
    """The admin route of a model."""
    return "/".join(["/v1/admin/models", quote(model_id, safe=""), *rest])
