"""Every dialect: a call as a model writes it, cut anywhere, parses back to exactly itself."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rustedvino.text.tools.events import Content, Event, Reasoning, ToolCallArguments, ToolCallEnd, ToolCallStart
from rustedvino.text.tools.gpt_oss import TAGS as HARMONY_TAGS
from rustedvino.text.tools.output import FRAMES, TOOL_DIALECTS, OutputParser
from rustedvino.text.tools.pieces import ControlToken, Piece
from rustedvino.text.tools.qwen3_coder import TAGS as CODER_TAGS

Call = tuple[str, dict[str, Any]]

TAGS = {name: frozenset(tag for tag in frame.tags if tag[0] in "<[") for name, frame in FRAMES.items()}
TAGS |= {"qwen3_coder": frozenset(CODER_TAGS[:2]), "gpt_oss": frozenset(HARMONY_TAGS)}
NO_LETTERS = {"gpt_oss"}  # its tags are control tokens in every model there is
NAMES = ("f", "get_weather", "get_weather_now", "a1_b2")


def dumps(value: Any, *, ascii_only: bool) -> str:
    return json.dumps(value, ensure_ascii=ascii_only)


def python_literal(value: Any) -> str:
    return repr(value)


def render_call(dialect: str, calls: Sequence[Call], *, ascii_only: bool = False) -> list[str]:
    """The text a model writes for the calls, with each tag as a part of its own."""

    def objects(key: str) -> list[str]:
        return [
            f'{{"name": {json.dumps(name)}, "{key}": {dumps(arguments, ascii_only=ascii_only)}}}'
            for name, arguments in calls
        ]

    parts: list[str] = []
    if dialect == "hermes":
        for written in objects("arguments"):
            parts += [*(["\n"] if parts else []), "<tool_call>", f"\n{written}\n", "</tool_call>"]
    elif dialect == "mistral":
        for name, arguments in calls:
            parts += ["[TOOL_CALLS]", name, "[ARGS]", dumps(arguments, ascii_only=ascii_only)]
    elif dialect == "mistral list":
        parts = ["[TOOL_CALLS]", "[" + ", ".join(objects("arguments")) + "]"]
    elif dialect == "llama3_json":
        parts = ["; ".join(objects("parameters"))]
    elif dialect == "llama3_json tagged":
        parts = ["<|python_tag|>", "\n".join(objects("parameters"))]
    elif dialect == "phi4":
        parts = ["<|tool_call|>", "[" + ", ".join(objects("arguments")) + "]", "<|/tool_call|>"]
    elif dialect == "phi4 letters":
        parts = ["functools[" + ", ".join(objects("arguments")) + "]"]
    elif dialect == "gemma":
        parts = ["```json", "\n" + "\n".join(objects("parameters")) + "\n", "```"]
    elif dialect in ("pythonic", "gemma code"):
        written = [
            f"{name}({', '.join(f'{key}={python_literal(value)}' for key, value in arguments.items())})"
            for name, arguments in calls
        ]
        parts = ["[" + ", ".join(written) + "]"]
        if dialect == "gemma code":
            parts = ["```tool_code", "\n" + "\n".join(written) + "\n", "```"]
    elif dialect == "qwen3_coder":
        for name, arguments in calls:
            text = f"\n<function={name}>\n"
            for key, value in arguments.items():
                bare = value if isinstance(value, str) else dumps(value, ascii_only=ascii_only)
                text += f"<parameter={key}>\n{bare}\n</parameter>\n"
            parts += [*(["\n"] if parts else []), "<tool_call>", text + "</function>\n", "</tool_call>"]
    elif dialect == "gpt_oss":
        for name, arguments in calls:
            parts += ["<|start|>", "assistant"] if parts else []
            parts += ["<|channel|>", f"commentary to=functions.{name} ", "<|constrain|>", "json", "<|message|>"]
            parts += [dumps(arguments, ascii_only=ascii_only), "<|call|>"]
    else:
        raise AssertionError(dialect)
    return parts


NOTATIONS = (
    "hermes",
    "mistral",
    "mistral list",
    "llama3_json",
    "llama3_json tagged",
    "phi4",
    "phi4 letters",
    "gemma",
    "gemma code",
    "pythonic",
    "qwen3_coder",
    "gpt_oss",
)


def dialect_of(notation: str) -> str:
    return notation.partition(" ")[0]


NASTY = st.sampled_from(
    [
        *sorted({tag for tags in TAGS.values() for tag in tags}),
        '{"name": "f", "arguments": {}}',
        "</parameter>",
        "<parameter=a>",
        "</function>",
        "[f(a=1)]",
        "'''",
        '"""',
        "\\",
        "\\n",
        '"',
        "'",
        "}",
        "]",
        "\n",
        "\n\n",
        "\t",
        "\x00",
        "\u2028",
        "é漢🙂",
        "👩‍👩‍👧",
        "\\u0041",
    ]
)
TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
    st.lists(st.one_of(NASTY, st.text(st.characters(exclude_categories=["Cs"]), max_size=3)), max_size=4).map("".join),
)
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), TEXTS)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3), max_leaves=6
)
KEYS = st.from_regex(r"[a-z_][a-z0-9_]{0,6}", fullmatch=True)
CALLS = st.lists(st.tuples(st.sampled_from(NAMES), st.dictionaries(KEYS, VALUES, max_size=4)), min_size=1, max_size=3)


def type_name(value: Any) -> str:
    kinds = {type(None): "null", bool: "boolean", int: "integer", float: "number", str: "string", list: "array"}
    return kinds.get(type(value), "object")


def expressible(notation: str, calls: Sequence[Call]) -> bool:
    """What the notation has no way to write unambiguously."""
    if notation == "qwen3_coder":
        # no escaping: a value cannot hold the sequences that end one (the second tag may be the one behind it)
        values = [json.dumps(value, ensure_ascii=False) for _, arguments in calls for value in arguments.values()]
        return not any("</parameter>" in value or "</function>" in value for value in values)
    return True


def tools_for(notation: str, calls: Sequence[Call]) -> dict[str, dict[str, Any]]:
    tools: dict[str, dict[str, Any]] = {name: {"type": "object"} for name in NAMES}
    if notation == "qwen3_coder":
        for name, arguments in calls:
            properties = tools[name].setdefault("properties", {})
            for key, value in arguments.items():
                properties.setdefault(key, {"type": []})["type"].append(type_name(value))
    return tools


def parse(parser: OutputParser, pieces: Sequence[Piece]) -> list[Event]:
    events: list[Event] = []
    for piece in pieces:
        events += parser.push(piece)
    return events + parser.finish()


def joined(events: Sequence[Event]) -> tuple[str, str, list[tuple[str, str, bool]]]:
    """(reasoning, content, calls), checking the order and the indexes of the events on the way."""
    reasoning = content = ""
    calls: list[list[Any]] = []
    is_open = False
    for event in events:
        if isinstance(event, Reasoning):
            assert event.text
            reasoning += event.text
        elif isinstance(event, Content):
            assert event.text
            content += event.text
        elif isinstance(event, ToolCallStart):
            assert not is_open
            assert event.index == len(calls)
            calls.append([event.name, "", False])
            is_open = True
        elif isinstance(event, ToolCallArguments):
            assert is_open
            assert event.index == len(calls) - 1
            assert event.fragment
            calls[-1][1] += event.fragment
        else:
            assert isinstance(event, ToolCallEnd)
            assert is_open
            calls[-1][2] = event.complete
            is_open = False
    assert not is_open
    return reasoning, content, [(name, arguments, complete) for name, arguments, complete in calls]


def as_pieces(parts: Sequence[str], tags: frozenset[str], cuts: Sequence[int]) -> list[Piece]:
    """Tags as control tokens if in ``tags``; the text between them cut at the positions (of the whole text)."""
    pieces: list[Piece] = []
    at = 0
    for part in parts:
        if part in tags:
            pieces.append(ControlToken(1, part, special=False))
        else:
            borders = [0, *sorted({cut - at for cut in cuts if 0 < cut - at < len(part)}), len(part)]
            pieces += [part[a:b] for a, b in itertools.pairwise(borders)]
        at += len(part)
    return pieces


def check(notation: str, calls: Sequence[Call], pieces: Sequence[Piece], tags: frozenset[str]) -> None:
    parser = OutputParser(dialect=dialect_of(notation), tools=tools_for(notation, calls), control_tokens=tags)
    _, content, got = joined(parse(parser, pieces))
    assert content == ""
    assert [name for name, _, _ in got] == [name for name, _ in calls]
    assert all(complete for _, _, complete in got)
    assert parser.calls == len(calls)
    assert parser.cut_in is None
    for (_, arguments, _), (_, expected) in zip(got, calls, strict=True):
        assert_same(json.loads(arguments), expected)


def assert_same(got: Any, expected: Any) -> None:
    assert type(got) is type(expected) or {type(got), type(expected)} <= {int, float}
    if isinstance(expected, dict):
        assert list(got) == list(expected)
        for key, value in expected.items():
            assert_same(got[key], value)
    elif isinstance(expected, list):
        assert len(got) == len(expected)
        for left, right in zip(got, expected, strict=True):
            assert_same(left, right)
    else:
        assert got == expected


@pytest.mark.parametrize("as_control", [True, False])
@pytest.mark.parametrize("notation", NOTATIONS)
@given(calls=CALLS, ascii_only=st.booleans(), data=st.data())
@settings(max_examples=60, deadline=None)
def test_random_calls_parse_back_to_themselves(
    notation: str, as_control: bool, calls: list[Call], ascii_only: bool, data: st.DataObject
) -> None:
    if not expressible(notation, calls):
        return
    parts = render_call(notation, calls, ascii_only=ascii_only)
    length = sum(map(len, parts))
    tags = TAGS[dialect_of(notation)] if as_control or dialect_of(notation) in NO_LETTERS else frozenset()
    cuts = data.draw(st.one_of(st.just(range(length)), st.lists(st.integers(0, length), max_size=20)))
    if not as_control and not tags:
        parts = ["".join(parts)]
    check(notation, calls, as_pieces(parts, tags, cuts), tags)


EXAMPLE: list[Call] = [
    ("get_weather", {"city": "Zürich \"<tool_call>\" 'x' {[\n", "days": 3, "deep": {"a": [1.5, None, {"b": True}]}}),
    ("f", {}),
    ("get_weather_now", {"at": ["]", "}", "\\"], "none": None}),
]


@pytest.mark.parametrize("as_control", [True, False])
@pytest.mark.parametrize("notation", NOTATIONS)
def test_one_cut_at_every_position(notation: str, as_control: bool) -> None:
    tags = TAGS[dialect_of(notation)] if as_control or dialect_of(notation) in NO_LETTERS else frozenset()
    parts = render_call(notation, EXAMPLE)
    if not tags:
        parts = ["".join(parts)]
    for cut in range(sum(map(len, parts))):
        check(notation, EXAMPLE, as_pieces(parts, tags, [cut]), tags)


@pytest.mark.parametrize("notation", NOTATIONS)
def test_output_that_ends_anywhere_delivers_what_came(notation: str) -> None:
    """A cut never raises, never loses a call that was begun, and says that it is a cut."""
    tags = TAGS[dialect_of(notation)]
    pieces = as_pieces(render_call(notation, EXAMPLE), tags, range(10_000))
    complete = [json.dumps(arguments) for _, arguments in EXAMPLE]
    for length in range(len(pieces)):
        parser = OutputParser(dialect=dialect_of(notation), tools=tools_for(notation, EXAMPLE), control_tokens=tags)
        events = parse(parser, pieces[:length])
        _, _, got = joined(events)
        for index, (name, arguments, done) in enumerate(got):
            assert name == EXAMPLE[index][0]
            if done:
                assert json.loads(arguments) == json.loads(complete[index])
            else:
                assert index == len(got) - 1
                assert parser.cut_in == "tool_call"


@pytest.mark.parametrize("notation", NOTATIONS)
def test_only_the_first_call_without_parallel_calls(notation: str) -> None:
    tags = TAGS[dialect_of(notation)]
    parser = OutputParser(
        dialect=dialect_of(notation), tools=tools_for(notation, EXAMPLE), control_tokens=tags, parallel=False
    )
    assert not parser.satisfied
    _, content, got = joined(parse(parser, as_pieces(render_call(notation, EXAMPLE), tags, range(0, 10_000, 3))))
    assert content == ""
    assert [name for name, _, _ in got] == [EXAMPLE[0][0]]
    assert json.loads(got[0][1]) == EXAMPLE[0][1]
    assert parser.satisfied


@pytest.mark.parametrize("notation", NOTATIONS)
def test_text_that_looks_like_a_call_stays_text_without_tools(notation: str) -> None:
    tags = TAGS[dialect_of(notation)]
    parts = render_call(notation, EXAMPLE)
    for tools in (None, {}):
        parser = OutputParser(dialect=dialect_of(notation), tools=tools, control_tokens=tags)
        _, content, got = joined(parse(parser, as_pieces(parts, tags, range(0, 10_000, 5))))
        assert got == []
        assert parser.calls == 0
        if dialect_of(notation) != "gpt_oss":
            assert content == "".join(parts)


@pytest.mark.parametrize("notation", NOTATIONS)
def test_calls_stream_their_name_early_and_their_arguments_in_pieces(notation: str) -> None:
    call = ("get_weather", {"text": "word " * 40})
    tags = TAGS[dialect_of(notation)]
    parser = OutputParser(dialect=dialect_of(notation), tools=tools_for(notation, [call]), control_tokens=tags)
    per_push = [parser.push(piece) for piece in as_pieces(render_call(notation, [call]), tags, range(0, 10_000, 4))]
    fragments = [event for events in per_push for event in events if isinstance(event, ToolCallArguments)]
    assert len(fragments) > 30
    assert sum(isinstance(event, ToolCallStart) for events in per_push for event in events) == 1


FRAGMENTS = ['{"name": ', '"f"', '"arguments": ', "{", "}", ",", ":", "1", "null", "f(", "a=", ")", "[", "]", " ", "x"]
FRAGMENTS += ["<function=f>", "<function=", ">", "<parameter=a>", "</parameter>", "</function>", "f", "```"]
FRAGMENTS += ["commentary to=functions.f", "json", '{"name": "f", "arguments": {"a": 1}}', '"x', "\n", '"{\\"a\\": ']


def malformed(dialect: str) -> st.SearchStrategy[list[str]]:
    tags = sorted({*TAGS[dialect], *(FRAMES[dialect].tags if dialect in FRAMES else ())})
    return st.lists(st.one_of(st.sampled_from(tags), st.sampled_from(FRAGMENTS), NASTY), max_size=14)


@pytest.mark.parametrize("dialect", TOOL_DIALECTS)
@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_any_output_parses_the_same_however_it_is_cut(dialect: str, data: st.DataObject) -> None:
    """No exception, no event out of order, and the cuts between plain pieces make no difference."""
    parts = data.draw(malformed(dialect))
    tags = data.draw(st.sampled_from([TAGS[dialect], frozenset[str]()]))
    length = sum(map(len, parts))
    cuts = data.draw(st.lists(st.integers(0, length), max_size=20))
    results = []
    for positions in ((), cuts, range(length)):
        merged: list[str] = []
        for part in parts:
            if merged and part not in tags and merged[-1] not in tags:
                merged[-1] += part
            else:
                merged.append(part)
        parser = OutputParser(dialect=dialect, tools=tools_for(dialect, []), control_tokens=tags)
        results.append(joined(parse(parser, as_pieces(merged, tags, positions))))
    assert results[0] == results[1] == results[2]
    if not results[0][2] and dialect != "gpt_oss":
        assert results[0][1] == "".join(parts)
