"""HTTP: errors in words, streams, and what is sent."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from rustedvino import __version__
from rustedvino.rv.client import Client, Key, model_path
from rustedvino.rv.errors import Refused, RvError, Unreachable, UsageError
from tests.rv.fake import Answer, FakeServer, error_answer, events_answer, json_answer


@contextmanager
def raw_server(talk: Callable[[socket.socket], None]) -> Iterator[str]:
    """A listener that does one thing with its only connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                talk(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join(10)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def test_what_is_sent(fake: FakeServer) -> None:
    fake.add("POST /v1/x", {"ok": True})
    client = Client(fake.url + "/", Key("secret", "--key"))
    assert client.call("POST", "/v1/x", {"ż": 1}, query={"a": "b c"}) == {"ok": True}
    asked = fake.asked[0]
    assert (asked.query, asked.body) == ("a=b+c", {"ż": 1})
    assert asked.headers["authorization"] == "Bearer secret"
    assert asked.headers["connection"] == "close"
    assert "authorization" not in _asked_without_key(fake)


def _asked_without_key(fake: FakeServer) -> dict[str, str]:
    Client(fake.url).get("/health")
    return dict(fake.asked[-1].headers)


def test_a_path_before_the_routes_is_kept(fake: FakeServer) -> None:
    fake.add("GET /proxied/v1/x", {})
    Client(fake.url + "/proxied/").get("/v1/x")
    assert fake.asked[0].path == "/proxied/v1/x"


def test_ids_are_escaped_in_routes() -> None:
    assert model_path("a b/ü", "load") == "/v1/admin/models/a%20b%2F%C3%BC/load"


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://x:port", "http://x:99999"])
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(UsageError, match="is not an address"):
        Client(url)


# Refusals.


def refused(client: Client) -> Refused:
    with pytest.raises(Refused) as caught:
        client.get("/v1/x")
    return caught.value


def test_a_refusal_has_the_servers_words(fake: FakeServer) -> None:
    fake.add("GET /v1/x", error_answer(503, "no room", "insufficient_memory", retry_after="7"))
    error = refused(Client(fake.url))
    assert (error.status, error.message, error.code) == (503, "no room", "insufficient_memory")
    assert error.hint == "try again in 7 s"


def test_a_wrong_key_is_said_by_where_it_came_from_and_never_shown(fake: FakeServer) -> None:
    fake.add("GET /v1/x", error_answer(401, "Incorrect API key.", "invalid_api_key"))
    error = refused(Client(fake.url, Key("topsecret", "/c/config.keys.json")))
    assert error.hint == "the key from /c/config.keys.json was sent"
    assert "topsecret" not in str(error.as_json())
    missing = refused(Client(fake.url, keys_expected="/c/config.keys.json"))
    assert "no key was sent" in str(missing.hint)
    assert "/c/config.keys.json" in str(missing.hint)


def test_a_key_without_the_scope(fake: FakeServer) -> None:
    fake.add("GET /v1/x", error_answer(403, "This key may not.", "insufficient_scope"))
    assert refused(Client(fake.url, Key("k", "RUSTEDVINO_KEY"))).hint == (
        "the key from RUSTEDVINO_KEY may not administer: an admin key is needed"
    )


def test_an_older_server_is_told_by_both_versions(fake: FakeServer) -> None:
    error = refused(Client(fake.url))
    assert error.message == "this server does not know GET /v1/x"
    assert error.hint == f"it is version 0.0.9, this rv is {__version__}"


# Nobody there, or somebody else.


def unreachable(client: Client, path: str = "/v1/x") -> Unreachable:
    with pytest.raises(Unreachable) as caught:
        client.get(path)
    return caught.value


def test_nobody_listens() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    assert unreachable(Client(url)).message == f"no server answers at {url}"
    better = Unreachable("it is starting", code="starting")
    assert unreachable(Client(url, when_down=lambda: better)) is better


def test_an_unknown_host() -> None:
    assert "'nowhere.invalid' is not known" in unreachable(Client("http://nowhere.invalid:1")).message


def test_no_answer_in_time() -> None:
    done = threading.Event()
    with raw_server(lambda _: done.wait(30) and None) as url:
        with pytest.raises(Unreachable, match=r"did not answer within 0\.05 s"):
            Client(url).get("/v1/x", timeout_secs=0.05)
        done.set()


def read_request(connection: socket.socket) -> None:
    while b"\r\n\r\n" not in connection.recv(65536):
        pass


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b"", "closed the connection without an answer"),
        (b"SSH-2.0-OpenSSH\r\n", "does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n{", "ended its answer early"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\n<html>", "is not this server: it sent no JSON"),
        (b"HTTP/1.1 502 Bad\r\nserver: nginx\r\ncontent-length: 2\r\n\r\n{}", "is not this server: it sent status 502"),
    ],
)
def test_strangers(sent: bytes, words: str) -> None:
    def talk(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(sent)

    with raw_server(talk) as url:
        assert words in unreachable(Client(url)).message


def test_plain_http_where_tls_is_expected() -> None:
    def talk(connection: socket.socket) -> None:
        connection.recv(10)
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with raw_server(talk) as url:
        error = unreachable(Client(url.replace("http:", "https:")))
    assert error.code == "tls"
    assert "no secure connection" in error.message


# Streams.


def test_events_come_as_they_are_sent(fake: FakeServer) -> None:
    seen = threading.Event()
    fake.add("POST /v1/s", events_answer({"n": 1}, {"n": 2}, pause=lambda: seen.wait(30)))
    events = Client(fake.url).events("/v1/s", {})
    assert next(events) == '{"n": 1}'  # the rest is held back until it was seen
    seen.set()
    assert list(events) == ['{"n": 2}', "[DONE]"]


def test_closing_a_stream_closes_its_connection() -> None:
    gone = threading.Event()

    def talk(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: 1\n\n")
        connection.settimeout(30)
        while connection.recv(100):
            continue
        gone.set()

    with raw_server(talk) as url:
        events = Client(url).events("/v1/s", {})
        assert next(events) == "1"
        events.close()
        assert gone.wait(30)


def test_streams_that_are_refused_or_are_none(fake: FakeServer) -> None:
    fake.add("POST /v1/s", error_answer(404, "no such model", "model_not_found"), json_answer({}))
    client = Client(fake.url)
    with pytest.raises(Refused, match="no such model"):
        next(client.events("/v1/s", {}))
    with pytest.raises(RvError, match="application/json"):
        next(client.events("/v1/s", {}))


def test_text(fake: FakeServer) -> None:
    fake.add("GET /metrics", Answer(200, b"a 1\n", {"x-server": "rustedvino"}))
    assert Client(fake.url).text("/metrics") == "a 1\n"
