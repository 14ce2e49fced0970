"""Keys, from their file to every answer of a running server, and that nothing it writes shows one."""

import json
import re
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from rustedvino import __version__
from tests.support.answers import expect_error, expect_ok
from tests.support.server import ServerProcess, write_config

USER = "user-key-5f0a9c41d7e2aa"
OTHER = "other-key-77be10c3aa58bb"
ADMIN = "admin-key-0d3c91f6be74cc"
CHAT = "/v1/chat/completions"
RELOAD = "/v1/admin/keys/reload"
MODELS = {"rv-demo": {"load": "on_demand"}}
MIB = 1024 * 1024


def write_keys(folder: Path, name: str = "config.keys.json", mode: int = 0o600, **lists: Any) -> Path:
    path = folder / name
    path.write_text(json.dumps(lists or {"api_keys": [USER, OTHER], "admin_api_keys": [ADMIN]}))
    path.chmod(mode)
    return path


def serving(folder: Path, **settings: Any) -> ServerProcess:
    return ServerProcess.serving(folder, MODELS, spare_workers=0, **settings)


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("keyed")
    write_keys(folder)
    with serving(folder) as server:
        yield server


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def raw(server: ServerProcess, data: bytes, bound_secs: float = 20) -> bytes:
    """What comes back for these bytes until the end of the first body."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=bound_secs) as connection:
        connection.sendall(data)
        found = b""
        while b"\r\n\r\n" not in found or b"}" not in found.partition(b"\r\n\r\n")[2]:
            piece = connection.recv(65536)
            if not piece:
                break
            found += piece
        return found


def test_gates(keyed: ServerProcess) -> None:
    client = keyed.client
    for path in ("/health", "/readyz"):
        assert client.get(path).status_code == 200
    for path in ("/v1/models", "/health_generate", "/metrics", "/v1/admin/models", "/nope", "//health"):
        for headers in ({}, bearer("wrong")):
            reply = client.get(path, headers=headers)
            expect_error(reply, 401, "invalid_api_key")
            assert reply.headers["www-authenticate"] == "Bearer"
    expect_ok(client.get("/v1/models", headers=bearer(USER)))
    expect_ok(client.get("/v1/models", headers={"x-api-key": OTHER}))
    for path in ("/metrics", "/v1/admin/models", "/v1/%61dmin/models"):
        expect_error(client.get(path, headers=bearer(USER)), 403, "insufficient_scope")
    server = expect_ok(client.get("/v1/admin/models", headers=bearer(ADMIN)))["server"]
    assert server["host"] == socket.gethostname()
    for path in ("/metrics", "/v1/models"):
        reply = client.get(path, headers=bearer(ADMIN))
        assert reply.status_code == 200
        assert reply.headers["x-server-version"] == __version__
        assert reply.headers["x-ruvi-host"] == socket.gethostname()


def test_the_openai_client(keyed: ServerProcess) -> None:
    def client(key: str) -> openai.OpenAI:
        http = httpx.Client(trust_env=False)
        return openai.OpenAI(base_url=f"{keyed.url}/v1", api_key=key, max_retries=0, http_client=http)

    with client(USER) as right, client("wrong") as wrong:
        assert [model.id for model in right.models.list()] == ["rv-demo"]
        with pytest.raises(openai.AuthenticationError) as caught:
            wrong.models.list()
        assert caught.value.code == "invalid_api_key"


def test_a_key_is_asked_for_before_the_body_is_read(keyed: ServerProcess) -> None:
    """The answer comes although not a byte of the body was sent, and it is about the key, not about the body."""
    for length, kind in ((49 * MIB, "application/json"), (10, "text/plain")):
        head = (
            f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: {kind}\r\ncontent-length: {length}\r\n"
            f"authorization: Bearer wrong\r\n\r\n"
        )
        assert raw(keyed, head.encode()).startswith(b"HTTP/1.1 401 ")


def test_each_request_of_a_connection_shows_its_own_key(keyed: ServerProcess) -> None:
    request = "GET /v1/models HTTP/1.1\r\nhost: x\r\n{}\r\n"
    keys = [USER, "wrong", "", ADMIN]
    headers = [f"authorization: Bearer {key}\r\n" if key else "" for key in keys]
    last = "GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    with socket.create_connection(("127.0.0.1", keyed.port), timeout=20) as connection:
        connection.sendall("".join([*map(request.format, headers), last]).encode())
        found = b""
        while piece := connection.recv(65536):
            found += piece
    assert re.findall(rb"HTTP/1\.1 (\d+) ", found) == [b"200", b"401", b"401", b"200", b"200"]


def websocket_handshake(path: str, *headers: str) -> bytes:
    lines = [
        f"GET {path} HTTP/1.1",
        "host: localhost",
        "upgrade: websocket",
        "connection: Upgrade",
        "sec-websocket-version: 13",
        "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
        *headers,
    ]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def test_a_websocket_without_a_key_is_refused(keyed: ServerProcess) -> None:
    for headers in ((), ("authorization: Bearer wrong",), ("sec-websocket-protocol: realtime",)):
        answer = raw(keyed, websocket_handshake("/v1/realtime?model=x", *headers))
        assert answer.startswith(b"HTTP/1.1 401 ")
        assert b'"code":"invalid_api_key"' in answer
        assert b"x-request-id:" in answer.lower()
    answer = raw(keyed, websocket_handshake("/v1/none", f"sec-websocket-protocol: x, openai-insecure-api-key.{USER}"))
    assert answer.startswith(b"HTTP/1.1 404 ")
    assert b'"code":"unknown_url"' in answer


# Reload.


def test_reload(tmp_path: Path) -> None:
    write_keys(tmp_path)
    with serving(tmp_path) as server:
        client = server.client
        client.headers.update(bearer(ADMIN))
        status = {"status": "ok", "api_keys": 2, "admin_api_keys": 1, "warnings": []}
        assert expect_ok(client.post(RELOAD)) == status
        expect_error(client.post(RELOAD, headers=bearer(USER)), 403, "insufficient_scope")
        assert client.get(RELOAD).status_code == 405

        path = write_keys(tmp_path, api_keys=["fresh-key-c1d2e3f4a5b6"], admin_api_keys=[ADMIN])
        assert client.get("/v1/models", headers=bearer(USER)).status_code == 200  # not before it is asked for
        assert expect_ok(client.post(RELOAD))["api_keys"] == 1
        assert client.get("/v1/models", headers=bearer(USER)).status_code == 401
        assert client.get("/v1/models", headers=bearer("fresh-key-c1d2e3f4a5b6")).status_code == 200

        for broken in ('{"api_keys": ["secret-of-a-broken-file"', '{"api_key": ["secret-of-a-broken-file"]}', "{}"):
            path.write_text(broken)
            error = expect_error(client.post(RELOAD), 409, "keys_invalid")
            assert str(path) in error["message"]
            assert "kept" in error["message"]
            assert client.get("/v1/models", headers=bearer("fresh-key-c1d2e3f4a5b6")).status_code == 200
        path.unlink()
        error = expect_error(client.post(RELOAD), 409, "keys_file_missing")
        assert str(path) in error["message"]
        assert client.get("/v1/models").status_code == 200
        assert client.get("/v1/models", headers={"authorization": ""}).status_code == 401

        path = write_keys(tmp_path, mode=0o644)
        (warning,) = expect_ok(client.post(RELOAD))["warnings"]
        assert "read by other users" in warning
        server.wait_log("read by other users")
        assert "secret-of-a-broken-file" not in server.log


def test_keys_may_come_to_a_server_without(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        expect_error(server.client.post(RELOAD), 409, "keys_file_missing")
        assert server.client.get("/v1/admin/models").status_code == 200
        write_keys(tmp_path)
        expect_ok(server.client.post(RELOAD))
        expect_error(server.client.get("/v1/admin/models"), 401, "invalid_api_key")
        expect_ok(server.client.get("/v1/admin/models", headers=bearer(ADMIN)))


# The start.


def refused_start(folder: Path, *arguments: str, **settings: Any) -> str:
    config = write_config(folder, MODELS, **settings)
    found = subprocess.run(
        [sys.executable, "-m", "rustedvino.server", "--config", str(config), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert found.returncode != 0
    assert found.stdout == ""
    assert "Traceback" not in found.stderr
    return found.stderr


def test_a_broken_keys_file_is_no_start(tmp_path: Path) -> None:
    for content in ("", "{", "{}", f'{{"api_keys": [], "{USER}": 1}}', f'{{"api_keys": "{USER}"}}'):
        (tmp_path / "config.keys.json").write_text(content)
        for arguments in ((), ("--check-config",)):
            told = refused_start(tmp_path, *arguments)
            assert str(tmp_path / "config.keys.json") in told
            assert USER not in told


def test_keys_in_the_config_are_told_where_to_go(tmp_path: Path) -> None:
    told = refused_start(tmp_path, admin_api_keys=[ADMIN])
    assert "config.keys.json" in told
    assert ADMIN not in told


def test_no_public_address_without_keys(tmp_path: Path) -> None:
    for address in ("0.0.0.0", "::", "192.168.77.1"):
        assert "no keys file" in refused_start(tmp_path, bind_addr=address)
        assert "no keys file" in refused_start(tmp_path, "--bind-addr", address)
    write_keys(tmp_path)
    with serving(tmp_path, bind_addr="0.0.0.0") as server:
        expect_error(server.client.get("/v1/models", headers={"host": "box.lan"}), 401)
        expect_ok(server.client.get("/v1/models", headers={"host": "box.lan", **bearer(USER)}))


def test_a_public_address_without_keys_if_allowed(tmp_path: Path) -> None:
    with serving(tmp_path, bind_addr="0.0.0.0", allow_insecure_public_bind=True) as server:
        expect_ok(server.client.get("/v1/models", headers={"host": "box.lan"}))
        expect_ok(server.client.get("/v1/admin/models"))
        expect_error(server.client.get("/v1/admin/models", headers={"host": "box.lan"}), 403, "insufficient_scope")


def test_a_file_that_others_may_read_is_warned_of_and_another_name_works(tmp_path: Path) -> None:
    path = write_keys(tmp_path, "elsewhere.json", 0o604)
    assert stat.S_IMODE(path.stat().st_mode) == 0o604
    write_keys(tmp_path, api_keys=[OTHER])
    with serving(tmp_path, keys_file="elsewhere.json") as server:
        server.wait_log(r"elsewhere\.json.*read by other users.*0604.*0600")
        expect_ok(server.client.get("/v1/models", headers=bearer(USER)))
        expect_ok(server.client.get("/v1/models", headers=bearer(ADMIN)))


# Nothing that is written shows a key.


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_no_key_is_ever_written(tmp_path: Path, log_format: str) -> None:
    wrong = "wrong-key-e81b7d20c94fdd"
    secrets = (USER, OTHER, ADMIN, wrong)
    write_keys(tmp_path, mode=0o644)
    written: list[str] = []

    def ask(method: str, path: str, **options: Any) -> None:
        reply = server.client.request(method, path, **options)
        written.append(f"{reply.status_code} {reply.headers} {reply.text}")

    with serving(tmp_path, log_level="debug", log_format=log_format, cors_allowed_origins=["https://a.b"]) as server:
        for key in secrets:
            for headers in (
                bearer(key),
                {"x-api-key": key},
                {"authorization": key},
                {"authorization": f"Basic {key}"},
                {"authorization": f"Bearer  {key} x"},
                {"cookie": f"api_key={key}"},
                {"api-key": key},
                {"proxy-authorization": f"Bearer {key}"},
                {"referer": f"http://localhost/?api_key={key}"},
                {"user-agent": key},
                {"origin": "https://a.b", **bearer(key)},
            ):
                for method, path in (
                    ("GET", "/health"),
                    ("GET", "/v1/models"),
                    ("GET", "/nope"),
                    ("POST", CHAT),
                    ("GET", "/metrics"),
                    ("GET", "/v1/admin/models"),
                    ("POST", RELOAD),
                ):
                    ask(method, path, headers=headers)
            ask("GET", f"/v1/models?api_key={key}")
            ask("GET", f"/v1/models?token={key}", headers=bearer(USER))
            ask("GET", f"/v1/admin/logs/tail?lines={key}")
            ask("POST", f"{CHAT}?key={key}", json={"model": "rv-demo", "api_key": key}, headers=bearer(USER))
            ask("POST", CHAT, json={"api_key": key, "messages": 1}, headers=bearer(USER))
            ask(
                "POST",
                CHAT,
                content=f'{{"api_key": "{key}"',
                headers={"content-type": "application/json", **bearer(USER)},
            )
            ask("POST", RELOAD, json={"api_keys": [key]}, headers=bearer(ADMIN))
            ask("GET", "/v1/models", extensions={"target": f"http://u:{key}@localhost/v1/models".encode()})
            written.append(raw(server, websocket_handshake("/x", f"authorization: Bearer {key}")).decode())
            written.append(
                raw(
                    server, websocket_handshake("/x", f"sec-websocket-protocol: openai-insecure-api-key.{key}")
                ).decode()
            )
            written.append(
                raw(server, f"GET /health HTTP/1.1\r\nhost: x\r\nx api key: {key}\r\n\r\n".encode()).decode()
            )
            bad_value = f"GET /health HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\x01\r\n\r\n".encode()
            written.append(raw(server, bad_value).decode())
            bad_chunk = f"POST /x HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n{key}\r\n".encode()
            written.append(raw(server, bad_chunk).decode())
            written.append(raw(server, f"GARBAGE {key}\r\n\r\n".encode()).decode())
        # A path is written to the log; there what the server knows as a key is masked.
        for key in (USER, ADMIN):
            server.client.get(f"/v1/models/{key}", headers=bearer(USER))
        metrics = server.client.get("/metrics", headers=bearer(ADMIN)).text
        assert f'rustedvino_key_usage_total{{key_suffix="{USER[-6:]}"}}' in metrics
        assert wrong[-6:] not in metrics
        written.append(metrics)
        tail = server.client.get("/v1/admin/logs/tail?lines=10000", headers=bearer(ADMIN)).text
        assert "/v1/models" in tail
        written.append(tail)
        server.stop()
        written.append(server.log)
    for text in written:
        for key in secrets:
            assert key not in text, text[:2000]
