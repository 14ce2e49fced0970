from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rustedvino.text.tools.json_scan import MAX_DEPTH, JsonScanner, StringDecoder

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def scan(text: str, step: int = 1) -> tuple[JsonScanner, str, int]:
    scanner, out, end = JsonScanner(), list[str](), 0
    for at in range(0, len(text), step):
        chunk = text[at : at + step]
        taken = scanner.feed(chunk, 0, out)
        end += taken
        if taken < len(chunk):
            break
    return scanner, "".join(out), end


@given(value=JSON, indent=st.sampled_from([None, 0, 2]), ascii_only=st.booleans(), step=st.integers(1, 30))
@settings(max_examples=150, deadline=None)
def test_json_passes_as_it_is(value: Any, indent: int | None, ascii_only: bool, step: int) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    scanner, out, end = scan(text + " behind", step)
    assert scanner.done
    assert out == text
    assert end == len(text)


@given(text=st.text(st.sampled_from('{}[]",:\\ue1-.0tfn \n\x01a'), max_size=14))
@settings(max_examples=200, deadline=None)
def test_what_is_accepted_is_json_and_what_python_reads_is_accepted(text: str) -> None:
    scanner, out, end = scan(text + "\n")
    if scanner.done:
        json.loads(out)
    try:
        json.loads(text)
    except ValueError:
        return
    assert scanner.done
    assert out == text.rstrip()[: len(out)] or out.strip() == text.strip()
    assert end >= len(text.rstrip())


@pytest.mark.parametrize(
    "text", ['{"a" 1}', "{,}", "[1,]", "{'a':1}", "[01]", "1.e", "-x", "tru!", "]", "[}", "+1", "NaN"]
)
def test_what_is_no_json_is_broken(text: str) -> None:
    scanner, _, _ = scan(text)
    assert scanner.broken


def test_common_faults_in_strings_are_put_right() -> None:
    scanner, out, _ = scan('{"a": "line\nend \\d \\\' \\u12 \x00"}')
    assert scanner.done
    assert json.loads(out) == {"a": "line\nend \\d ' \\u12 \x00"}


def test_nesting_is_bounded_and_deep_input_is_no_trouble() -> None:
    assert scan("[" * MAX_DEPTH + "]" * MAX_DEPTH)[0].done
    assert scan("[" * 100_000, 1000)[0].broken


@given(text=st.text(max_size=20), ascii_only=st.booleans(), step=st.integers(1, 9))
@settings(max_examples=150, deadline=None)
def test_strings_are_decoded_as_they_come(text: str, ascii_only: bool, step: int) -> None:
    text = text.encode("utf-8", "replace").decode()
    written = json.dumps(text, ensure_ascii=ascii_only)[1:] + "behind"
    decoder, out = StringDecoder(), list[str]()
    for at in range(0, len(written), step):
        decoder.feed(written[at : at + step], 0, out)
    assert decoder.done
    assert "".join(out) == text


def test_half_a_surrogate_pair_becomes_a_replacement_character() -> None:
    decoder, out = StringDecoder(), list[str]()
    decoder.feed('\\ud83d x \\ude00 \\ud83d\\ude00 \\q \\u1z"', 0, out)
    assert decoder.done
    assert "".join(out) == "� x � 😀 \\q \\u1z"
