from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rustedvino.http.options import ServeOptions

GOOD = "GET /health HTTP/1.1\r\nhost: t\r\n\r\n"

REFUSED = {
    "garbage": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400, "bad_request"),
    "no version": (b"GET /health\r\n\r\n", 400, "bad_request"),
    "no host": (b"GET /health HTTP/1.1\r\n\r\n", 400, "bad_request"),
    "two hosts": (b"GET /health HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n", 400, "bad_request"),
    "bad header": (b"GET /health HTTP/1.1\r\nhost: a\r\nb ad: x\r\n\r\n", 400, "bad_request"),
    "NUL in header": (b"GET /health HTTP/1.1\r\nhost: a\r\nx: a\0b\r\n\r\n", 400, "bad_request"),
    "HTTP/2 preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, "unsupported_http_version"),
    "HTTP/3.0": (b"GET /health HTTP/3.0\r\nhost: t\r\n\r\n", 505, "unsupported_http_version"),
    "HTTP/0.9": (b"GET /health HTTP/0.9\r\nhost: t\r\n\r\n", 505, "unsupported_http_version"),
    "empty path": (b"GET ?x HTTP/1.1\r\nhost: t\r\n\r\n", 400, "bad_request"),
    "bare word": (b"GET health HTTP/1.1\r\nhost: t\r\n\r\n", 400, "bad_request"),
    "star": (b"GET * HTTP/1.1\r\nhost: t\r\n\r\n", 400, "bad_request"),
    "no path": (b"GET http://t HTTP/1.1\r\nhost: t\r\n\r\n", 400, "bad_request"),
    "bad authority": (b"GET http://[t/ HTTP/1.1\r\nhost: t\r\n\r\n", 400, "bad_request"),
    "authority form": (b"CONNECT t:80 HTTP/1.1\r\nhost: t\r\n\r\n", 400, "bad_request"),
    "long head": (b"GET /health HTTP/1.1\r\nx: " + b"a" * 70_000, 431, "headers_too_large"),
    "long line": (b"GET /" + b"a" * 70_000, 431, "headers_too_large"),
    "bad length": (b"POST /size HTTP/1.1\r\nhost: t\r\ncontent-length: -1\r\n\r\n", 400, "bad_request"),
    "endless length": (
        b"POST /size HTTP/1.1\r\nhost: t\r\ncontent-length: " + b"9" * 5000 + b"\r\n\r\n",
        400,
        "bad_request",
    ),
    "two lengths": (
        b"POST /size HTTP/1.1\r\nhost: t\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
        400,
        "bad_request",
    ),
    "length and chunks": (
        b"POST /size HTTP/1.1\r\nhost: t\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        400,
        "bad_request",
    ),
    "gzip encoding": (
        b"POST /size HTTP/1.1\r\nhost: t\r\ntransfer-encoding: gzip\r\n\r\n",
        501,
        "unsupported_transfer_encoding",
    ),
    "bad chunk": (
        b"POST /size HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n",
        400,
        "bad_request",
    ),
    "unknown expectation": (b"GET /health HTTP/1.1\r\nhost: t\r\nexpect: wonders\r\n\r\n", 417, "expectation_failed"),
    "declared too large": (
        b"POST /size HTTP/1.1\r\nhost: t\r\ncontent-length: 52428801\r\n\r\n",
        413,
        "request_too_large",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_refusal_is_an_envelope_and_closes(layer, case):
    raw, status, code = REFUSED[case]
    client = await layer.connect()
    await client.send(raw)
    answer = await client.answer_to_end()
    assert answer.status == status
    assert answer.headers["connection"].lower() == "close"
    assert answer.error["code"] == code
    assert answer.error["message"]
    await client.close()
    await layer.until_empty()


async def test_refusal_carries_the_headers_of_the_server(run_layer):
    options = ServeOptions(answer_headers=lambda: [(b"x-request-id", b"r-1")])
    async with run_layer(options) as layer:
        client = await layer.connect()
        await client.send("nonsense\r\n\r\n")
        assert (await client.answer_to_end()).headers["x-request-id"] == "r-1"


async def test_upgrade_to_http2_is_answered_in_http1(layer):
    client = await layer.connect()
    await client.get("/health", "connection: Upgrade, HTTP2-Settings", "upgrade: h2c", "http2-settings: AAMAAABk")
    assert (await client.answer()).status == 200


async def test_absolute_target(layer):
    client = await layer.connect()
    await client.get("http://elsewhere/health")
    assert (await client.answer()).status == 200


async def test_an_answer_before_the_body_says_that_it_is_the_last(layer):
    client = await layer.connect()
    await client.send("POST /nowhere HTTP/1.1\r\nhost: t\r\ncontent-length: 5\r\n\r\n")
    answer = await client.answer()
    assert answer.status == 404
    assert answer.headers["connection"] == "close"


async def test_refused_websocket_handshake_has_an_envelope(layer):
    client = await layer.connect()
    await client.get("/health", "connection: upgrade", "upgrade: websocket")
    answer = await client.answer_to_end()
    assert (answer.status, answer.error["code"]) == (400, "bad_request")


async def test_pipelined_requests_are_answered_in_order(layer):
    client = await layer.connect()
    await client.send(
        GOOD
        + "GET /stream?n=1 HTTP/1.1\r\nhost: t\r\n\r\n"
        + "POST /size HTTP/1.1\r\nhost: t\r\ncontent-length: 3\r\n\r\nabc"
        + "GET /nowhere HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n"
    )
    assert (await client.answer()).status == 200
    assert (await client.answer()).body.endswith(b"[DONE]\n\n")
    assert json.loads((await client.answer()).body) == {"size": 3}
    assert (await client.answer_to_end()).status == 404


async def test_large_pipelined_body_is_not_lost(layer):
    size = 3_000_000
    client = await layer.connect()
    head = f"POST /size HTTP/1.1\r\nhost: t\r\ncontent-length: {size}\r\nconnection: close\r\n\r\n"
    await client.send(GOOD + head + "x" * size)
    assert (await client.answer()).status == 200
    assert json.loads((await client.answer_to_end()).body) == {"size": size}


async def test_head_has_the_headers_and_no_body(layer):
    client = await layer.connect()
    for path in ("/health", "/stream", "/nowhere"):
        await client.get(path, method="HEAD")
        head = await client.read_until(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 404" if path == "/nowhere" else b"HTTP/1.1 200")
    await client.get("/health", "connection: close")
    assert (await client.answer_to_end()).body == b'{"status":"ok"}\n'


async def test_options_names_the_methods(layer):
    client = await layer.connect()
    await client.get("/health", method="OPTIONS")
    answer = await client.answer()
    assert answer.status == 200
    assert "GET" in answer.headers["allow"]
    await client.send("OPTIONS * HTTP/1.1\r\nhost: t\r\n\r\n")
    assert (await client.answer()).status in (200, 404)


async def test_continue_is_sent_before_the_body(layer):
    client = await layer.connect()
    head = "POST /size HTTP/1.1\r\nhost: t\r\nexpect: 100-continue\r\ncontent-length: 4\r\n\r\n"
    await client.send(head)
    assert (await client.read_until(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
    await client.send("body")
    assert json.loads((await client.answer()).body) == {"size": 4}


async def test_no_continue_for_a_body_that_is_too_large(layer):
    client = await layer.connect()
    await client.send("POST /size HTTP/1.1\r\nhost: t\r\nexpect: 100-continue\r\ncontent-length: 99999999\r\n\r\n")
    assert (await client.answer_to_end()).status == 413


async def test_declared_length_at_the_cap_is_accepted(run_layer):
    async with run_layer(ServeOptions(max_body_bytes=1000)) as layer:
        client = await layer.connect()
        await client.send("POST /size HTTP/1.1\r\nhost: t\r\ncontent-length: 1000\r\n\r\n" + "x" * 1000)
        assert json.loads((await client.answer()).body) == {"size": 1000}


async def test_chunked_body_is_cut_at_the_cap(run_layer):
    async with run_layer(ServeOptions(max_body_bytes=1000)) as layer:
        client = await layer.connect()
        await client.send("POST /size HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\n")
        await client.send("100\r\n" + "x" * 256 + "\r\n" + "300\r\n" + "x" * 768 + "\r\n")
        answer = await client.answer_to_end()
        assert (answer.status, answer.error["code"]) == (413, "request_too_large")
        await client.close()
        await layer.until_empty()


async def test_bodies_of_all_requests_share_a_budget(run_layer):
    async with run_layer(ServeOptions(max_buffered_body_bytes=1000)) as layer:
        first = await layer.connect()
        await first.send("POST /wait HTTP/1.1\r\nhost: t\r\ncontent-length: 900\r\n\r\n" + "x" * 900)
        await layer.journal.wait_for("waiting")
        second = await layer.connect()
        await second.send("POST /size HTTP/1.1\r\nhost: t\r\ncontent-length: 200\r\n\r\n" + "x" * 200)
        answer = await second.answer_to_end()
        assert (answer.status, answer.error["code"]) == (503, "server_busy")
        first.reset()
        await layer.journal.wait_for("released")
        third = await layer.connect()
        await third.send("POST /size HTTP/1.1\r\nhost: t\r\ncontent-length: 900\r\n\r\n" + "x" * 900)
        assert json.loads((await third.answer()).body) == {"size": 900}


@pytest.mark.parametrize("cut", [1, 17, 40, 62, 70])
async def test_request_cut_off_is_named_to_a_half_closed_client(layer, cut):
    raw = b"POST /size HTTP/1.1\r\nhost: t\r\nx: y\r\ncontent-length: 20\r\n\r\nabcdef"
    client = await layer.connect()
    await client.send(raw[:cut])
    client.half_close()
    answer = await client.answer_to_end()
    assert (answer.status, answer.error["code"]) == (400, "bad_request")
    await layer.until_empty()


def test_requests_survive_any_split_of_their_bytes(run_layer):
    import trio

    raw = (
        b"POST /size HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n2;a=b\r\n!!\r\n0\r\n\r\n"
        b"GET /stream?n=1 HTTP/1.1\r\nhost: t\r\nconnection: close\r\n\r\n"
    )

    @settings(deadline=None, max_examples=40)
    @given(st.lists(st.integers(1, len(raw) - 1), max_size=6, unique=True))
    def check(cuts: list[int]) -> None:
        async def main() -> None:
            async with run_layer() as layer:
                client = await layer.connect()
                edges = [0, *sorted(cuts), len(raw)]
                for start, end in itertools.pairwise(edges):
                    await client.send(raw[start:end])
                assert json.loads((await client.answer()).body) == {"size": 7}
                assert (await client.answer_to_end()).body.endswith(b"[DONE]\n\n")
                await layer.until_empty()

        trio.run(main)

    check()


@settings(deadline=None, max_examples=60)
@given(raw=st.binary(max_size=300))
def test_any_bytes_get_an_answer_or_a_close(raw):
    # The server must end each of these connections by itself and stay whole.
    from functools import partial

    import trio
    from quart_trio import QuartTrio

    from rustedvino.http.listener import open_listener
    from rustedvino.http.serve import serve

    async def main() -> None:
        listener = open_listener("127.0.0.1", 0, client_stall_secs=5)
        port = listener.getsockname()[1]
        async with trio.open_nursery() as nursery:
            server = await nursery.start(partial(serve, QuartTrio("empty"), [listener]))
            stream = await trio.open_tcp_stream("127.0.0.1", port)
            with trio.fail_after(10):
                await stream.send_all(raw)
                await stream.send_eof()
                received = b""
                while data := await stream.receive_some():
                    received += data
                assert not received or received.startswith(b"HTTP/1.1 ")
                server.stop_accepting()
                await server.wait_closed()
            await stream.aclose()

    trio.run(main)
