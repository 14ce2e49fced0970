"""Events out of bytes, however they are cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rustedvino.rv import events
from rustedvino.rv.errors import RvError
from rustedvino.rv.events import EventParser


def feed_all(data: bytes, cuts: list[int]) -> list[str]:
    parser = EventParser()
    places = sorted({min(cut, len(data)) for cut in cuts})
    pieces = [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)]
    return [event for piece in pieces for event in parser.feed(piece)]


@given(
    st.lists(st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=20), max_size=6),
    st.lists(st.integers(0, 200)),
    st.sampled_from(["\n", "\r\n"]),
)
def test_events_do_not_depend_on_how_they_arrive(texts: list[str], cuts: list[int], end: str) -> None:
    data = f"{end}".join(f": ping{end}{end}event: x{end}data: {text}{end}" for text in texts) + end
    assert feed_all(data.encode(), cuts) == texts


def test_data_over_several_lines_and_a_comment() -> None:
    assert EventParser().feed(b":hello\n\ndata: a\ndata:b\n\ndata: unfinished") == ["a\nb"]


def test_an_event_without_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAX_EVENT_BYTES", 100)
    parser = EventParser()
    parser.feed(b"data: " + b"x" * 60)
    with pytest.raises(RvError, match="does not end"):
        parser.feed(b"x" * 60)
