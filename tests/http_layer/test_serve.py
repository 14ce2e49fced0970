from __future__ import annotations

import socket
from functools import partial

import pytest
import trio
import trio.testing
from quart import websocket
from quart_trio import QuartTrio
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, CloseConnection, Ping, Request, TextMessage

from rustedvino.http.listener import open_listener
from rustedvino.http.options import ServeOptions
from rustedvino.http.serve import serve


async def test_statistics_count_what_is_there(layer):
    assert layer.server.addresses == [("127.0.0.1", layer.port)]
    busy, idle = await layer.connect(), await layer.connect()
    await busy.get("/wait")
    await idle.get("/health")
    await idle.answer()
    await layer.journal.wait_for("waiting")
    await trio.testing.wait_all_tasks_blocked()
    stats = layer.server.statistics()
    assert (stats.open_connections, stats.idle_connections, stats.requests_in_flight) == (2, 1, 1)
    assert (stats.accepted_total, stats.refused_total) == (2, 0)


# -- the end ----------------------------------------------------------------------------------


async def test_drain_closes_idle_connections_and_lets_requests_end(layer):
    idle, fresh, busy = [await layer.connect() for _ in range(3)]
    await idle.get("/health")
    await idle.answer()
    await busy.get("/endless?pause=0.001")
    await layer.journal.wait_for("producing")
    async with trio.open_nursery() as nursery:
        drained = []

        async def drain() -> None:
            drained.append(await layer.server.drain(trio.current_time() + 15))

        nursery.start_soon(drain)
        assert await idle.read_all() == b""
        assert await fresh.read_all() == b""
        with pytest.raises(OSError):  # noqa: PT011 - refused or reset, as the system likes
            await layer.connect()
        assert not drained
        await busy.read_until(b"\n\n")
        await busy.close()
    assert drained == [True]


async def test_answer_that_begins_during_a_drain_says_close(layer):
    client = await layer.connect()
    await client.send("POST /size HTTP/1.1\r\nhost: t\r\ncontent-length: 3\r\n\r\nab")
    await trio.testing.wait_all_tasks_blocked(0.01)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(layer.server.drain, trio.current_time() + 15)
        await trio.testing.wait_all_tasks_blocked(0.01)
        await client.send("c")
        answer = await client.answer_to_end()
    assert answer.status == 200
    assert answer.headers["connection"].lower() == "close"


async def test_drain_ends_at_its_deadline_and_abort_all_ends_the_rest(layer):
    readers = [await layer.connect() for _ in range(3)]
    for client in readers:
        await client.get("/wait")
    deaf = await layer.connect(receive_buffer_bytes=4096)
    await deaf.get("/endless?pause=0")
    await layer.journal.wait_for("waiting", 3)
    await layer.journal.wait_for("producing")
    await _until(lambda: layer.server.statistics().buffered_bytes > 0)  # a send waits for the deaf one
    assert not await layer.server.drain(trio.current_time() + 0.1)
    layer.server.abort_all()
    await layer.until_empty()
    assert layer.journal.entries.count("released") == 4
    with pytest.raises(trio.BrokenResourceError):
        await readers[0].read_all()


async def test_serve_returns_after_a_drain_and_runs_the_app_s_functions():
    app = QuartTrio("t")
    ran = []
    app.before_serving(partial(_note, ran, "before"))
    app.after_serving(partial(_note, ran, "after"))
    listener = open_listener("127.0.0.1", 0, client_stall_secs=5)
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            server = await nursery.start(partial(serve, app, [listener]))
            assert ran == ["before"]
            assert await server.drain(trio.current_time() + 5)
    assert ran == ["before", "after"]
    assert listener.fileno() == -1


async def _note(ran: list[str], what: str) -> None:
    ran.append(what)


async def test_cancelling_ends_at_once_whatever_clients_do(run_layer):
    with trio.fail_after(20):
        async with run_layer() as layer:
            deaf = await layer.connect(receive_buffer_bytes=4096)
            await deaf.get("/endless?pause=0")
            waiting = await layer.connect()
            await waiting.get("/wait")
            dripping = await layer.connect()
            await dripping.send("POST /size HTTP/1.1\r\nhost: t\r\ncontent-length: 3\r\n\r\na")
            await layer.journal.wait_for("waiting")
            await layer.journal.wait_for("producing")
            await _until(lambda: layer.server.statistics().buffered_bytes > 0)
            layer.nursery.cancel_scope.cancel()
    assert layer.journal.entries.count("released") == 2
    assert layer.server.statistics().open_connections == 0


async def test_failing_start_up_closes_the_listener():
    app = QuartTrio("t")

    @app.before_serving
    async def fail() -> None:
        raise RuntimeError("no start")

    listener = open_listener("127.0.0.1", 0, client_stall_secs=5)
    with pytest.raises(BaseExceptionGroup) as caught:
        await serve(app, [listener])
    assert caught.group_contains(RuntimeError, match="no start")
    assert listener.fileno() == -1


# -- room ---------------------------------------------------------------------------------------


async def test_too_many_connections_are_told(run_layer):
    async with run_layer(ServeOptions(max_connections=3)) as layer:
        for _ in range(3):
            await (await layer.connect()).get("/wait")
        await layer.journal.wait_for("waiting", 3)
        client = await layer.connect()
        await client.get("/health")
        answer = await client.answer_to_end()
        assert (answer.status, answer.error["code"]) == (503, "server_busy")
        assert answer.headers["retry-after"] == "1"
        assert layer.server.statistics().refused_total == 1
        await layer.clients[0].close()
        await layer.journal.wait_for("released")
        await _until(lambda: layer.server.statistics().open_connections == 2)
        client = await layer.connect()
        await client.get("/health")
        assert (await client.answer()).status == 200


async def test_an_idle_connection_makes_room(run_layer):
    async with run_layer(ServeOptions(max_connections=2)) as layer:
        first, second = await layer.connect(), await layer.connect()
        for client in (first, second):
            await client.get("/health")
            await client.answer()
        third = await layer.connect()
        await third.get("/health")
        assert (await third.answer()).status == 200
        assert await first.read_all() == b""
        await second.get("/health")
        assert (await second.answer()).status == 200


async def test_one_address_cannot_take_all_room(run_layer):
    async with run_layer(ServeOptions(max_connections_per_peer=2)) as layer:
        for _ in range(2):
            await (await layer.connect()).get("/wait")
        await layer.journal.wait_for("waiting", 2)
        client = await layer.connect()
        answer = await client.answer_to_end()
        assert answer.status == 503
        assert "127.0.0.1" in answer.error["message"]


async def _until(condition) -> None:
    with trio.fail_after(10):
        while not condition():  # noqa: ASYNC110 - a kernel's state, which no event of ours reports
            await trio.sleep(0.005)


async def test_200_at_once(layer):
    statuses = []

    async def ask() -> None:
        client = await layer.connect()
        await client.get("/stream?n=20", "connection: close")
        statuses.append((await client.answer_to_end()).status)

    async with trio.open_nursery() as nursery:
        for _ in range(200):
            nursery.start_soon(ask)
    assert statuses == [200] * 200


async def test_connection_reset_in_the_queue_harms_nobody(layer):
    for _ in range(20):
        client = await layer.connect()
        client.reset()
    client = await layer.connect()
    await client.get("/health")
    assert (await client.answer()).status == 200


# -- WebSockets -----------------------------------------------------------------------------------


def _echo_app(journal):
    app = QuartTrio("t")

    @app.websocket("/echo")
    async def echo() -> None:
        try:
            while True:
                await websocket.send(await websocket.receive())
        finally:
            journal.note("left")

    return app


class SocketClient:
    def __init__(self, client) -> None:
        self.client = client
        self.protocol = WSConnection(ConnectionType.CLIENT)

    async def send(self, event) -> None:
        await self.client.send(self.protocol.send(event))

    async def event(self):
        while True:
            for event in self.protocol.events():
                if not isinstance(event, Ping):
                    return event
            with trio.fail_after(10):
                data = await self.client.stream.receive_some(65536)
            self.protocol.receive_data(data or None)


@pytest.mark.parametrize("how", ["close frame", "close", "reset", "drain"])
async def test_websocket(run_layer, how):
    async with run_layer(app=_echo_app) as layer:
        client = await layer.connect()
        ws = SocketClient(client)
        await ws.send(Request(host="t", target="/echo"))
        assert isinstance(await ws.event(), AcceptConnection)
        await ws.send(TextMessage("hello"))
        assert (await ws.event()).data == "hello"
        if how == "close frame":
            await ws.send(CloseConnection(1000))
            assert isinstance(await ws.event(), CloseConnection)
        elif how == "close":
            await client.close()
        elif how == "reset":
            client.reset()
        else:
            assert not await layer.server.drain(trio.current_time() + 0.05)
            layer.server.abort_all()
        await layer.journal.wait_for("left")
        await layer.until_empty()


async def test_unknown_websocket_is_refused(run_layer):
    async with run_layer(app=_echo_app) as layer:
        client = await layer.connect()
        ws = SocketClient(client)
        await ws.send(Request(host="t", target="/nowhere"))
        raw = await client.read_all()
        assert raw.startswith((b"HTTP/1.1 404", b"HTTP/1.1 403"))
        await layer.until_empty()


def test_listener_is_usable_for_several(tmp_path):
    # Two listeners on one server share connections and their bounds.
    async def main() -> None:
        listeners = [open_listener("127.0.0.1", 0, client_stall_secs=5) for _ in range(2)]
        ports = [listener.getsockname()[1] for listener in listeners]
        async with trio.open_nursery() as nursery:
            server = await nursery.start(partial(serve, QuartTrio("t"), listeners))
            for port in ports:
                with socket.create_connection(("127.0.0.1", port)):
                    await _until(lambda: server.statistics().open_connections == 1)
                await _until(lambda: server.statistics().open_connections == 0)
            assert await server.drain(trio.current_time() + 5)

    trio.run(main)
