"""Lines out of pieces, and no more memory than said."""

from hypothesis import given, settings
from hypothesis import strategies as st

from rustedvino.hub.log_tail import LINE_BYTES, TAIL_BYTES, LogTail


@settings(deadline=None)
@given(text=st.text(st.sampled_from("ab\nü"), max_size=200), data=st.data())
def test_lines_do_not_depend_on_the_pieces(text: str, data: st.DataObject) -> None:
    raw = text.encode()
    places = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=6)))
    lines: list[bytes] = []
    tail = LogTail(lines.append)
    for start, end in zip([0, *places], [*places, len(raw)], strict=True):
        tail.feed(raw[start:end])
    tail.end()
    expected = raw.split(b"\n")
    if not expected[-1]:
        expected.pop()
    assert lines == expected
    assert tail.text() == b"\n".join(expected).decode()


def test_long_lines_are_cut_and_long_output_keeps_its_end() -> None:
    lines: list[bytes] = []
    tail = LogTail(lines.append)
    for _ in range(300):
        tail.feed(b"x" * 65_536)
    tail.feed(b"\nshort\n")
    assert lines == [b"x" * LINE_BYTES, b"short"]
    for number in range(100_000):
        tail.feed(b"line %d\n" % number)
    text = tail.text()
    assert text.endswith("line 99998\nline 99999")
    assert TAIL_BYTES - 100 < len(text) <= TAIL_BYTES


def test_output_that_is_all_line_ends_and_bytes_that_are_no_text() -> None:
    tail = LogTail(lambda line: None)
    tail.feed(b"\n" * 200_000 + b"\xff\xfe")
    tail.end()
    assert len(tail.text()) <= TAIL_BYTES
    assert tail.text().endswith("\n\ufffd\ufffd")
