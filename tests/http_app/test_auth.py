"""Who may ask what, on every route of the real application."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from quart import Response, websocket
from quart.testing.connections import WebsocketResponseError
from quart_trio import QuartTrio
from werkzeug.datastructures import Headers

from rustedvino import __version__
from rustedvino.config.keys import ApiKey, KeyRing, KeySet
from rustedvino.config.types import ServerSettings
from rustedvino.http.app import create_app
from rustedvino.http.auth import gate_of, is_local_host
from rustedvino.http.context import ServerContext
from rustedvino.http.cors import OriginPolicy, browser_form
from rustedvino.hub.hub import Hub

USER = "user-key-5f0a9c41d7e2"
ADMIN = "admin-key-0d3c91f6be74"
KEYS = KeySet((ApiKey(USER), ApiKey(ADMIN, admin=True)))
PAGE = "https://chat.example.com"
STRANGER = "https://evil.example"
OPEN = {"/health", "/readyz"}


def make_app(keys: KeySet | None = None, **changes: Any) -> QuartTrio:
    """The whole application of a server without models."""
    plain = ServerSettings(models_dir=Path("/nonexistent"), device="CPU", total_vram_gb=0, spare_workers=0)
    settings = attrs.evolve(plain, **changes)
    app = create_app(ServerContext(settings, Hub(settings), "unknown", keys=KeyRing(Path("/k"), keys)))

    @app.websocket("/v1/test-socket")
    async def socket() -> None:
        await websocket.accept()
        await websocket.send("hello")

    return app


async def ask(app: QuartTrio, method: str, path: str, headers: Any = None, **scope: Any) -> Response:
    return await app.test_client().open(path, method=method, headers=Headers(headers or {}), scope_base=scope)


async def refused(reply: Any) -> str:
    """The code of an error answer, which must be complete."""
    body = json.loads(await reply.get_data())
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert reply.headers["content-type"] == "application/json"
    for name in ("x-request-id", "x-server", "x-api-version"):
        assert name in reply.headers
    return body["error"]["code"]


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def routes(app: QuartTrio) -> Iterator[tuple[str, str]]:
    """Method and path of everything that is served, variables filled in."""
    for rule in app.url_map.iter_rules():
        if rule.websocket:
            continue
        path = "/".join("x" if part.startswith("<") else part for part in rule.rule.split("/"))
        for method in sorted(rule.methods or ()):
            yield method, path


# Keys.


async def test_no_route_but_two_answers_without_a_key():
    app = make_app(KEYS)
    found = list(routes(app))
    assert len(found) > 40
    assert {path for _, path in found} >= OPEN | {"/metrics", "/v1/models", "/v1/admin/models", "/v1/admin/keys/reload"}
    for method, path in found:
        for headers in ({}, bearer("wrong"), {"x-api-key": "wrong"}, {"authorization": f"Basic {USER}"}):
            reply = await ask(app, method, path, headers)
            if path in OPEN:
                assert reply.status_code != 401, (method, path)
                continue
            assert reply.status_code == 401, (method, path)
            assert reply.headers["www-authenticate"] == "Bearer"
            assert await refused(reply) == "invalid_api_key" or method == "HEAD"


async def test_admin_routes_are_closed_to_inference_keys_and_others_open():
    app = make_app(KEYS)
    for method, path in routes(app):
        reply = await ask(app, method, path, bearer(USER))
        if path == "/metrics" or path.startswith("/v1/admin/"):
            assert reply.status_code == 403, (method, path)
            assert method == "HEAD" or await refused(reply) == "insufficient_scope"
        else:
            assert reply.status_code not in (401, 403), (method, path)


async def test_admin_keys_open_everything():
    app = make_app(KEYS)
    for method, path in routes(app):
        if path.startswith("/v1/admin/") and method != "OPTIONS":
            continue  # these need a running server; what is open is seen by their answers to OPTIONS
        reply = await ask(app, method, path, bearer(ADMIN))
        assert reply.status_code not in (401, 403), (method, path)


async def test_admin_blueprints_have_a_gate_of_their_own():
    """Should the gate of the path ever miss a route, its own hook refuses."""
    app = make_app(KEYS)
    app.before_request_funcs[None].clear()
    for path in ("/metrics", "/v1/admin/models", "/v1/admin/logs/tail"):
        assert await refused(await ask(app, "GET", path, bearer(ADMIN))) == "insufficient_scope"
    assert await refused(await ask(app, "POST", "/v1/admin/keys/reload")) == "insufficient_scope"


async def test_without_a_key_nobody_learns_which_routes_there_are():
    app = make_app(KEYS)
    for method, path in (
        ("GET", "/nope"),
        ("PUT", "/v1/models"),
        ("GET", "/health/"),
        ("GET", "/"),
    ):
        assert await refused(await ask(app, method, path)) == "invalid_api_key"
    assert await refused(await ask(app, "GET", "/nope", bearer(USER))) == "unknown_url"
    assert await refused(await ask(app, "PUT", "/v1/models", bearer(USER))) == "method_not_allowed"
    assert await refused(await ask(app, "GET", "/v1/admin/nope", bearer(USER))) == "insufficient_scope"
    assert await refused(await ask(app, "GET", "/v1/admin/nope", bearer(ADMIN))) == "unknown_url"


@pytest.mark.parametrize(
    ("headers", "opens"),
    [
        ([("authorization", f"Bearer {USER}")], True),
        ([("Authorization", f"bearer {USER}")], True),
        ([("authorization", f"  BEARER   {USER}  ")], True),
        ([("x-api-key", USER)], True),
        ([("X-API-Key", f" {USER} ")], True),
        ([("authorization", "Bearer wrong"), ("x-api-key", USER)], True),
        ([("authorization", "Basic dXNlcjpwYXNz"), ("x-api-key", USER)], True),
        ([("authorization", f"Bearer {ADMIN}")], True),
        ([("authorization", USER)], False),
        ([("authorization", "Bearer")], False),
        ([("authorization", "Bearer ")], False),
        ([("authorization", f"Token {USER}")], False),
        ([("authorization", f"Bearer {USER} {USER}")], False),
        ([("authorization", f"Bearer {USER},")], False),
        ([("authorization", f"Bearer {USER.upper()}")], False),
        ([("authorization", "Bearer wrong"), ("authorization", f"Bearer {USER}")], False),
        ([("x-api-key", USER), ("x-api-key", USER)], False),
        ([("x-api-key", f"{USER}, {USER}")], False),
        ([("x-api-key", "")], False),
        ([("api-key", USER)], False),
        ([("cookie", f"api_key={USER}")], False),
        ([("x-api-key", "ÿ" * 20)], False),
    ],
)
async def test_where_a_key_is_looked_for(headers, opens):
    reply = await ask(make_app(KEYS), "GET", "/v1/models", headers)
    assert reply.status_code == (200 if opens else 401)


@pytest.mark.parametrize("path", ["/v1/models?api_key=", "/v1/models?key=", "/v1/models?authorization=Bearer%20"])
async def test_a_key_in_a_url_opens_nothing(path):
    reply = await ask(make_app(KEYS), "GET", path + USER)
    assert await refused(reply) == "invalid_api_key"
    assert USER not in (await reply.get_data()).decode()


@pytest.mark.parametrize(
    ("key", "host", "version"),
    [(None, False, False), ("wrong", False, False), (USER, True, False), (ADMIN, True, True)],
)
async def test_what_is_told_about_the_server_depends_on_the_key(key, host, version):
    app = make_app(KEYS)
    for path in ("/health", "/v1/models", "/nope", "/metrics"):
        reply = await ask(app, "GET", path, {} if key is None else bearer(key))
        assert ("x-ruvi-host" in reply.headers) == host, path
        assert reply.headers.get("x-server-version") == (__version__ if version else None), path


async def test_a_server_without_keys_tells_nothing_about_itself():
    app = make_app()
    for path in ("/health", "/v1/models", "/metrics"):
        for headers in ({}, bearer(ADMIN)):
            reply = await ask(app, "GET", path, headers)
            assert reply.status_code == 200
            assert "x-ruvi-host" not in reply.headers
            assert "x-server-version" not in reply.headers


async def test_the_use_of_a_key_is_told_once_for_each_request():
    app = make_app(KEYS)
    used: list[str] = []
    app.extensions["rustedvino"].keys.on_use(used.append)
    await ask(app, "GET", "/v1/models", bearer(USER))
    await ask(app, "GET", "/v1/models", bearer("wrong"))
    await ask(app, "GET", "/metrics", {"x-api-key": ADMIN})
    assert used == [USER, ADMIN]


@settings(max_examples=100, deadline=None)
@given(st.text(st.sampled_from("/v1admin.metrcshal%2 \x00é"), max_size=30))
def test_every_path_has_a_gate_and_only_two_are_open(path):
    assert (gate_of("/" + path) == "open") == ("/" + path in OPEN)
    assert gate_of("/v1/admin/" + path) == "admin"
    assert gate_of("/metrics/" + path) == "admin"


# Web pages and a server without keys.


def admin_routes(app: QuartTrio) -> list[tuple[str, str]]:
    return [(method, path) for method, path in routes(app) if path == "/metrics" or path.startswith("/v1/admin/")]


@pytest.mark.parametrize("origin", [STRANGER, PAGE, "null", "", "http://localhost:11437", "http://127.0.0.1"])
async def test_no_page_may_administer_a_server_without_keys(origin):
    app = make_app(cors_allowed_origins=(PAGE,))
    found = admin_routes(app)
    assert len(found) > 30
    for method, path in found:
        preflight = {"access-control-request-method": "POST"} if method == "OPTIONS" else {}
        reply = await ask(app, method, path, {"origin": origin, **preflight})
        assert reply.status_code == 403, (method, path)
        assert method == "HEAD" or await refused(reply) == "browser_origin_refused"
        assert not [name for name in reply.headers if name[0].lower().startswith("access-control")]


@pytest.mark.parametrize("site", ["cross-site", "same-site", "same-origin"])
async def test_nor_may_one_that_hides_its_origin(site):
    reply = await ask(make_app(), "GET", "/metrics", {"sec-fetch-site": site})
    assert await refused(reply) == "browser_origin_refused"


async def test_local_tools_may():
    app = make_app()
    for headers in ({}, {"sec-fetch-site": "none"}):
        assert (await ask(app, "GET", "/metrics", headers)).status_code == 200
        assert (await ask(app, "GET", "/v1/admin/logs/tail", headers)).status_code == 200


async def test_with_keys_an_origin_says_nothing():
    app = make_app(KEYS)
    assert (await ask(app, "GET", "/metrics", {"origin": STRANGER, **bearer(ADMIN)})).status_code == 200
    assert await refused(await ask(app, "GET", "/metrics", {"origin": STRANGER})) == "invalid_api_key"


@pytest.mark.parametrize(
    "kind",
    [
        None,
        "text/plain",
        "text/plain;charset=UTF-8",
        "multipart/form-data; boundary=x",
        "application/x-www-form-urlencoded",
    ],
)
async def test_a_form_of_a_foreign_page_is_not_served_without_keys(kind):
    headers = {} if kind is None else {"content-type": kind}
    app = make_app(cors_allowed_origins=(PAGE,))
    for path in ("/v1/chat/completions", "/v1/audio/transcriptions", "/tokenize"):
        reply = await ask(app, "POST", path, {"origin": STRANGER, **headers})
        assert await refused(reply) == "browser_origin_refused"
        for harmless in ({"origin": PAGE}, {}):
            assert (await ask(app, "POST", path, {**harmless, **headers})).status_code in (415, 404)
    reply = await ask(app, "POST", "/tokenize", {"origin": STRANGER, "content-type": "application/json"})
    assert reply.status_code == 400  # its browser has asked before, and was told nothing
    with_keys = await ask(make_app(KEYS), "POST", "/tokenize", {"origin": STRANGER, **headers, **bearer(USER)})
    assert with_keys.status_code == 415


LOCAL_HOSTS = [
    *("localhost", "LOCALHOST", "localhost:8080", "localhost:", "127.0.0.1", "127.0.0.1:11437", "127.9.8.7:1"),
    *("[::1]", "[::1]:11437", "[0:0:0:0:0:0:0:1]", "[::ffff:127.0.0.1]:80"),
]
FOREIGN_HOSTS = [
    *("evil.example", "evil.example:11437", "localhost.evil.example", "127.0.0.1.evil.example", "127.0.0.1.nip.io"),
    *("localhost@evil.example", "evil.example#localhost", "localhost, evil.example", "evil.example:127.0.0.1"),
    *("0.0.0.0", "0.0.0.0:11437", "[::]", "192.168.1.5", "128.0.0.1", "[::2]", "::1", "[::1", "::1]", "[localhost]"),
    *("localhost:80:80", "localhost:x", "localhost:٣", "", " ", "2130706433", "0x7f.1", "127.1", "local host"),
]


@pytest.mark.parametrize("host", LOCAL_HOSTS)
def test_hosts_of_this_machine(host):
    assert is_local_host([host], "127.0.0.1")


@pytest.mark.parametrize("host", FOREIGN_HOSTS)
def test_other_hosts(host):
    for bind_addr in ("127.0.0.1", "localhost", "0.0.0.0", "::"):
        assert not is_local_host([host], bind_addr)


def test_the_configured_address_and_no_host_at_all():
    assert is_local_host(["192.168.1.5:80"], "192.168.1.5")
    assert is_local_host(["Box.lan"], "box.lan")
    assert is_local_host([], "127.0.0.1")
    assert not is_local_host(["localhost", "evil.example"], "127.0.0.1")


async def test_a_name_that_was_made_to_lead_here_is_refused_everywhere():
    app = make_app(cors_allowed_origins=(PAGE,))
    for method, path in routes(app):
        reply = await ask(app, method, path, {"host": "evil.example"})
        assert reply.status_code == 403
        assert method == "HEAD" or await refused(reply) == "host_not_allowed"


async def test_with_keys_any_host_is_served():
    app = make_app(KEYS)
    assert (await ask(app, "GET", "/v1/models", {"host": "rv.example.com", **bearer(USER)})).status_code == 200


async def test_an_insecure_public_server_is_administered_from_its_own_machine_only():
    app = make_app(bind_addr="0.0.0.0", allow_insecure_public_bind=True)
    from_afar = {"client": ("192.168.1.9", 5000), "server": ("192.168.1.5", 11437)}
    for path, status in (("/v1/models", 200), ("/health", 200), ("/metrics", 403), ("/v1/admin/models", 403)):
        assert (await ask(app, "GET", path, {"host": "box.lan"}, **from_afar)).status_code == status
    reply = await ask(app, "GET", "/metrics", {"host": "localhost"}, **from_afar)
    assert await refused(reply) == "insufficient_scope"
    for client in ("127.0.0.1", "::1", "::ffff:127.0.0.1", "192.168.1.5"):
        scope = {"client": (client, 5000), "server": ("192.168.1.5", 11437)}
        assert (await ask(app, "GET", "/metrics", {"host": "127.0.0.1"}, **scope)).status_code == 200
        assert (await ask(app, "GET", "/metrics", {"host": "evil.example"}, **scope)).status_code == 403
        # A header that looks like the address of the client has no say.
    reply = await ask(app, "GET", "/metrics", {"host": "localhost", "remote-addr": "127.0.0.1"}, **from_afar)
    assert reply.status_code == 403


# CORS.


def cors_headers(reply: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in reply.headers if name.lower().startswith("access-control-")}


PREFLIGHT = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,content-type"}


@pytest.mark.parametrize("keys", [None, KEYS])
async def test_cors_is_off_by_default(keys):
    app = make_app(keys)
    key = {} if keys is None else bearer(USER)
    reply = await ask(app, "GET", "/v1/models", {"origin": PAGE, **key})
    assert reply.status_code == 200
    assert cors_headers(reply) == {}
    assert "vary" not in reply.headers
    preflight = await ask(app, "OPTIONS", "/v1/chat/completions", {"origin": PAGE, **PREFLIGHT})
    assert cors_headers(preflight) == {}
    assert preflight.status_code == (200 if keys is None else 401)


@pytest.mark.parametrize("keys", [None, KEYS])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models", "/nope", "/health"])
async def test_a_preflight_of_an_allowed_page_needs_no_key(keys, path):
    reply = await ask(make_app(keys, cors_allowed_origins=(PAGE,)), "OPTIONS", path, {"origin": PAGE, **PREFLIGHT})
    assert reply.status_code == 204
    assert await reply.get_data() == b""
    assert cors_headers(reply) == {
        "access-control-allow-origin": PAGE,
        "access-control-allow-methods": "GET, HEAD, POST",
        "access-control-allow-headers": "authorization,content-type",
        "access-control-expose-headers": "x-request-id, retry-after",
        "access-control-max-age": "600",
    }
    assert reply.headers["vary"] == "Origin"
    assert "allow" not in reply.headers  # it would tell which routes there are


@pytest.mark.parametrize(
    "origin", [STRANGER, "null", "*", PAGE + "/", PAGE + ":444", "http://chat.example.com", PAGE.upper(), ""]
)
async def test_other_pages_are_told_nothing(origin):
    app = make_app(KEYS, cors_allowed_origins=(PAGE,))
    preflight = await ask(app, "OPTIONS", "/v1/models", {"origin": origin, **PREFLIGHT})
    assert await refused(preflight) == "invalid_api_key"
    answer = await ask(app, "GET", "/v1/models", {"origin": origin, **bearer(USER)})
    for reply in (preflight, answer):
        assert cors_headers(reply) == {}
        assert reply.headers["vary"] == "Origin"


async def test_answers_and_errors_are_readable_by_allowed_pages():
    app = make_app(KEYS, cors_allowed_origins=(PAGE,))
    asks = [("/v1/models", USER, 200), ("/v1/models", "wrong", 401), ("/nope", USER, 404), ("/v1/models/x", USER, 404)]
    for path, key, status in asks:
        reply = await ask(app, "GET", path, {"origin": PAGE, **bearer(key)})
        assert reply.status_code == status
        assert cors_headers(reply) == {
            "access-control-allow-origin": PAGE,
            "access-control-expose-headers": "x-request-id, retry-after",
        }
        assert reply.headers.getlist("vary") == ["Origin"]
    without = await ask(app, "GET", "/v1/models", bearer(USER))
    assert cors_headers(without) == {}
    assert without.headers["vary"] == "Origin"


async def test_admin_routes_never_have_cors():
    app = make_app(KEYS, cors_allowed_origins=(PAGE,))
    for method, path in admin_routes(app):
        preflight = PREFLIGHT if method == "OPTIONS" else {}
        reply = await ask(app, method, path, {"origin": PAGE, **preflight})
        assert reply.status_code == 401
        assert cors_headers(reply) == {}
    assert cors_headers(await ask(app, "GET", "/metrics", {"origin": PAGE, **bearer(ADMIN)})) == {}


async def test_odd_preflights():
    app = make_app(KEYS, cors_allowed_origins=(PAGE,))
    for asked in ("a\tb", "a b", "a,,b", ",", "x" * 3000, "é", "a:b"):
        headers = {"origin": PAGE, **PREFLIGHT, "access-control-request-headers": asked}
        reply = await ask(app, "OPTIONS", "/v1/models", headers)
        assert reply.status_code == 204
        assert "access-control-allow-headers" not in reply.headers
    private = {"origin": PAGE, **PREFLIGHT, "access-control-request-private-network": "true"}
    reply = await ask(app, "OPTIONS", "/v1/models", private)
    assert reply.headers["access-control-allow-private-network"] == "true"
    twice = [("origin", PAGE), ("origin", PAGE), *PREFLIGHT.items()]
    assert (await ask(app, "OPTIONS", "/v1/models", twice)).status_code == 401
    # Without the header of a preflight it is an ordinary OPTIONS.
    assert (await ask(app, "OPTIONS", "/v1/models", {"origin": PAGE})).status_code == 401
    assert (await ask(app, "OPTIONS", "/v1/models", {"origin": PAGE, **bearer(USER)})).headers["allow"]


@pytest.mark.parametrize(
    ("configured", "sent"),
    [
        ("https://Chat.Example.COM", "https://chat.example.com"),
        ("https://a.b:443", "https://a.b"),
        ("http://a.b:80", "http://a.b"),
        ("http://a.b:443", "http://a.b:443"),
        ("http://[::1]:80", "http://[::1]"),
        ("http://[::1]:3000", "http://[::1]:3000"),
        ("http://[::1]", "http://[::1]"),
        ("chrome-extension://abcdef", "chrome-extension://abcdef"),
    ],
)
def test_origins_are_compared_as_browsers_write_them(configured, sent):
    assert browser_form(configured) == sent
    assert OriginPolicy.of([configured]).allows(sent)
    assert not OriginPolicy.of([configured]).allows(sent + "x")


# WebSockets.


async def handshake(app: QuartTrio, headers: Any = None, path: str = "/v1/test-socket", **options: Any) -> str:
    """``hello`` from an accepted one, else the code of the refusal."""
    try:
        with trio.fail_after(10):
            async with app.test_client().websocket(path, headers=Headers(headers or {}), **options) as connection:
                return str(await connection.receive())
    except BaseExceptionGroup as group:
        found = group.split(WebsocketResponseError)[0]
        if found is None:
            raise
        return await refused(found.exceptions[0].response)


@pytest.mark.parametrize(
    ("headers", "subprotocols", "found"),
    [
        ({}, [], "invalid_api_key"),
        (bearer("wrong"), [], "invalid_api_key"),
        (bearer(USER), [], "hello"),
        ({"x-api-key": ADMIN}, [], "hello"),
        ({}, ["realtime", f"openai-insecure-api-key.{USER}"], "hello"),
        ({}, ["realtime", "openai-insecure-api-key.wrong"], "invalid_api_key"),
        ({}, [f"openai-insecure-api-key.{USER}", f"openai-insecure-api-key.{USER}"], "invalid_api_key"),
        ({}, [USER], "invalid_api_key"),
        ({"origin": STRANGER, **bearer(USER)}, [], "browser_origin_refused"),
        ({"origin": "null", **bearer(USER)}, [], "browser_origin_refused"),
        ({"origin": PAGE}, [], "invalid_api_key"),
        ({"origin": PAGE}, ["realtime", f"openai-insecure-api-key.{USER}"], "hello"),
    ],
)
async def test_handshakes_with_keys(headers, subprotocols, found):
    app = make_app(KEYS, cors_allowed_origins=(PAGE,))
    assert await handshake(app, headers, scope_base={"subprotocols": subprotocols}) == found


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ({}, "hello"),
        ({"origin": PAGE}, "hello"),
        ({"origin": STRANGER}, "browser_origin_refused"),
        ({"origin": "http://localhost"}, "browser_origin_refused"),
        ({"origin": "null"}, "browser_origin_refused"),
        ([("origin", PAGE), ("origin", STRANGER)], "browser_origin_refused"),
        ({"host": "evil.example"}, "host_not_allowed"),
        ({"host": "evil.example", "origin": PAGE}, "host_not_allowed"),
    ],
)
async def test_handshakes_without_keys(headers, found):
    assert await handshake(make_app(cors_allowed_origins=(PAGE,)), headers) == found


async def test_unknown_sockets_are_unknown_urls_behind_the_key():
    assert await handshake(make_app(KEYS), path="/v1/nope") == "invalid_api_key"
    assert await handshake(make_app(KEYS), bearer(USER), path="/v1/nope") == "unknown_url"
    assert await handshake(make_app(KEYS), bearer(USER), path="/v1/admin/nope") == "insufficient_scope"


async def test_sockets_and_plain_requests_are_told_apart():
    for path in ("/v1/models", "/v1/chat/completions", "/v1/admin/models", "/metrics", "/health"):
        assert await handshake(make_app(), path=path) == "websocket_not_supported", path
        assert await handshake(make_app(), {"origin": STRANGER}, path=path) == "browser_origin_refused", path
    for path in ("/v1/admin/models", "/v1/admin/realtime/sessions", "/metrics"):
        assert await handshake(make_app(KEYS), path=path) == "invalid_api_key", path
        assert await handshake(make_app(KEYS), bearer(USER), path=path) == "insufficient_scope", path
        assert await handshake(make_app(KEYS), bearer(ADMIN), path=path) == "websocket_not_supported", path
    reply = await ask(make_app(), "GET", "/v1/test-socket")
    assert (reply.status_code, reply.headers["upgrade"]) == (426, "websocket")
    assert await refused(reply) == "upgrade_required"
