"""Pieces sent without waiting: what the socket does not take, who sends it, and what stays behind it."""

import pytest
import trio
from quart import request
from quart_trio import QuartTrio

from rustedvino.http.asgi import PieceSender, Send, StreamingReply, request_cleanup
from rustedvino.http.options import ServeOptions
from rustedvino.http.sse import DONE, KEEP_ALIVE, data_event, sse_reply
from tests.http_layer.conftest import Journal, parse

KIB = 1024


class Producer:
    """An application with one stream, whose sender a test drives."""

    def __init__(self, keepalive_secs: float = 0.0) -> None:
        self.keepalive_secs = keepalive_secs
        self.sender: PieceSender | None = None
        self.ends = trio.Event()

    def make_app(self, journal: Journal) -> QuartTrio:
        app = QuartTrio("pieces")

        @app.get("/stream")
        async def stream() -> StreamingReply:
            request_cleanup(request).callback(journal.note, "released")

            async def produce(send: Send) -> None:
                assert isinstance(send, PieceSender)
                self.sender = send
                journal.note("producing")
                try:
                    await self.ends.wait()
                    await send.flush()
                    journal.note("flushed")
                    await send(DONE)
                except trio.Cancelled:
                    journal.note("cancelled")
                    raise

            return sse_reply(produce, keepalive_secs=self.keepalive_secs)

        return app

    def fill(self) -> bytes:
        """Send until the socket takes no more, in the middle of a piece. Returns the body so far."""
        assert self.sender is not None
        sent = b""
        for number in range(100_000):
            assert self.sender.is_clear
            piece = data_event(b"%d " % number + b"x" * 16 * KIB)
            sent += piece
            if not self.sender.now(piece):
                return sent
        raise AssertionError("the socket took everything")


async def test_pieces_arrive_as_those_that_waited(run_layer):
    producer = Producer()
    async with run_layer(app=producer.make_app) as layer:
        client = await layer.connect()
        await client.get("/stream")
        await layer.journal.wait_for("producing")
        pieces = [data_event(b"%d" % number) for number in range(50)]
        for number, piece in enumerate(pieces):
            if number % 3:
                assert producer.sender.now(piece)
            else:
                await producer.sender(piece)
        producer.ends.set()
        assert (await client.answer()).body == b"".join(pieces) + DONE


async def test_what_is_left_of_a_piece_goes_first(run_layer):
    """A keep-alive comment, and a piece sent by waiting, never come between the parts of one."""
    producer = Producer(keepalive_secs=0.01)
    async with run_layer(app=producer.make_app) as layer:
        client = await layer.connect(receive_buffer_bytes=4 * KIB)
        await client.get("/stream")
        await layer.journal.wait_for("producing")
        sent = producer.fill()
        assert not producer.sender.is_clear
        last = data_event(b"last")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(producer.sender, last)
            await trio.testing.wait_all_tasks_blocked()
            began = producer.sender.last_sent_at
            while producer.sender.last_sent_at == began:  # a comment was due, and left out  # noqa: ASYNC110
                await trio.sleep(0.002)
            raw = await client.read_until(last)
        assert producer.sender.is_clear
        producer.ends.set()
        answer = parse(raw + await client.read_until(b"\r\n0\r\n\r\n"))
        events = answer.body.replace(KEEP_ALIVE, b"")
        assert events == sent + last + DONE
        assert answer.body.startswith(sent + last)


async def test_flush_waits_for_the_rest(run_layer):
    producer = Producer()
    async with run_layer(app=producer.make_app) as layer:
        client = await layer.connect(receive_buffer_bytes=4 * KIB)
        await client.get("/stream")
        await layer.journal.wait_for("producing")
        sent = producer.fill()
        producer.ends.set()
        await trio.testing.wait_all_tasks_blocked()
        assert "flushed" not in layer.journal.entries
        assert (await client.answer()).body == sent + DONE


async def test_flushing_to_a_client_that_reads_nothing_ends(run_layer):
    producer = Producer()
    async with run_layer(ServeOptions(client_stall_secs=0.3), app=producer.make_app) as layer:
        client = await layer.connect(receive_buffer_bytes=4 * KIB)
        await client.get("/stream")
        await layer.journal.wait_for("producing")
        producer.fill()
        producer.ends.set()
        await layer.journal.wait_for("released")
        await layer.until_empty()


@pytest.mark.parametrize("blocked", [False, True])
@pytest.mark.parametrize("how", ["close", "reset"])
async def test_client_that_leaves_between_two_pieces(run_layer, how, blocked):
    producer = Producer()
    async with run_layer(app=producer.make_app) as layer:
        client = await layer.connect(receive_buffer_bytes=4 * KIB)
        await client.get("/stream")
        await layer.journal.wait_for("producing")
        if blocked:
            producer.fill()
        if how == "reset":
            client.reset()
        else:
            await client.close()
        with trio.fail_after(20):
            while producer.sender.is_clear:
                producer.sender.now(data_event(b"nobody reads this"))
                await trio.sleep(0.001)
        await layer.journal.wait_for("released")
        assert "cancelled" in layer.journal.entries
        assert not producer.sender.is_clear
        await layer.until_empty()


async def test_time_of_silence_counts_from_the_last_piece(run_layer, autojump_clock):
    """`now` is a sign of life like any other send."""
    sender_calls = []

    class Still:
        is_clear = True

        def send_chunk_now(self, data: bytes) -> bool:
            sender_calls.append(data)
            return True

    sender = PieceSender(Still())  # type: ignore[arg-type]
    await trio.sleep(7)
    sender.now(b"x")
    assert sender.last_sent_at == trio.current_time()
    assert sender_calls == [b"x"]
