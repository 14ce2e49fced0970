from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from rustedvino.text.tools.pieces import TagFinder, letter_tags


def find(finder: TagFinder, chunks: list[str]) -> list[tuple[str, bool]]:
    """(text, is a tag) with neighbouring text joined."""
    found: list[tuple[str, bool]] = []

    def text(part: str) -> None:
        if part and found and not found[-1][1]:
            found[-1] = (found[-1][0] + part, False)
        elif part:
            found.append((part, False))

    for chunk in chunks:
        rest = chunk
        while rest:
            before, tag, rest = finder.feed(rest)
            text(before)
            if tag is not None:
                found.append((tag, True))
    text(finder.flush())
    return found


def test_tags_are_found_across_cuts() -> None:
    finder = TagFinder(["<a>", "[bcd]"])
    assert find(finder, ["x<", "a", ">y[b", "cd][bc", "<a>", "<"]) == [
        ("x", False),
        ("<a>", True),
        ("y", False),
        ("[bcd]", True),
        ("[bc", False),
        ("<a>", True),
        ("<", False),
    ]


@given(parts=st.lists(st.sampled_from(["<a>", "<ab", "<", "a", ">", "[b", "]", "x"]), max_size=12))
@settings(max_examples=150, deadline=None)
def test_cuts_make_no_difference(parts: list[str]) -> None:
    text = "".join(parts)
    whole = find(TagFinder(["<a>", "<abc", "[b]"]), [text] if text else [])
    assert find(TagFinder(["<a>", "<abc", "[b]"]), list(text)) == whole
    assert find(TagFinder(["<a>", "<abc", "[b]"]), parts) == whole
    assert "".join(part for part, _ in whole) == text


def test_no_more_than_a_tag_is_held_back() -> None:
    finder = TagFinder(["<tool_call>"])
    assert finder.feed("<" * 1000 + "tool") == ("<" * 999, None, "")
    assert finder.holding
    assert not finder.is_clear("x")
    assert finder.feed("box") == ("<toolbox", None, "")
    assert finder.is_clear("box")
    assert not finder.is_clear("<")


def test_without_tags_everything_is_clear() -> None:
    finder = TagFinder([])
    assert not finder
    assert finder.is_clear("<anything>")
    assert finder.feed("<anything>") == ("<anything>", None, "")


def test_only_tags_without_a_control_token_count_as_letters() -> None:
    assert letter_tags(("<a>", "<b>"), frozenset({"<a>"})) == ("<b>",)
