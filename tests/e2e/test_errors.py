"""Every failure is the error envelope with the usual headers, whoever found it."""

import json
import socket
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from tests.support.answers import chat_body, check_headers, echo_body, expect_error, expect_ok, whole_text
from tests.support.server import ServerProcess

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
POSTS = [CHAT, COMPLETIONS, "/tokenize", "/detokenize"]
GETS = ["/health", "/readyz", "/health_generate", "/v1/models", "/v1/models/rv-demo"]
JSON = {"content-type": "application/json"}
MIB = 1024 * 1024


def nested(levels: int) -> bytes:
    return b'{"x":' + b"[" * levels + b"]" * levels + b"}"


BROKEN_BODIES: dict[str, tuple[bytes, int, str, str | None]] = {
    "empty": (b"", 400, "empty", None),
    "blank": (b" \r\n", 400, "empty", None),
    "cut": (b'{"model": "rv-demo"', 400, "line 1, column", None),
    "no JSON": (b"model=rv-demo", 400, "line 1, column 1", None),
    "two values": (b"{} {}", 400, "line 1, column", None),
    "trailing comma": (b'{"a": 1,}', 400, "line 1, column", None),
    "single quotes": (b"{'a': 1}", 400, "line 1, column", None),
    "array": (b"[]", 400, "JSON object", None),
    "null": (b"null", 400, "JSON object", None),
    "string": (b'"x"', 400, "JSON object", None),
    "number": (b"1e5", 400, "JSON object", None),
    "duplicate": (b'{"model": "a", "model": "b"}', 400, "twice", "model"),
    "duplicate deep": (b'{"messages": [{"role": "user", "role": "user"}]}', 400, "twice", "messages[0].role"),
    "NaN": (b'{"temperature": NaN}', 400, "NaN", "temperature"),
    "Infinity": (b'{"temperature": Infinity}', 400, "Infinity", "temperature"),
    "-Infinity": (b'{"a": [{"b": -Infinity}]}', 400, "-Infinity", "a[0].b"),
    "1e999": (b'{"temperature": 1e999}', 400, "too large", "temperature"),
    "long number": (b'{"max_tokens": ' + b"9" * 100_000 + b"}", 400, "100000 characters", "max_tokens"),
    "long fraction": (b'{"top_p": 0.' + b"9" * 100_000 + b"}", 400, "100002 characters", "top_p"),
    "surrogate": (b'{"model": "\\ud800"}', 400, "surrogate", "model"),
    "surrogate deep": (b'{"a": [1, "x\\udfff"]}', 400, "surrogate", "a[1]"),
    "surrogate name": (b'{"\\ud83d": 1}', 400, "surrogate", None),
    "invalid UTF-8": (b'{"model": "\xff"}', 400, "UTF-8", None),
    "overlong UTF-8": (b'{"model": "\xc0\x80"}', 400, "UTF-8", None),
    "UTF-8 surrogate": (b'{"model": "\xed\xa0\x80"}', 400, "UTF-8", None),
    "UTF-16": ('{"a": 1}'.encode("utf-16"), 400, "UTF-8", None),
    "NUL": (b'{"a": 1}\0', 400, "line 1, column", None),
    "deep": (nested(200), 400, "deep", None),
    "very deep": (nested(90_000), 400, "deep", None),
    "many values": (b'{"x":[' + b"[]," * 200_000 + b"[]]}", 413, "values", None),
    "many brackets": (b"[" * 200_001, 413, "values", None),
}


@pytest.mark.parametrize("name", list(BROKEN_BODIES))
def test_a_broken_body_is_named(server: ServerProcess, name: str) -> None:
    body, status, text, param = BROKEN_BODIES[name]
    for path in (CHAT, COMPLETIONS) if len(body) > 1000 else POSTS:
        error = expect_error(server.client.post(path, content=body, headers=JSON), status)
        assert text in error["message"], error
        assert error["param"] == param or name == "surrogate name"
        assert len(error["message"]) < 500
        assert error["code"] == ("invalid_json" if status == 400 else "request_too_large")


def test_strange_but_valid_bodies_are_read(server: ServerProcess) -> None:
    body = echo_body("7")
    for data in (
        b"\xef\xbb\xbf" + json.dumps(body).encode(),
        b"\r\n\t " + json.dumps(body, indent=3).encode() + b"\n",
        json.dumps({**body, "x": [[[]], {}, ",[{" * 1000]}).encode(),
        json.dumps({**body, "\u0000": "\u0000", "x": 10**300, "y": 1e-400, "z": -0.0}).encode(),
        json.dumps({**body, "text": ",[{" * 200_000}).encode(),
    ):
        assert whole_text(expect_ok(server.client.post(CHAT, content=data, headers=JSON))) == "7"


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize(
    "kind", [None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "x", "json"]
)
def test_other_content_types(server: ServerProcess, path: str, kind: str | None) -> None:
    headers = {"connection": "close", **({} if kind is None else {"content-type": kind})}
    expect_error(server.client.post(path, content=b"{}", headers=headers), 415, "unsupported_media_type")


@pytest.mark.parametrize("path", [*POSTS, *GETS])
def test_other_methods_say_which_are_allowed(server: ServerProcess, path: str) -> None:
    right = {"POST"} if path in POSTS else {"GET", "HEAD"}
    for method in {"GET", "POST", "PUT", "PATCH", "DELETE"} - right:
        reply = server.client.request(method, path)
        expect_error(reply, 405, "method_not_allowed")
        assert right <= set(reply.headers["allow"].split(", "))
    reply = server.client.options(path)
    assert reply.status_code == 200
    assert right <= set(reply.headers["allow"].split(", "))
    assert reply.content == b""
    check_headers(reply)


@pytest.mark.parametrize(
    "path",
    [
        *("/", "/nope", "/v1", "/v1/", "/v1/models/", "/health/", "//health", "/v1//models", "/v1/chat/completions/"),
        *(
            "/%ff",
            "/%00",
            "/../../etc/passwd",
            "/static/x",
            "/v1/chat",
            "/V1/models",
            "/health%0d%0ax: y",
            "/nope?x=%ff",
        ),
        "/" + "a" * 20_000,
    ],
)
def test_unknown_paths(server: ServerProcess, path: str) -> None:
    for method in ("GET", "POST"):
        error = expect_error(server.client.request(method, path), 404, "unknown_url")
        assert method in error["message"]


def test_head_has_the_headers_of_get_and_no_body(server: ServerProcess) -> None:
    for path, status in (("/health", 200), ("/v1/models", 200), ("/nope", 404), ("/v1/models/nope", 404)):
        head, get = server.client.head(path), server.client.get(path)
        assert head.status_code == get.status_code == status
        assert head.content == b""
        assert head.headers["content-type"] == "application/json"
        check_headers(head)


class TestRequestId:
    ASKS: tuple[tuple[str, Callable[[httpx.Client, dict[str, str]], httpx.Response]], ...] = (
        ("200", lambda client, headers: client.get("/health", headers=headers)),
        ("404", lambda client, headers: client.get("/nope", headers=headers)),
        ("405", lambda client, headers: client.post("/health", headers=headers)),
        ("400", lambda client, headers: client.post(CHAT, content=b"{", headers={**JSON, **headers})),
        ("415", lambda client, headers: client.post(CHAT, content=b"{}", headers=headers)),
        ("chat", lambda client, headers: client.post(CHAT, json=echo_body("1"), headers=headers)),
        ("stream", lambda client, headers: client.post(CHAT, json=echo_body("1", stream=True), headers=headers)),
    )

    @pytest.mark.parametrize(("name", "ask"), ASKS, ids=[name for name, _ in ASKS])
    def test_is_echoed_or_made(
        self, server: ServerProcess, name: str, ask: Callable[[httpx.Client, dict[str, str]], httpx.Response]
    ) -> None:
        for sent in ("abc-1", "x" * 128, "!#$%&'*+-.^_`|~"):
            assert ask(server.client, {"x-request-id": sent}).headers.get_list("x-request-id") == [sent]
        made = [ask(server.client, {}).headers["x-request-id"] for _ in range(2)]
        assert made[0] != made[1]
        for unusable in ("", "x" * 129, "a b", "tab\there"):
            got = ask(server.client, {"x-request-id": unusable}).headers["x-request-id"]
            assert got
            assert got != unusable


class TestTooLarge:
    def test_declared(self, server: ServerProcess) -> None:
        """Refused by the head alone: the body is never sent."""
        for length in (50 * MIB + 1, 10**15):
            head = (
                f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
                f"content-length: {length}\r\nx-request-id: big-1\r\n\r\n"
            )
            reply = raw_exchange(server, head.encode())
            expect_error(reply, 413, "request_too_large")

    def test_chunked(self, server: ServerProcess) -> None:
        def pieces() -> Any:
            yield b'{"x": "'
            for _ in range(51):
                yield b"a" * MIB
            yield b'"}'

        with httpx.Client(base_url=server.url, timeout=60, trust_env=False) as client:
            reply = client.post(CHAT, content=pieces(), headers=JSON)
        expect_error(reply, 413, "request_too_large")

    def test_just_below_is_read(self, server: ServerProcess) -> None:
        body = echo_body("3")
        room = 50 * MIB - len(json.dumps({**body, "x": ""}).encode())
        data = json.dumps({**body, "x": "a" * room}).encode()
        assert len(data) == 50 * MIB
        assert whole_text(expect_ok(server.client.post(CHAT, content=data, headers=JSON))) == "3"


def raw_exchange(server: ServerProcess, request: bytes) -> httpx.Response:
    """Send bytes as they are and read one answer until its declared end or the end of the connection."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(request)
        data = b""
        while b"\r\n\r\n" not in data:
            piece = connection.recv(65536)
            assert piece, data
            data += piece
        head, _, body = data.partition(b"\r\n\r\n")
        status, *lines = head.decode("latin-1").split("\r\n")
        headers = httpx.Headers([tuple(line.split(": ", 1)) for line in lines])
        while len(body) < int(headers.get("content-length", 0)):
            piece = connection.recv(65536)
            assert piece, data
            body += piece
    return httpx.Response(int(status.split()[1]), headers=headers, content=body)


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GARBAGE\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nhost: x\r\nbad header\r\n\r\n", 400),
        (b"GET /health HTTP/1.1\r\nhost: x\r\nx: " + b"a" * 200_000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/3.7\r\nhost: x\r\n\r\n", 505),
        (b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n", 400),
    ],
)
def test_what_is_no_request_gets_the_envelope_too(server: ServerProcess, request_bytes: bytes, status: int) -> None:
    reply = raw_exchange(server, request_bytes)
    assert reply.status_code in (status, 400)
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert reply.headers["x-server"] == "rustedvino"
    assert reply.headers["x-api-version"] == "1"


def test_the_model_is_looked_at_before_the_messages_are_read(server: ServerProcess) -> None:
    error = expect_error(server.post(CHAT, chat_body("nope", "x")), 404, "model_not_found", "model")
    assert "nope" in error["message"]
    error = expect_error(server.post(CHAT, chat_body("x" * 512, "x")), 404, "model_not_found", "model")
    assert len(error["message"]) < 2000
    expect_error(server.post(CHAT, chat_body("x" * 513, "x")), 400, param="model")


def test_after_all_that_a_good_request_works(server: ServerProcess) -> None:
    assert whole_text(expect_ok(server.post(CHAT, echo_body("2")))) == "2"
