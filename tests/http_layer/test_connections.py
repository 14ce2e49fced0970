from __future__ import annotations

import gc
import json
import os
import sys

import pytest
import trio
import trio.testing

from rustedvino.http.options import ServeOptions

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc or a Linux socket option")

LEAVE = {"close": lambda client: client.stream.socket.close(), "reset": lambda client: client.reset()}


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


async def settled_tasks() -> int:
    await trio.testing.wait_all_tasks_blocked()
    return trio.lowlevel.current_statistics().tasks_living


# -- disconnects ------------------------------------------------------------------------------


@pytest.mark.parametrize("how", LEAVE)
@pytest.mark.parametrize(("path", "begun"), [("/wait", "waiting"), ("/endless", "producing"), ("/silent", "producing")])
async def test_disconnect_cancels_the_request(layer, how, path, begun):
    client = await layer.connect()
    await client.get(path)
    await layer.journal.wait_for(begun)
    LEAVE[how](client)
    await layer.journal.wait_for("cancelled")
    await layer.journal.wait_for("released")
    await layer.until_empty()


async def test_disconnect_with_unread_pipelined_requests_cancels(layer):
    client = await layer.connect()
    await client.get("/wait")
    await client.get("/health")
    await layer.journal.wait_for("waiting")
    await client.close()
    await layer.journal.wait_for("released")
    await layer.until_empty()


@linux_only
async def test_disconnect_behind_more_than_is_read_ahead_cancels(run_layer):
    async with run_layer(ServeOptions(max_head_bytes=2000)) as layer:
        client = await layer.connect()
        await client.get("/wait")
        await layer.journal.wait_for("waiting")
        for _ in range(40):
            await client.get("/health", "x: " + "y" * 500)
            await trio.testing.wait_all_tasks_blocked()
        await client.close()
        await layer.journal.wait_for("released")
        await layer.until_empty()


@linux_only
@pytest.mark.parametrize("path", ["/wait", "/endless", "/silent"])
@pytest.mark.parametrize("how", LEAVE)
async def test_nothing_is_left_of_200_that_left_in_a_row(layer, path, how):
    tasks, files = await settled_tasks(), open_files()
    begun = "waiting" if path == "/wait" else "producing"
    for i in range(200):
        client = await layer.connect()
        await client.get(path)
        await layer.journal.wait_for(begun, i + 1)
        LEAVE[how](client)
    await layer.journal.wait_for("released", 200)
    await layer.until_empty()
    layer.clients.clear()
    del client
    gc.collect()
    assert layer.journal.entries.count("cancelled") == 200
    assert (await settled_tasks(), open_files()) == (tasks, files)
    client = await layer.connect()
    await client.get("/health")
    assert (await client.answer()).status == 200


@linux_only
@pytest.mark.parametrize("how", LEAVE)
async def test_nothing_is_left_of_64_that_left_at_once(layer, how):
    tasks, files = await settled_tasks(), open_files()

    async def come_and_go(i: int) -> None:
        client = await layer.connect()
        await client.get(("/wait", "/endless", "/silent", "/health")[i % 4])
        if i % 3:
            await layer.journal.wait_for("waiting")
        LEAVE[how](client)

    async with trio.open_nursery() as nursery:
        for i in range(64):
            nursery.start_soon(come_and_go, i)
    await layer.until_empty()
    layer.clients.clear()
    gc.collect()
    entries = layer.journal.entries
    assert entries.count("cancelled") <= entries.count("released") <= 48
    assert (await settled_tasks(), open_files()) == (tasks, files)


# -- half-closed clients -----------------------------------------------------------------------


@linux_only
@pytest.mark.parametrize("path", ["/health", "/stream?n=200", "/nowhere", "/fail"])
async def test_half_closed_client_gets_a_prompt_answer(layer, path):
    client = await layer.connect()
    await client.get(path)
    client.half_close()
    assert (await client.answer_to_end()).status in (200, 404, 500)
    await layer.until_empty()


@linux_only
async def test_half_closed_client_gets_pipelined_answers(layer):
    client = await layer.connect()
    await client.get("/health")
    await client.get("/stream?n=2")
    await client.get("/health")
    client.half_close()
    assert [(await client.answer()).status for _ in range(3)] == [200, 200, 200]
    assert await client.read_all() == b""


@linux_only
async def test_half_closed_client_may_read_a_stream_for_long(run_layer):
    async with run_layer(ServeOptions(half_close_grace_secs=0.05)) as layer:
        client = await layer.connect()
        await client.get("/endless?pause=0.01")
        client.half_close()
        for _ in range(20):  # 0.2 s: well beyond the grace
            await client.read_until(b"\n\n")
        assert "cancelled" not in layer.journal.entries
        await client.close()
        await layer.journal.wait_for("released")
        await layer.until_empty()


@linux_only
async def test_half_closed_client_of_a_slow_answer_counts_as_gone(layer):
    client = await layer.connect()
    await client.get("/wait")
    client.half_close()
    await layer.journal.wait_for("released")
    assert await client.read_all() == b""
    await layer.until_empty()


async def test_without_grace_an_end_of_input_is_a_disconnect(run_layer):
    async with run_layer(ServeOptions(half_close_grace_secs=0)) as layer:
        client = await layer.connect()
        await client.get("/silent")
        client.half_close()
        await layer.journal.wait_for("released")
        await layer.until_empty()


# -- slow clients ------------------------------------------------------------------------------


async def test_client_that_never_reads_is_aborted_and_others_are_served(run_layer):
    async with run_layer(ServeOptions(client_stall_secs=0.3)) as layer:
        stalled = []
        for _ in range(16):
            client = await layer.connect(receive_buffer_bytes=4096)
            await client.get("/endless?pause=0")
            stalled.append(client)
        await layer.journal.wait_for("producing", 16)
        reader = await layer.connect()
        for _ in range(50):
            await reader.get("/stream?n=20")
            assert (await reader.answer()).status == 200
        await layer.journal.wait_for("released", 16)
        assert layer.journal.entries.count("cancelled") == 16
        await reader.close()
        await layer.until_empty()


async def test_reader_that_is_slow_but_moves_is_served(run_layer):
    async with run_layer(ServeOptions(client_stall_secs=0.4)) as layer:
        client = await layer.connect(receive_buffer_bytes=4096)
        await client.get("/endless?pause=0")
        began = trio.current_time()
        while trio.current_time() < began + 1.2:
            assert await client.stream.receive_some(100_000)
            await trio.sleep(0.01)
        assert "cancelled" not in layer.journal.entries


async def test_dripped_head_ends_at_its_bound(run_layer):
    async with run_layer(ServeOptions(header_timeout_secs=0.2)) as layer:
        client = await layer.connect()
        await client.send("GET /health HTTP/1.1\r\nhost: t\r\n")
        with trio.move_on_after(10) as scope:
            async with trio.open_nursery() as nursery:

                async def drip() -> None:
                    try:
                        while True:
                            await client.stream.send_all(b"x: y\r\n")
                            await trio.sleep(0.02)
                    except trio.BrokenResourceError:
                        return

                nursery.start_soon(drip)
                answer = await client.answer_to_end()
                nursery.cancel_scope.cancel()
        assert not scope.cancelled_caught
        assert (answer.status, answer.error["code"]) == (408, "request_timeout")


async def test_second_head_has_a_bound_too(run_layer):
    async with run_layer(ServeOptions(header_timeout_secs=0.2)) as layer:
        client = await layer.connect()
        await client.send("GET /health HTTP/1.1\r\nhost: t\r\n\r\nGET /he")
        assert (await client.answer()).status == 200
        assert (await client.answer_to_end()).status == 408


async def test_silent_connection_is_closed(run_layer):
    async with run_layer(ServeOptions(header_timeout_secs=0.1)) as layer:
        client = await layer.connect()
        assert await client.read_all() == b""
        await layer.until_empty()


async def test_idle_connection_is_closed_after_its_answer(run_layer):
    async with run_layer(ServeOptions(keep_alive_timeout_secs=0.1)) as layer:
        client = await layer.connect()
        await client.get("/health")
        assert (await client.answer()).status == 200
        assert await client.read_all() == b""
        await layer.until_empty()


async def test_keep_alive_bound_does_not_cut_an_answer(run_layer):
    async with run_layer(ServeOptions(keep_alive_timeout_secs=0.05, header_timeout_secs=0.05)) as layer:
        client = await layer.connect()
        await client.get("/endless?pause=0.01")
        for _ in range(20):
            await client.read_until(b"\n\n")


async def test_dripped_body_ends_at_its_bound(run_layer):
    async with run_layer(ServeOptions(body_grace_secs=0.2, min_body_bytes_per_sec=1000)) as layer:
        client = await layer.connect()
        await client.send("POST /wait HTTP/1.1\r\nhost: t\r\ncontent-length: 100\r\n\r\nabc")
        answer = await client.answer_to_end()
        assert (answer.status, answer.error["code"]) == (408, "request_timeout")
        await layer.journal.wait_for("released")
        await client.close()
        await layer.until_empty()


async def test_steady_body_earns_its_time(run_layer):
    async with run_layer(ServeOptions(body_grace_secs=0.2, min_body_bytes_per_sec=1000)) as layer:
        client = await layer.connect()
        await client.send("POST /size HTTP/1.1\r\nhost: t\r\ncontent-length: 3000\r\n\r\n")
        for _ in range(10):  # 0.5 s
            await client.send("x" * 300)
            await trio.sleep(0.05)
        assert json.loads((await client.answer()).body) == {"size": 3000}


# -- unwanted bodies ---------------------------------------------------------------------------


@pytest.mark.parametrize("declared", [True, False])
async def test_client_that_sends_on_reads_its_refusal(run_layer, declared):
    size = 8_000_000
    async with run_layer(ServeOptions(max_body_bytes=1_000_000)) as layer:
        client = await layer.connect()
        if declared:
            await client.send(f"POST /size HTTP/1.1\r\nhost: t\r\ncontent-length: {size}\r\n\r\n" + "x" * size)
        else:
            chunk = "10000\r\n" + "x" * 65536 + "\r\n"
            await client.send("POST /size HTTP/1.1\r\nhost: t\r\ntransfer-encoding: chunked\r\n\r\n" + chunk * 100)
        assert (await client.answer_to_end()).status == 413
        await client.close()
        await layer.until_empty()


async def test_answer_before_the_body_is_read_by_a_client_that_sends_on(layer):
    size = 8_000_000
    client = await layer.connect()
    await client.send(f"POST /unread HTTP/1.1\r\nhost: t\r\ncontent-length: {size}\r\n\r\n" + "x" * size)
    assert (await client.answer_to_end()).status == 401
    await client.close()
    await layer.until_empty()


async def test_discarding_is_bounded(run_layer):
    async with run_layer(ServeOptions(max_body_bytes=1000, linger_bytes=100_000, linger_secs=10)) as layer:
        client = await layer.connect()
        await client.send("POST /size HTTP/1.1\r\nhost: t\r\ncontent-length: 900000000\r\n\r\n")

        async def send_for_ever() -> None:
            while True:
                await client.send(b"x" * 100_000)

        with pytest.raises(trio.BrokenResourceError):
            await send_for_ever()
        await layer.until_empty()
