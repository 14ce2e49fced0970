import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rustedvino.text.stops import StopMatcher

ALPHABET = "ab🙂"
TEXTS = st.text(ALPHABET, max_size=24)
STOPS = st.lists(st.text(ALPHABET, min_size=1, max_size=6), min_size=1, max_size=4)


def by_find(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The definition, unstreamed."""
    found = [(text.find(stop), len(stop), stop) for stop in stops if stop in text]
    if not found:
        return text, None
    start, _, stop = min(found)
    return text[:start], stop


def stream(stops: list[str], pieces: list[str]) -> tuple[str, str | None, list[str]]:
    matcher = StopMatcher(stops)
    sent = [matcher.push(piece).text_to_emit for piece in pieces]
    sent.append(matcher.flush().text_to_emit)
    return "".join(sent), matcher.hit, sent


@given(TEXTS, STOPS)
@settings(max_examples=300, deadline=None)
def test_every_split_gives_the_unstreamed_text(text, stops):
    expected = by_find(text, stops)
    for split in range(len(text) + 1):
        assert stream(stops, [text[:split], text[split:]])[:2] == expected
    assert stream(stops, list(text))[:2] == expected


@given(TEXTS, STOPS)
@settings(max_examples=200, deadline=None)
def test_only_what_may_become_a_stop_string_is_held_back(text, stops):
    matcher = StopMatcher(stops)
    sent = ""
    for index, char in enumerate(text):
        result = matcher.push(char)
        sent += result.text_to_emit
        if result.hit is not None:
            break
        held = text[len(sent) : index + 1]
        assert text.startswith(sent)
        # what is held begins a stop string, or a shorter stop string waits for one that began before it
        assert not held or any(stop.startswith(held) or held.startswith(stop[:-1]) for stop in stops)


def test_a_hit_is_told_by_the_push_that_completes_it():
    matcher = StopMatcher(["END"])
    assert matcher.push("to the E").text_to_emit == "to the "
    assert matcher.push("N").text_to_emit == ""
    result = matcher.push("D and more")
    assert (result.text_to_emit, result.hit) == ("", "END")
    assert matcher.push("ignored").text_to_emit == ""
    assert matcher.flush().text_to_emit == ""


def test_what_was_held_comes_out_when_it_is_no_stop_string():
    matcher = StopMatcher(["\nUser:"])
    assert matcher.push("a\nUs").text_to_emit == "a"
    assert matcher.push("ing").text_to_emit == "\nUsing"
    assert matcher.push("\nU").text_to_emit == ""
    assert matcher.flush().text_to_emit == "\nU"


def test_the_earlier_start_wins_over_the_earlier_end():
    assert stream(["abcd", "bc"], ["ab", "c", "d"])[:2] == ("", "abcd")
    assert stream(["abcd", "bc"], ["ab", "c", "x"])[:2] == ("a", "bc")
    assert stream(["abcd", "bc"], ["ab", "c"])[:2] == ("a", "bc")


def test_of_the_same_start_the_shorter_wins():
    assert stream(["abc", "ab"], ["a", "b", "c"])[:2] == ("", "ab")


def test_no_stop_strings_pass_everything():
    matcher = StopMatcher([])
    assert matcher.push("text").text_to_emit == "text"
    assert matcher.flush().text_to_emit == ""


def test_an_empty_stop_string_is_refused():
    with pytest.raises(ValueError, match="empty"):
        StopMatcher(["a", ""])


def test_each_character_is_looked_at_a_bounded_number_of_times(monkeypatch):
    """A stop string of repeated characters is the worst case of a rescan."""
    matcher = StopMatcher(["a" * 500 + "b"])
    pieces = ["a"] * 5000
    emitted = [matcher.push(piece).text_to_emit for piece in pieces]
    assert sum(map(len, emitted)) == 4500
    assert max(map(len, emitted)) == 1
    assert len(matcher._held) <= 500
