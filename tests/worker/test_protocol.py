"""Frames survive any cutting of the stream, and nothing else passes."""

import math
import struct
import tracemalloc
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rustedvino.worker.protocol import (
    FROM_WORKER,
    MAX_FRAME_BYTES,
    TO_WORKER,
    FrameDecoder,
    FrameTooLarge,
    ProtocolError,
    TruncatedFrame,
    encode_frame,
)

DIRECTIONS = pytest.mark.parametrize("kinds", [TO_WORKER, FROM_WORKER], ids=["to_worker", "from_worker"])

leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.text(st.characters(categories=["Cs"]), min_size=1, max_size=3)
    | st.binary(max_size=20)
)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8) | st.integers(0, 9), inner, max_size=4)
    ),
    max_leaves=8,
)


def messages(kinds: frozenset[str]) -> st.SearchStrategy[list[list[Any]]]:
    """Lists of messages of a direction."""
    message = st.tuples(st.sampled_from(sorted(kinds)), st.lists(values, max_size=4)).map(
        lambda pair: [pair[0], *pair[1]]
    )
    return st.lists(message, max_size=6)


def cut(data: bytes, draw: st.DataObject) -> list[bytes]:
    """The same bytes in pieces of any sizes."""
    places = sorted(draw.draw(st.lists(st.integers(0, len(data)), max_size=8), label="cuts"))
    return [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)]


@DIRECTIONS
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_messages_survive_any_cutting(kinds: frozenset[str], data: st.DataObject) -> None:
    sent = data.draw(messages(kinds))
    decoder = FrameDecoder(kinds)
    received = [message for piece in cut(b"".join(map(encode_frame, sent)), data) for message in decoder.feed(piece)]
    assert received == sent
    decoder.end()


@DIRECTIONS
def test_byte_by_byte(kinds: frozenset[str]) -> None:
    sent = [[kind, 1, "ü", b"\x00\xff", [1.5, None]] for kind in sorted(kinds)]
    decoder = FrameDecoder(kinds)
    stream = b"".join(map(encode_frame, sent))
    assert [message for byte in stream for message in decoder.feed(bytes([byte]))] == sent


@DIRECTIONS
@settings(max_examples=40, deadline=None)
@given(garbage=st.binary(min_size=1, max_size=200), data=st.data())
def test_garbage_is_a_protocol_error_or_an_unfinished_frame(
    kinds: frozenset[str], garbage: bytes, data: st.DataObject
) -> None:
    decoder = FrameDecoder(kinds)
    try:
        for piece in cut(garbage, data):
            for message in decoder.feed(piece):
                assert message[0] in kinds
        decoder.end()
    except ProtocolError:
        pass


@DIRECTIONS
@settings(max_examples=40, deadline=None)
@given(payload=st.binary(max_size=100))
def test_a_framed_payload_is_a_known_message_or_an_error(kinds: frozenset[str], payload: bytes) -> None:
    decoder = FrameDecoder(kinds)
    try:
        (message,) = decoder.feed(struct.pack(">I", len(payload)) + payload)
    except ProtocolError:
        return
    assert isinstance(message, list)
    assert message[0] in kinds


@DIRECTIONS
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_cut_stream_is_truncated_exactly_inside_a_frame(kinds: frozenset[str], data: st.DataObject) -> None:
    frames = [encode_frame(message) for message in data.draw(messages(kinds).filter(bool))]
    stream = b"".join(frames)
    length = data.draw(st.integers(0, len(stream)))
    borders = {0}
    for frame in frames:
        borders.add(max(borders) + len(frame))
    decoder = FrameDecoder(kinds)
    whole = sum(border <= length for border in borders) - 1
    assert len(list(decoder.feed(stream[:length]))) == whole
    if length in borders:
        decoder.end()
    else:
        with pytest.raises(TruncatedFrame):
            decoder.end()


@DIRECTIONS
@settings(max_examples=40, deadline=None)
@given(length=st.integers(MAX_FRAME_BYTES + 1, 2**32 - 1))
def test_an_oversized_announcement_is_refused_before_any_payload(kinds: frozenset[str], length: int) -> None:
    with pytest.raises(FrameTooLarge):
        list(FrameDecoder(kinds).feed(struct.pack(">I", length)))


@pytest.mark.parametrize(
    "payload",
    [
        b"\xdd\xff\xff\xff\xff",  # an array of 4 G elements
        b"\xdf\xff\xff\xff\xff",  # a map
        b"\xc6\xff\xff\xff\xff",  # bytes
        b"\xdb\xff\xff\xff\xff",  # a string
        b"\x91" * 5000,  # nested deeper than any stack
        b"\xdd\x00\x00\x10\x00" * 800,
    ],
    ids=["array", "map", "bytes", "string", "nested", "nested arrays"],
)
def test_lying_lengths_inside_a_payload_allocate_little(payload: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            list(FrameDecoder(FROM_WORKER).feed(struct.pack(">I", len(payload)) + payload))
        assert tracemalloc.get_traced_memory()[1] < 64 * 1024 * 1024
    finally:
        tracemalloc.stop()


def test_an_announced_large_frame_allocates_nothing_until_it_comes() -> None:
    decoder = FrameDecoder(FROM_WORKER)
    tracemalloc.start()
    try:
        assert list(decoder.feed(struct.pack(">I", MAX_FRAME_BYTES) + b"x")) == []
        assert tracemalloc.get_traced_memory()[1] < 1024 * 1024
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("message", [["load", {}], ["nonsense"], [7], [], {"step": 1}, "step", None, [["step"]]])
def test_what_is_no_message_of_the_other_side(message: Any) -> None:
    payload = msgpack.packb(message)
    with pytest.raises(ProtocolError):
        list(FrameDecoder(FROM_WORKER).feed(struct.pack(">I", len(payload)) + payload))


def test_messages_before_a_broken_frame_are_delivered() -> None:
    stream = encode_frame(["pong", 1]) + encode_frame(["pong", 2]) + struct.pack(">I", 1) + b"\xc1"
    messages_of = FrameDecoder(FROM_WORKER).feed(stream)
    assert [next(messages_of), next(messages_of)] == [["pong", 1], ["pong", 2]]
    with pytest.raises(ProtocolError):
        next(messages_of)


def test_a_frame_of_exactly_the_limit_is_the_largest() -> None:
    overhead = len(msgpack.packb(["reply", b"x" * 2**17])) - 2**17
    largest = encode_frame(["reply", bytes(MAX_FRAME_BYTES - overhead)])
    assert len(largest) == MAX_FRAME_BYTES + 4
    ((kind, blob),) = FrameDecoder(FROM_WORKER).feed(largest)
    assert (kind, len(blob)) == ("reply", MAX_FRAME_BYTES - overhead)
    with pytest.raises(FrameTooLarge):
        encode_frame(["reply", bytes(MAX_FRAME_BYTES - overhead + 1)])


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1, object(), {1, 2}, {"a": [2**70]}])
def test_what_cannot_be_encoded_is_a_protocol_error(value: Any) -> None:
    with pytest.raises(ProtocolError, match="submit message cannot be encoded"):
        encode_frame(("submit", value))


def test_endless_nesting_is_a_protocol_error() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(ProtocolError):
        encode_frame(("call", endless))


def test_nan_and_infinities_pass() -> None:
    ((_, *numbers),) = FrameDecoder(FROM_WORKER).feed(encode_frame(["pong", math.nan, math.inf, -math.inf]))
    assert math.isnan(numbers[0])
    assert numbers[1:] == [math.inf, -math.inf]
