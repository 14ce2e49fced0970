"""Fetching images that a client names by http(s) URL, without letting it reach what only this machine can.

The host is resolved first; every address must be public; the connection goes to an address that was checked, so
that a second answer of the name server changes nothing; each redirect is a new URL and checked anew.
"""

import ipaddress
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import Final
from urllib.parse import SplitResult, urljoin, urlsplit

import h11
import trio
from attrs import field, frozen

from rustedvino import __version__

MAX_BYTES: Final = 20 * 1024 * 1024
MAX_REDIRECTS: Final = 3
TOTAL_SECS: Final = 10.0
"""Bound on a whole fetch, redirects included."""
CONNECT_SECS: Final = 3.0
MAX_ADDRESSES: Final = 3
"""Addresses of one host that are tried, in the order the resolver gave them."""
MAX_URL_CHARS: Final = 2048
MAX_HEAD_BYTES: Final = 32 * 1024

_RECEIVE_BYTES: Final = 64 * 1024
_PORTS: Final = {"http": 80, "https": 443}
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]

_REFUSED: Final = tuple(
    ipaddress.ip_network(network)
    for network in (
        "168.63.129.16/32",  # metadata of virtual machines on one cloud, at an address that is otherwise public
        # Special by their registries, and called global by the ipaddress module of some Python versions.
        *("192.0.0.0/24", "192.88.99.0/24", "3fff::/20"),
    )
)
_GLOBAL_UNICAST: Final = ipaddress.IPv6Network("2000::/3")
_NAT64: Final = (ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("64:ff9b:1::/48"))


class FetchFailed(Exception):
    """The image could not be had; the text is fit for a client and tells nothing about this machine's network."""


def is_public(address: Address) -> bool:
    """Whether an address belongs to the public internet, whatever form it hides in."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = _embedded(address)
        if inner is not None:
            return is_public(inner)
        if address not in _GLOBAL_UNICAST or address.scope_id is not None:
            return False
    return (
        address.is_global
        and not address.is_multicast
        and not address.is_reserved
        and not address.is_private
        and not any(address in network for network in _REFUSED)
    )


def _embedded(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address that traffic to an IPv6 address ends at: mapped, compatible, NAT64, 6to4 or Teredo."""
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if address.teredo is not None:
        return address.teredo[1]
    number = int(address)
    if any(address in network for network in _NAT64) or (number >> 32 == 0 and number > 1):
        return ipaddress.IPv4Address(number & 0xFFFFFFFF)
    return None


async def system_resolver(host: str, port: int) -> list[str]:
    """Addresses of a host by the system's resolver. Raises OSError."""
    found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


@frozen(kw_only=True)
class RemoteImages:
    """Calling it with a URL gives the bytes behind it. Raises FetchFailed; cancellation closes the connection.

    ``resolve`` and ``allowed`` are the system's resolver and the rule of public addresses but for tests.
    """

    max_bytes: int = MAX_BYTES
    total_secs: float = TOTAL_SECS
    resolve: Resolve = system_resolver
    allowed: Callable[[Address], bool] = is_public
    tls: ssl.SSLContext = field(factory=ssl.create_default_context)

    async def __call__(self, url: str, /) -> bytes:
        """Fetch; see the class."""
        with trio.move_on_after(self.total_secs):
            for _ in range(MAX_REDIRECTS + 1):
                target = _Target.parse(url)
                answer = await self._get(target)
                if isinstance(answer, bytes):
                    return answer
                url = target.joined(answer.location)
            raise FetchFailed(f"the image was redirected more than {MAX_REDIRECTS} times")
        raise FetchFailed(f"the image could not be fetched within {self.total_secs:g} s")

    async def _get(self, target: "_Target") -> "bytes | _Redirect":
        stream: trio.abc.Stream = await self._connect(target)
        try:
            if target.scheme == "https":
                stream = trio.SSLStream(stream, self.tls, server_hostname=target.host, https_compatible=True)
            return await _Exchange(stream, self.max_bytes).run(target)
        except (trio.BrokenResourceError, h11.ProtocolError, ssl.SSLError) as error:
            raise FetchFailed("the image's server broke the connection or does not speak HTTP as it should") from error
        finally:
            await trio.aclose_forcefully(stream)

    async def _connect(self, target: "_Target") -> trio.SocketStream:
        for address in (await self._addresses(target))[:MAX_ADDRESSES]:
            with trio.move_on_after(CONNECT_SECS):
                try:
                    return await _connect_to(address, target.port)
                except OSError:
                    continue  # the next address may answer; when none does, that is said below
        raise FetchFailed("the image's server cannot be reached")

    async def _addresses(self, target: "_Target") -> list[Address]:
        try:
            found = [ipaddress.ip_address(text) for text in await self.resolve(target.host, target.port)]
        except (OSError, ValueError) as error:  # UnicodeError of a name that no name server knows is a ValueError
            raise FetchFailed("the host of the image is not known") from error
        if not found:
            raise FetchFailed("the host of the image is not known")
        if not all(self.allowed(address) for address in found):
            raise FetchFailed("the host of the image is not on the public internet")
        return found


async def _connect_to(address: Address, port: int) -> trio.SocketStream:
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    sock = trio.socket.socket(family, socket.SOCK_STREAM)
    try:
        await sock.connect((str(address), port))
    except BaseException:
        sock.close()
        raise
    return trio.SocketStream(sock)


@frozen
class _Redirect:
    location: str


@frozen
class _Target:
    """One checked URL."""

    url: str
    scheme: str
    host: str
    port: int
    path: str
    authority: str

    @classmethod
    def parse(cls, url: str) -> "_Target":
        if len(url) > MAX_URL_CHARS:
            raise FetchFailed(f"the URL is longer than {MAX_URL_CHARS} characters")
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise FetchFailed("the URL is not valid") from error
        if parts.scheme not in _PORTS:
            raise FetchFailed("only http and https URLs are fetched")
        if not host:
            raise FetchFailed("the URL names no host")
        if parts.username is not None or parts.password is not None:
            raise FetchFailed("the URL must not hold a user name or password")
        return cls(url, parts.scheme, host, port or _PORTS[parts.scheme], _path(parts), _authority(parts, host, port))

    def joined(self, location: str) -> str:
        """Where a redirect leads, still to be checked."""
        try:
            return urljoin(self.url, location)
        except ValueError as error:
            raise FetchFailed("the image was redirected to a URL that is not valid") from error


def _path(parts: SplitResult) -> str:
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    if not path.isascii() or not path.isprintable() or " " in path:
        raise FetchFailed("the URL has characters that must be percent-encoded")
    return path


def _authority(parts: SplitResult, host: str, port: int | None) -> str:
    try:
        name = f"[{host}]" if ":" in host else host.encode("idna").decode("ascii")
    except UnicodeError as error:
        raise FetchFailed("the host of the image is not a valid name") from error
    return name if port is None or port == _PORTS[parts.scheme] else f"{name}:{port}"


class _Exchange:
    """One request and its answer on one connection."""

    def __init__(self, stream: trio.abc.Stream, max_bytes: int) -> None:
        self._stream = stream
        self._max_bytes = max_bytes
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=MAX_HEAD_BYTES)

    async def run(self, target: _Target) -> "bytes | _Redirect":
        headers = [
            ("host", target.authority),
            ("accept", "image/png, image/jpeg, image/webp, image/gif, */*;q=0.1"),
            ("accept-encoding", "identity"),
            ("user-agent", f"rustedvino/{__version__}"),
            ("connection", "close"),
        ]
        head = self._http.send(h11.Request(method="GET", target=target.path, headers=headers))
        end = self._http.send(h11.EndOfMessage())
        await self._stream.send_all((head or b"") + (end or b""))
        response = await self._next()
        while isinstance(response, h11.InformationalResponse):
            response = await self._next()
        if not isinstance(response, h11.Response):
            raise FetchFailed("the image's server closed the connection without an answer")
        fields = {name.decode("latin-1"): value.decode("latin-1") for name, value in response.headers}
        if response.status_code in _REDIRECTS and "location" in fields:
            return _Redirect(fields["location"])
        if response.status_code != 200:
            raise FetchFailed(f"the image's server answered with status {response.status_code}")
        if fields.get("content-encoding", "identity").lower() != "identity":
            raise FetchFailed("the image's server sent it compressed, which was not asked for")
        length = fields.get("content-length", "")
        if length.isdecimal() and int(length) > self._max_bytes:
            raise self._too_large()
        return await self._body()

    async def _body(self) -> bytes:
        body = bytearray()
        while True:
            event = await self._next()
            if isinstance(event, h11.EndOfMessage):
                return bytes(body)
            if not isinstance(event, h11.Data):
                raise FetchFailed("the image's server closed the connection before the image was complete")
            body += event.data
            if len(body) > self._max_bytes:
                raise self._too_large()

    async def _next(self) -> object:
        while True:
            event = self._http.next_event()
            if event is not h11.NEED_DATA:
                return event
            self._http.receive_data(bytes(await self._stream.receive_some(_RECEIVE_BYTES)))

    def _too_large(self) -> FetchFailed:
        return FetchFailed(f"the image is larger than {self._max_bytes} bytes")
