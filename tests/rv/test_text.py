"""Values as words."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rustedvino.rv.text import counted, duration, listed, safe, shown, size


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (None, "–"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (100 * 1024, "100 KiB"),
        (1000 * 1024, "1.0 MiB"),
        (2**30, "1.0 GiB"),
        (8.5 * 2**30, "8.5 GiB"),
        (5000 * 2**40, "5000 TiB"),
    ],
)
def test_size(count: float | None, words: str) -> None:
    assert size(count) == words


@given(st.integers(0, 10**15))
def test_sizes_are_short(count: int) -> None:
    assert len(size(count)) <= 8


@pytest.mark.parametrize(
    ("secs", "words"),
    [
        (None, "–"),
        (0.04, "0.0 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (59.6, "1 min"),
        (185, "3 min 5 s"),
        (7800, "2 h 10 min"),
        (86400, "1 d"),
        (356400, "4 d 3 h"),
    ],
)
def test_duration(secs: float | None, words: str) -> None:
    assert duration(secs) == words


@given(st.text())
def test_safe_text_has_nothing_a_terminal_obeys(text: str) -> None:
    shown_text = safe(text)
    assert len(shown_text) == len(text)
    assert all(unicodedata.category(char) != "Cc" for char in shown_text if char not in "\n\t")
    assert "\u202e" not in shown_text


def test_safe_text_keeps_what_is_harmless() -> None:
    assert safe("żółw 亀 🐢\tx\n") == "żółw 亀 🐢\tx\n"
    assert safe("\x1b]0;title\x07\x9b31m") == "\ufffd]0;title\ufffd\ufffd31m"


def test_words() -> None:
    assert [counted(1, "model"), counted(2, "model")] == ["1 model", "2 models"]
    assert [listed([]), listed(["a"]), listed(["a", "b", "c"])] == ["none", "a", "a, b and c"]
    assert shown({"a": None, "b": [True, 1.5], "c": {}}) == "a –, b yes, 1.5, c none"
