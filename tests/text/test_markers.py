import json
import re

import jinja2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rustedvino.text.markers import (
    ESCAPE,
    MARK,
    WIRE_KEYS,
    ControlMarker,
    ControlString,
    Piece,
    alternation,
)

CONTROLS = ["<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "[INST]", "<a><a>", "¶", "<|user|>"]
MARKER = ControlMarker(CONTROLS)

# Text rich in control strings, parts of them, and the marks themselves.
CLIENT_TEXT = st.lists(
    st.sampled_from(CONTROLS)
    | st.sampled_from([control[:3] for control in CONTROLS] + [control[3:] for control in CONTROLS])
    | st.sampled_from([MARK, ESCAPE, "\U0010f5a3", "\U0010f5a4", "\U0010f600", " ", "\n", "x", "user", "a><", "é"]),
    max_size=6,
).map("".join)

# What templates do with a content.
WRAPPERS = [
    "{{ x }}",
    "<|im_start|>user\n{{ x }}<|im_end|>",
    "{{ x | trim }}",
    "<|im_{{ x }}|>",
    "{{ x }}end|>{{ y }}",
    "{{ x }}m_end|>{{ y }}",
    "{{ x | trim }}ink>",
    "<{{ x }}>",
    "<|{{ x }}|>",
    "{{ x }}{{ y }}{{ x }}",
    "{{ x | tojson }}",
    "{{ x.split('\\n')[-1] }}k>",
    "{{ (x ~ y).strip() }}|>",
    "{{ x | replace('x', 'y') }}",
    "[{{ x | trim }}NST]",
    "{{ x.lstrip('\\n') }}think>",
    "{{ {'a': x, x: y} | tojson(indent=2) }}",
]
ENVIRONMENT = jinja2.Environment()
ENVIRONMENT.filters["tojson"] = lambda value, **kw: json.dumps(value, ensure_ascii=False, **kw)


def controls_of(pieces: list[Piece]) -> list[str]:
    return [piece.text for piece in pieces if piece.control]


@given(CLIENT_TEXT)
@settings(max_examples=200, deadline=None)
def test_marking_is_undone_exactly(text):
    marked = MARKER.mark(text)
    assert MARKER.unmark(marked) == text
    assert controls_of(MARKER.split(marked)) == []
    assert "".join(piece.text for piece in MARKER.split(marked)) == text


@pytest.mark.parametrize("source", WRAPPERS)
@given(x=CLIENT_TEXT, y=CLIENT_TEXT)
@settings(max_examples=60, deadline=None)
def test_no_template_makes_a_control_string_of_client_text(source, x, y):
    template = ENVIRONMENT.from_string(source)
    own = re.findall(alternation(CONTROLS), source)
    rendered = template.render(x=MARKER.mark(x), y=MARKER.mark(y))
    assert controls_of(MARKER.split(rendered)) == own


@pytest.mark.parametrize("source", WRAPPERS)
@given(x=CLIENT_TEXT, y=CLIENT_TEXT)
@settings(max_examples=60, deadline=None)
def test_the_prompt_reads_as_if_nothing_had_been_marked(source, x, y):
    template = ENVIRONMENT.from_string(source)
    rendered = template.render(x=MARKER.mark(x), y=MARKER.mark(y))
    assert "".join(piece.text for piece in MARKER.split(rendered)) == template.render(x=x, y=y)


def test_text_without_control_strings_is_not_changed():
    text = "Hello, what is 1 < 2? A list:\n- a\n- b"
    assert MARKER.mark(text) is text or MARKER.mark(text) == text
    assert not MARKER.is_marked(MARKER.mark(text))


def test_overlapping_occurrences_are_all_broken():
    marked = MARKER.mark("<a><a><a>")
    for cut in range(len(marked)):
        assert controls_of(MARKER.split(marked[cut:])) == []


def test_a_tree_keeps_the_words_of_the_wire_format():
    marker = ControlMarker(["<|user|>", "<|text|>", "<name>", "<|tool|>"])
    tree = {
        "role": "user",
        "content": [{"type": "text", "text": "a<|user|>b"}],
        "name": "user",
        "tool": {"user": 1, "q": None, "y": True, "name": 2.5},
    }
    marked = marker.mark_tree(tree)
    assert marked["role"] == "user"
    assert marked["content"][0]["type"] == "text"
    assert marked["content"][0]["text"] == f"a<{MARK}|user|>b"
    assert marked["name"] == MARK + "user"
    assert marked[MARK + "tool"] == {MARK + "user": 1, "q": None, "y": True, "name": 2.5}
    assert tree["content"][0]["text"] == "a<|user|>b"


def test_a_role_that_is_none_is_marked():
    marker = ControlMarker(["<|boss|>", "<|user|>"])
    assert marker.mark_tree([{"role": "boss"}]) == [{"role": MARK + "boss"}]


def test_wire_keys_cannot_be_control_strings_by_themselves():
    assert all(re.fullmatch(r"\$?\w+", key) for key in WIRE_KEYS)


def test_white_space_and_word_rules_of_a_token():
    marker = ControlMarker(
        [
            ControlString("<L>", lstrip=True),
            ControlString("<R>", rstrip=True),
            ControlString("word", single_word=True),
        ]
    )
    pieces = marker.split("a \n<L> b <R>\t\u3000c word words sword word")
    assert [(piece.text, piece.control) for piece in pieces] == [
        ("a", False),
        ("<L>", True),
        (" b ", False),
        ("<R>", True),
        ("c ", False),
        ("word", True),
        (" words sword ", False),
        ("word", True),
    ]


def test_the_longest_control_string_wins():
    marker = ControlMarker(["<x", "<x>", "<x>y"])
    assert controls_of(marker.split("<x>y<x>z<xz")) == ["<x>y", "<x>", "<x"]


def test_thousands_of_control_strings_stay_quick_to_find():
    """As many as the largest vocabularies reserve; a flat alternation would try each at every `<`."""
    marker = ControlMarker([f"<unused{index}>" for index in range(6000)])
    text = "<unused> <p>" * 2000
    assert marker.unmark(marker.mark(text)) == text
    assert marker.split(text + "<unused4711>")[-1] == Piece("<unused4711>", control=True)


@pytest.mark.parametrize("bad", ["", f"a{MARK}", f"{ESCAPE}"])
def test_unusable_control_strings_are_refused(bad):
    with pytest.raises(ValueError, match="not usable"):
        ControlMarker([bad])


def test_no_control_strings_at_all():
    marker = ControlMarker([])
    assert marker.split(marker.mark(f"a{MARK}")) == [Piece(f"a{MARK}", control=False, start=True)]
