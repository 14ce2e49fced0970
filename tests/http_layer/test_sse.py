from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from rustedvino.http import sse


def read_events(raw: bytes) -> list[tuple[str, str]]:
    """Events as (name, data), read as the HTML standard says."""
    events, name, data = [], "message", []
    text = raw.decode().replace("\r\n", "\n").replace("\r", "\n")
    for line in text.split("\n"):
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if data:
                events.append((name, "\n".join(data)))
            name, data = "message", []
        elif field == "data":
            data.append(value)
        elif field == "event":
            name = value
    return events


@settings(deadline=None, max_examples=100)
@given(st.text(st.characters(codec="utf-8")))
def test_any_text_survives_as_one_event(text):
    normal = text.replace("\r\n", "\n").replace("\r", "\n")
    assert read_events(sse.text_event(text)) == [("message", normal)]


@settings(deadline=None, max_examples=100)
@given(st.text(st.characters(codec="utf-8")))
def test_a_comment_is_never_an_event(text):
    assert read_events(sse.comment(text) + sse.KEEP_ALIVE) == []


def test_events():
    raw = sse.data_event(b'{"a":1}') + sse.KEEP_ALIVE + sse.named_event("delta", b"{}") + sse.DONE
    assert read_events(raw) == [("message", '{"a":1}'), ("delta", "{}"), ("message", "[DONE]")]


async def test_reply_has_the_headers_of_a_stream(layer):
    client = await layer.connect()
    await client.get("/stream?n=1")
    answer = await client.answer()
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["x-accel-buffering"] == "no"
    assert "content-length" not in answer.headers


async def test_silence_is_filled_with_comments(layer):
    client = await layer.connect()
    await client.get("/silent?keepalive=0.02")
    for _ in range(3):
        await client.read_until(sse.KEEP_ALIVE)
    await client.close()
    await layer.journal.wait_for("released")


async def test_no_comment_while_events_flow(run_layer):
    async with run_layer() as layer:
        client = await layer.connect()
        await client.get("/stream?n=500")
        assert b": keep-alive" not in (await client.answer()).body
