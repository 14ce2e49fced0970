from __future__ import annotations

import json

import pytest
import trio
import trio.testing
from quart import request
from quart_trio import QuartTrio
from werkzeug.exceptions import RequestEntityTooLarge

from rustedvino.http.asgi import BodyTooLarge, HttpConnection, StreamingReply, prepare_app, read_body, request_cleanup


@pytest.mark.parametrize("path", ["/health", "/stream?n=3", "/stream?n=0", "/fail", "/nowhere"])
@pytest.mark.parametrize("version", ["1.0", "1.1"])
async def test_connection_is_closed_when_the_client_asks(layer, path, version):
    client = await layer.connect()
    await client.get(path, "connection: close", version=version)
    answer = await client.answer_to_end()
    assert answer.status in (200, 404, 500)
    if "stream" in path:
        assert answer.body.endswith(b"data: [DONE]\n\n")
    else:
        assert len(answer.body) == int(answer.headers["content-length"])
    await client.close()
    await layer.until_empty()


@pytest.mark.parametrize("path", ["/health", "/stream?n=3", "/fail"])
async def test_http_1_0_without_a_word_is_closed(layer, path):
    client = await layer.connect()
    await client.get(path, version="1.0")
    assert (await client.answer_to_end()).status in (200, 500)
    await layer.until_empty()


async def test_streamed_body_is_plain_for_http_1_0(layer):
    client = await layer.connect()
    await client.get("/stream?n=2", version="1.0")
    answer = await client.answer_to_end()
    assert "transfer-encoding" not in answer.headers
    assert answer.body == b"data: 0\n\ndata: 1\n\ndata: [DONE]\n\n"


async def test_one_connection_serves_many_requests(layer):
    client = await layer.connect()
    for i in range(50):
        await client.get(f"/stream?n={i}" if i % 2 else "/health")
        assert (await client.answer()).status == 200
    assert layer.server.statistics().accepted_total == 1


async def test_broken_stream_has_no_proper_end(layer, caplog):
    client = await layer.connect()
    await client.get("/broken-stream")
    raw = await client.read_all()
    assert raw.endswith(b"data: 1\n\n\r\n")
    assert "the producer is broken" in caplog.text
    await layer.until_empty()


async def test_error_outside_of_the_framework_is_an_envelope(run_layer, caplog):
    def make(journal):
        app = QuartTrio("t")
        app.config["PROPAGATE_EXCEPTIONS"] = True

        @app.get("/<kind>")
        async def fail(kind: str) -> None:
            if kind == "single":
                raise RuntimeError("handler fault")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep_forever)
                raise RuntimeError("handler fault")

        return app

    async with run_layer(app=make) as layer:
        for kind in ("single", "group"):
            client = await layer.connect()
            await client.get(f"/{kind}")
            answer = await client.answer_to_end()
            assert (answer.status, answer.error["code"]) == (500, "internal_error")
            assert "handler fault" not in answer.body.decode()
        ours = [r for r in caplog.records if r.name == "rustedvino.http.requests"]
        assert [r.getMessage() for r in ours] == ["error in the handler of /single", "error in the handler of /group"]
        await layer.until_empty()


async def test_handler_without_context_is_told():
    app = QuartTrio("plain")
    async with app.test_request_context("/"):
        with pytest.raises(RuntimeError, match="HttpConnection"):
            request_cleanup(request)


async def test_streaming_reply_works_on_the_test_client():
    app = QuartTrio("plain")
    prepare_app(app)
    assert app.asgi_http_class is HttpConnection
    ran = []

    @app.get("/")
    async def stream() -> StreamingReply:
        request_cleanup(request).callback(ran.append, "closed")

        async def produce(send) -> None:
            await send(b"one,")
            await send(b"two")

        return StreamingReply(produce, content_type="text/plain")

    response = await app.test_client().get("/")
    assert await response.get_data() == b"one,two"
    assert ran == ["closed"]


async def test_produce_is_not_run_for_head(run_layer):
    ran = []

    def make(journal):
        app = QuartTrio("t")

        @app.get("/")
        async def stream() -> StreamingReply:
            async def produce(send) -> None:
                ran.append(1)

            return StreamingReply(produce)

        return app

    async with run_layer(app=make) as layer:
        client = await layer.connect()
        await client.get("/", "connection: close", method="HEAD")
        assert (await client.read_all()).startswith(b"HTTP/1.1 200")
        assert not ran


@pytest.mark.parametrize("size", [0, 1, 5000, 50 * 2**20])
async def test_body_is_read_whole(layer, size):
    client = await layer.connect()
    await client.send(f"POST /size HTTP/1.1\r\nhost: t\r\ncontent-length: {size}\r\n\r\n".encode() + b"x" * size)
    assert json.loads((await client.answer()).body) == {"size": size}
    assert layer.server.statistics().buffered_bytes == 0


@pytest.mark.parametrize("framing", ["content-length: 2000", "transfer-encoding: chunked"])
async def test_body_over_the_limit_of_its_route(layer, framing):
    body = b"x" * 2000 if "length" in framing else b"7d0\r\n" + b"x" * 2000 + b"\r\n0\r\n\r\n"
    client = await layer.connect()
    await client.send(f"POST /size?max=1999 HTTP/1.1\r\nhost: t\r\n{framing}\r\n\r\n".encode() + body)
    assert (await client.answer()).status == 413
    await client.get("/health", "connection: close")
    assert (await client.answer_to_end()).status == 200


def test_body_too_large_is_the_framework_s_413():
    error = BodyTooLarge(7)
    assert isinstance(error, RequestEntityTooLarge)
    assert (error.code, error.max_bytes) == (413, 7)
    assert "7 bytes" in str(error.description)


async def test_a_large_answer_reaches_a_slow_reader_whole(run_layer):
    big = b"0123456789" * 700_000

    def make(journal):
        app = QuartTrio("t")

        @app.get("/")
        async def whole() -> bytes:
            return big

        @app.get("/pieces")
        async def pieces() -> StreamingReply:
            async def produce(send) -> None:
                for start in range(0, len(big), 100_000):
                    await send(big[start : start + 100_000])

            return StreamingReply(produce)

        return app

    async with run_layer(app=make) as layer:
        for path in ("/", "/pieces"):
            client = await layer.connect(receive_buffer_bytes=100_000)
            await client.get(path, "connection: close")
            assert (await client.answer_to_end()).body == big


async def test_reading_a_body_ends_with_its_client(run_layer):
    def make(journal):
        app = QuartTrio("t")

        @app.post("/")
        async def read() -> str:
            request_cleanup(request).callback(journal.note, "released")
            journal.note("reading")
            await read_body(request, 1000)
            journal.note("read")
            return ""

        return app

    async with run_layer(app=make) as layer:
        client = await layer.connect()
        await client.send("POST / HTTP/1.1\r\nhost: t\r\ncontent-length: 10\r\n\r\nabc")
        await layer.journal.wait_for("reading")
        await client.close()
        await layer.journal.wait_for("released")
        assert "read" not in layer.journal.entries
        await layer.until_empty()


async def test_a_small_request_is_whole_when_its_handler_begins(run_layer):
    """Its handler then runs to its first real wait without giving way to those of the others that came with it."""

    def make(journal) -> QuartTrio:
        app = QuartTrio("whole")

        @app.post("/size")
        async def size() -> dict[str, int]:
            with trio.testing.assert_no_checkpoints():
                return {"size": len(await read_body(request, 10_000))}

        return app

    async with run_layer(app=make) as layer:
        client = await layer.connect()
        for size in (0, 1, 9_000):
            await client.send(b"POST /size HTTP/1.1\r\nhost: test\r\ncontent-length: %d\r\n\r\n" % size + b"x" * size)
            assert json.loads((await client.answer()).body) == {"size": size}
