"""The fetcher against servers of our own: what is allowed, what is sent, what is bounded."""

import ipaddress
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from rustedvino.http.remote_images import MAX_REDIRECTS, Address, FetchFailed, RemoteImages, is_public

IMAGE = b"\x89PNG and more"


def answer(body: bytes = IMAGE, *, status: str = "200 OK", headers: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\n{headers}\r\n".encode() + body


def redirect(location: str) -> bytes:
    return answer(b"", status="302 Found", headers=f"location: {location}\r\n")


Serve = Callable[[trio.abc.Stream, bytes], Awaitable[None]]


class Server:
    """Answers every connection by ``serve``, and remembers what it was asked."""

    def __init__(self, serve: bytes | Serve, tls: ssl.SSLContext | None) -> None:
        self.serve = serve
        self.tls = tls
        self.requests: list[bytes] = []
        self.port = 0

    async def handle(self, connection: trio.SocketStream) -> None:
        stream: trio.abc.Stream = connection
        if self.tls is not None:
            stream = trio.SSLStream(connection, self.tls, server_side=True, https_compatible=True)
        async with connection:
            try:
                request = b""
                while b"\r\n\r\n" not in request:
                    data = await stream.receive_some(4096)
                    if not data:
                        return
                    request += bytes(data)
                self.requests.append(request)
                if isinstance(self.serve, bytes):
                    await stream.send_all(self.serve)
                else:
                    await self.serve(stream, request)
            except trio.BrokenResourceError:
                pass  # the client had enough


@asynccontextmanager
async def serving(serve: bytes | Serve, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    server = Server(serve, tls)
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        server.port = listener.socket.getsockname()[1]
        nursery.start_soon(trio.serve_listeners, server.handle, [listener])
        yield server
        nursery.cancel_scope.cancel()


def fetcher(**changes: Any) -> RemoteImages:
    """Every host is this machine, and that is allowed."""

    async def resolve(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    return RemoteImages(**{"resolve": resolve, "allowed": lambda address: True, **changes})


async def test_an_image_is_fetched() -> None:
    async with serving(answer()) as server:
        assert await fetcher()(f"http://pictures.example:{server.port}/a%20b.png?x=1#part") == IMAGE
    (request,) = server.requests
    assert request.startswith(b"GET /a%20b.png?x=1 HTTP/1.1\r\n")
    head = request.lower()
    assert f"host: pictures.example:{server.port}\r\n".encode() in head
    assert b"cookie" not in head
    assert b"authorization" not in head


async def test_chunked_and_unbounded_bodies_are_read() -> None:
    chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"
    async with serving(chunked) as server:
        assert await fetcher()(f"http://x:{server.port}/") == b"abcde"
    async with serving(b"HTTP/1.0 200 OK\r\n\r\nuntil the end") as server:
        assert await fetcher()(f"http://x:{server.port}") == b"until the end"


@pytest.mark.parametrize(
    "body",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 101\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 101,
    ],
)
async def test_more_than_the_limit_is_refused(body: bytes) -> None:
    async with serving(body) as server:
        with pytest.raises(FetchFailed, match="larger than 100 bytes"):
            await fetcher(max_bytes=100)(f"http://x:{server.port}/")


async def test_an_endless_body_is_not_read_to_its_end() -> None:
    async def endless(stream: trio.abc.Stream, request: bytes) -> None:
        await stream.send_all(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            await stream.send_all(b"x" * 4096)

    async with serving(endless) as server:
        with pytest.raises(FetchFailed, match="larger than"):
            await fetcher(max_bytes=100_000)(f"http://x:{server.port}/")


@pytest.mark.parametrize(
    ("serve", "text"),
    [
        (answer(status="404 Not Found"), "status 404"),
        (answer(status="302 Found"), "status 302"),
        (answer(headers="content-encoding: gzip\r\n"), "compressed"),
        (b"", "broke the connection|without an answer"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 50\r\n\r\nshort", "broke the connection"),
        (b"SSH-2.0-OpenSSH_9\r\n", "broke the connection"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000, "broke the connection"),
    ],
)
async def test_answers_that_are_no_image(serve: bytes, text: str) -> None:
    async with serving(serve) as server:
        with pytest.raises(FetchFailed, match=text):
            await fetcher()(f"http://x:{server.port}/")


async def test_a_silent_name_server_is_given_up(autojump_clock: trio.testing.MockClock) -> None:
    async def resolve(host: str, port: int) -> list[str]:
        await trio.sleep_forever()
        return []

    with pytest.raises(FetchFailed, match="within 10 s"):
        await fetcher(resolve=resolve)("http://x/")


async def test_a_slow_server_is_given_up() -> None:
    async def silent(stream: trio.abc.Stream, request: bytes) -> None:
        await trio.sleep_forever()

    async with serving(silent) as server:
        with pytest.raises(FetchFailed, match=r"within 0\.2 s"):
            await fetcher(total_secs=0.2)(f"http://x:{server.port}/")


async def test_a_dead_port_is_said_without_details() -> None:
    async with serving(answer()) as server:
        port = server.port
    with pytest.raises(FetchFailed, match=r"^the image's server cannot be reached$"):
        await fetcher()(f"http://x:{port}/")


async def test_redirects_are_followed_up_to_the_limit() -> None:
    async def serve(stream: trio.abc.Stream, request: bytes) -> None:
        number = int(request.split(b"/", 2)[1].split(b" ")[0])
        await stream.send_all(answer() if number == 0 else redirect(f"/{number - 1}"))

    async with serving(serve) as server:
        assert await fetcher()(f"http://x:{server.port}/{MAX_REDIRECTS}") == IMAGE
        with pytest.raises(FetchFailed, match="redirected more than"):
            await fetcher()(f"http://x:{server.port}/{MAX_REDIRECTS + 1}")


@pytest.mark.parametrize("location", ["file:///etc/passwd", "ftp://x/", "http://user:x@x/", "http://[::1/"])
async def test_a_redirect_is_checked_like_any_url(location: str) -> None:
    async with serving(redirect(location)) as server:
        with pytest.raises(FetchFailed):
            await fetcher()(f"http://x:{server.port}/")
    assert len(server.requests) == 1


async def test_a_redirect_to_a_private_host_is_not_followed() -> None:
    names = {"public.example": "127.0.0.1", "inner.example": "127.0.0.2"}
    asked: list[str] = []

    async def resolve(host: str, port: int) -> list[str]:
        asked.append(host)
        return [names[host]]

    fetch = fetcher(resolve=resolve, allowed=lambda address: address == ipaddress.ip_address("127.0.0.1"))
    async with serving(answer()) as inner, serving(redirect(f"http://inner.example:{inner.port}/")) as outer:
        with pytest.raises(FetchFailed, match="not on the public internet"):
            await fetch(f"http://public.example:{outer.port}/")
    assert asked == ["public.example", "inner.example"]
    assert inner.requests == []


async def test_the_checked_address_is_the_one_connected_to() -> None:
    """A name server that answers otherwise the second time changes nothing: it is asked once."""
    answers = [["127.0.0.1"], ["127.0.0.2"]]

    async def resolve(host: str, port: int) -> list[str]:
        return answers.pop(0)

    async with serving(answer()) as server:
        assert await fetcher(resolve=resolve)(f"http://x:{server.port}/") == IMAGE
    assert answers == [["127.0.0.2"]]


async def test_one_private_address_among_public_ones_is_enough_to_refuse() -> None:
    async def resolve(host: str, port: int) -> list[str]:
        return ["93.184.215.14", "10.0.0.1"]

    with pytest.raises(FetchFailed, match="not on the public internet"):
        await RemoteImages(resolve=resolve)("http://x/")


@pytest.mark.parametrize(
    "url",
    [
        *("http://127.0.0.1/", "http://localhost:1/", "http://[::1]/", "http://0.0.0.0/", "http://127.1/"),
        *("http://0x7f000001/", "http://2130706433/", "http://[::ffff:127.0.0.1]/", "http://169.254.169.254/latest"),
    ],
)
async def test_this_machine_is_never_reached_by_the_system_s_resolver(url: str) -> None:
    with pytest.raises(FetchFailed, match=r"not on the public internet|not known"):
        await RemoteImages()(url)


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("http://user@x/", "user name"),
        ("http://u:p@x/", "user name"),
        ("http:///path", "no host"),
        ("http://[::1/", "not valid"),
        ("http://x:99999/", "not valid"),
        ("http://x/a b", "percent-encoded"),
        ("http://x/é", "percent-encoded"),
        ("http://" + "a" * 70 + ".example/", "not a valid name"),
        ("http://x/" + "a" * 3000, "longer than"),
        ("httpx://x/", "only http"),
    ],
)
async def test_urls_that_are_not_fetched(url: str, text: str) -> None:
    with pytest.raises(FetchFailed, match=text):
        await fetcher()(url)


async def test_header_injection_is_impossible() -> None:
    async with serving(answer()) as server:
        for url in (f"http://x:{server.port}/\r\nx: y", f"http://x:{server.port}/%0d%0ax:%20y"):
            try:
                await fetcher()(url)
            except FetchFailed:
                continue
    assert all(b"\r\nx: y" not in request for request in server.requests)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for pictures.example that nobody trusts by itself, and its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not at hand to make a certificate")
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    command = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=pictures.example"
    names = ["-addext", "subjectAltName=DNS:pictures.example", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([openssl, *command.split(), *names], check=True, capture_output=True)
    return certificate, key


def speaking_tls(certificate: tuple[Path, Path]) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)
    return context


async def test_https_reads_from_a_server_with_a_trusted_certificate_of_that_name(
    certificate: tuple[Path, Path],
) -> None:
    trusting = ssl.create_default_context(cafile=str(certificate[0]))
    async with serving(answer(), tls=speaking_tls(certificate)) as server:
        fetch = fetcher(tls=trusting)
        assert await fetch(f"https://pictures.example:{server.port}/a.png") == IMAGE
        with pytest.raises(FetchFailed, match="broke the connection"):
            await fetch(f"https://other.example:{server.port}/a.png")
    assert len(server.requests) == 1


async def test_https_without_a_trusted_certificate_is_refused(certificate: tuple[Path, Path]) -> None:
    async with serving(answer(), tls=speaking_tls(certificate)) as server:
        with pytest.raises(FetchFailed, match="broke the connection"):
            await fetcher()(f"https://pictures.example:{server.port}/")
    assert server.requests == []


@pytest.mark.parametrize(
    "text",
    [
        *("0.0.0.0", "10.1.2.3", "100.64.0.1", "100.100.100.200", "127.0.0.1", "169.254.169.254", "172.16.0.1"),
        *(
            "192.0.0.192",
            "192.0.2.1",
            "192.88.99.1",
            "192.168.1.1",
            "198.18.0.1",
            "203.0.113.1",
            "224.0.0.1",
            "233.252.0.1",
        ),
        *("224.0.0.1", "233.252.0.1", "239.1.1.1", "240.0.0.1", "255.255.255.255", "168.63.129.16"),
        *("::", "::1", "::ffff:10.0.0.1", "::7f00:1", "64:ff9b::a00:1", "64:ff9b:1::a00:1", "2002:a00:1::1"),
        *(
            "2001:0:a00:1::f5ff:fffe",
            "2001:db8::1",
            "3fff::1",
            "4000::1",
            "100::1",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "fec0::1",
            "ff02::1",
        ),
    ],
)
def test_addresses_that_are_not_public(text: str) -> None:
    assert not is_public(ipaddress.ip_address(text))


@pytest.mark.parametrize("text", ["1.1.1.1", "93.184.215.14", "2606:4700::1111", "::ffff:1.1.1.1", "64:ff9b::101:101"])
def test_addresses_that_are_public(text: str) -> None:
    address: Address = ipaddress.ip_address(text)
    assert is_public(address)
