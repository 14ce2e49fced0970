"""What a web page can do to a running server: nothing, unless its origin is allowed."""

import re
import socket
from collections.abc import Iterator

import pytest

from tests.support.answers import chat_body, expect_error, expect_ok
from tests.support.server import ServerProcess

PAGE = "https://chat.example.com"
STRANGER = "https://evil.example"
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def keyless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("keyless")
    models = {"rv-demo": {"load": "on_demand"}}
    with ServerProcess.serving(folder, models, spare_workers=0, cors_allowed_origins=[PAGE]) as server:
        yield server


def statuses(server: ServerProcess, *lines: str) -> list[int]:
    """The statuses of the answers to one request of these lines, sent as they are."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(("\r\n".join([*lines, "connection: close"]) + "\r\n\r\n").encode())
        found = b""
        while piece := connection.recv(65536):
            found += piece
    return [int(status) for status in re.findall(rb"HTTP/1\.[01] (\d+) ", found)]


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/metrics", "/v1/admin/models", "/nope"])
def test_a_foreign_host_is_refused(keyless: ServerProcess, path: str) -> None:
    port = keyless.port
    for host in ("evil.example", f"evil.example:{port}", f"127.0.0.1.evil.example:{port}", f"0.0.0.0:{port}", ""):
        assert statuses(keyless, f"GET {path} HTTP/1.1", f"host: {host}") == [403], host
    expect_error(keyless.client.get(path, headers={"host": "evil.example"}), 403, "host_not_allowed")
    usual = 404 if path == "/nope" else 200
    for host in (f"localhost:{port}", "LocalHost", f"127.0.0.1:{port}", "127.1.2.3", f"[::1]:{port}", "localhost:8080"):
        assert statuses(keyless, f"GET {path} HTTP/1.1", f"host: {host}") == [usual], host
    assert statuses(keyless, f"GET {path} HTTP/1.0") == [usual]


def test_admin_routes_refuse_pages_however_their_path_is_written(keyless: ServerProcess) -> None:
    for path in ("/v1/admin/models", "/v1/%61dmin/models", "/metrics", "/%6Detrics", "/metrics?x=1"):
        for origin in (STRANGER, PAGE, "null", keyless.url):
            reply = keyless.client.get(path, headers={"origin": origin})
            expect_error(reply, 403, "browser_origin_refused")
            assert "access-control-allow-origin" not in reply.headers
        assert keyless.client.get(path).status_code == 200
    for path in ("/V1/admin/models", "//v1/admin/models", "/v1//admin/models", "/v1/admin%2fmodels/", "/metrics/"):
        assert keyless.client.get(path, headers={"origin": STRANGER}).status_code in (403, 404)
    reply = keyless.client.post("/v1/admin/models/rv-demo/load", headers={"origin": STRANGER})
    expect_error(reply, 403, "browser_origin_refused")
    assert keyless.client.get("/v1/models/rv-demo").json()["state"] == "not_loaded"


def test_an_allowed_page_can_chat(keyless: ServerProcess) -> None:
    preflight = keyless.client.options(
        CHAT,
        headers={
            "origin": PAGE,
            "access-control-request-method": "POST",
            "access-control-request-headers": "authorization, content-type, x-stainless-os",
        },
    )
    assert preflight.status_code == 204
    assert preflight.content == b""
    assert preflight.headers["access-control-allow-origin"] == PAGE
    assert "x-stainless-os" in preflight.headers["access-control-allow-headers"]
    assert "access-control-allow-credentials" not in preflight.headers

    body = {"prompt": "Hello"}
    reply = keyless.post("/tokenize", body, headers={"origin": PAGE})
    expect_ok(reply)
    assert reply.headers["access-control-allow-origin"] == PAGE
    assert "x-request-id" in reply.headers["access-control-expose-headers"]
    assert "Origin" in reply.headers["vary"]
    # Streams, and errors of every kind, too.
    for reply in (
        keyless.post(CHAT, chat_body("rv-demo", "x", stream=True, max_tokens=1), headers={"origin": PAGE}),
        keyless.post(CHAT, chat_body("nope", "x"), headers={"origin": PAGE}),
        keyless.client.put(CHAT, headers={"origin": PAGE}),
        keyless.client.get("/nope", headers={"origin": PAGE}),
    ):
        assert reply.headers["access-control-allow-origin"] == PAGE


def test_another_page_can_not(keyless: ServerProcess) -> None:
    asked = {"origin": STRANGER, "access-control-request-method": "POST"}
    for reply in (
        keyless.client.options(CHAT, headers=asked),
        keyless.client.get("/v1/models", headers={"origin": STRANGER}),
    ):
        assert not [name for name in reply.headers if name.startswith("access-control-")]
    for kind in ("text/plain", "multipart/form-data; boundary=x", "application/x-www-form-urlencoded"):
        reply = keyless.client.post(CHAT, content=b"{}", headers={"origin": STRANGER, "content-type": kind})
        expect_error(reply, 403, "browser_origin_refused")


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/v1/none", ["host: localhost"], 404),
        ("/v1/none", ["host: localhost", f"origin: {PAGE}"], 404),
        ("/v1/none", ["host: localhost", f"origin: {STRANGER}"], 403),
        ("/v1/none", ["host: localhost", "origin: null"], 403),
        ("/v1/none", ["host: localhost", "origin: http://localhost"], 403),
        ("/v1/none", ["host: evil.example", f"origin: {PAGE}"], 403),
        ("/v1/admin/models", ["host: localhost"], 400),
        ("/v1/admin/models", ["host: localhost", f"origin: {PAGE}"], 403),
        ("/metrics", ["host: localhost", "sec-fetch-site: cross-site"], 403),
    ],
)
def test_websockets(keyless: ServerProcess, path: str, headers: list[str], status: int) -> None:
    handshake = (
        f"GET {path} HTTP/1.1",
        "upgrade: websocket",
        "sec-websocket-version: 13",
        "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
        "connection: upgrade",
    )
    with socket.create_connection(("127.0.0.1", keyless.port), timeout=20) as connection:
        connection.sendall(("\r\n".join([*handshake, *headers]) + "\r\n\r\n").encode())
        found = b""
        while piece := connection.recv(65536):
            found += piece
    assert found.startswith(f"HTTP/1.1 {status} ".encode())
    assert b'"code":"' in found
