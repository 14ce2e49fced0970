"""Blocks of markdown that no longer change."""

from hypothesis import given
from hypothesis import strategies as st

from rustedvino.rv.markdown_stream import BlockSplitter

LINES = st.sampled_from(
    [
        "",
        "text",
        "# head",
        "- item",
        "  more of it",
        "1. one",
        "```python",
        "```",
        "~~~~",
        "    code",
        "| a | b |",
        "  ",
    ]
)


def split(pieces: list[str]) -> tuple[list[str], str]:
    splitter = BlockSplitter()
    blocks = [block for piece in pieces for block in splitter.feed(piece)]
    return blocks, splitter.rest


@given(st.lists(LINES, max_size=20), st.lists(st.integers(1, 8), min_size=1, max_size=30))
def test_blocks_are_the_text_however_it_arrives(lines: list[str], sizes: list[int]) -> None:
    text = "\n".join(lines)
    pieces, at = [], 0
    for length in sizes:
        pieces.append(text[at : at + length])
        at += length
    pieces.append(text[at:])
    blocks, rest = split(pieces)
    assert "".join(blocks) + rest == text
    assert (blocks, rest) == split([text])


def test_a_block_ends_where_the_next_one_begins() -> None:
    assert split(["one\n\n"]) == ([], "one\n\n")
    assert split(["one\n\ntwo"]) == ([], "one\n\ntwo")
    assert split(["one\n\ntwo\n"]) == (["one\n\n"], "two\n")


def test_nothing_is_cut_within_a_fence() -> None:
    code = "```python\na = 1\n\nb = 2\n"
    assert split([code]) == ([], code)
    assert split([code + "```\n\nafter\n"]) == ([code + "```\n\n"], "after\n")
    tildes = "~~~~\n~~~\n\n```\n\nx\n"
    assert split([tildes]) == ([], tildes)


def test_a_list_item_with_paragraphs_stays_whole() -> None:
    item = "- item\n\n  its second paragraph\n"
    assert split([item + "\nafter\n"]) == ([item + "\n"], "after\n")
