"""Behaviour the dialects with tags (and those of bare calls) share, mostly shown on hermes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from rustedvino.text.tools.events import Content, Event, ToolCallArguments, ToolCallEnd, ToolCallStart
from rustedvino.text.tools.output import FRAMES, OutputParser
from rustedvino.text.tools.pieces import ControlToken, Piece

TOOLS: dict[str, dict[str, Any]] = {
    "f": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}},
    "get_weather": {"type": "object"},
}
OPEN, CLOSE = ControlToken(5, "<tool_call>", special=False), ControlToken(6, "</tool_call>", special=False)
CONTROL = frozenset({"<tool_call>", "</tool_call>"})


def run(
    *pieces: Piece, dialect: str = "hermes", control: frozenset[str] = CONTROL, parallel: bool = True
) -> tuple[list[Event], OutputParser]:
    parser = OutputParser(dialect=dialect, tools=TOOLS, control_tokens=control, parallel=parallel)
    events = [event for piece in pieces for event in parser.push(piece)]
    return events + parser.finish(), parser


def content(events: Sequence[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Content))


def calls(events: Sequence[Event]) -> list[tuple[str, str]]:
    names = {event.index: event.name for event in events if isinstance(event, ToolCallStart)}
    arguments = dict.fromkeys(names, "")
    for event in events:
        if isinstance(event, ToolCallArguments):
            assert type(event.fragment) is str
            arguments[event.index] += event.fragment
    return [(names[index], arguments[index]) for index in sorted(names)]


def complete(events: Sequence[Event]) -> list[bool]:
    return [event.complete for event in events if isinstance(event, ToolCallEnd)]


def hermes(text: str) -> tuple[list[Event], OutputParser]:
    """One call's inside, a character at a time."""
    return run(OPEN, *text, CLOSE)


def test_events_of_one_call_in_order() -> None:
    parser = OutputParser(dialect="hermes", tools=TOOLS, control_tokens=CONTROL)
    assert parser.push("Let me see.\n") == [Content("Let me see.")]
    assert parser.push(OPEN) == []
    assert parser.push('\n{"name": "f", "argum') == []
    assert parser.push('ents": {"a"') == [ToolCallStart(0, "f"), ToolCallArguments(0, '{"a"')]
    assert parser.push(": 1}}") == [ToolCallArguments(0, ": 1}"), ToolCallEnd(0)]
    assert parser.push("\n") == []
    assert parser.push(CLOSE) == []
    assert parser.finish() == []
    assert parser.calls == 1
    assert parser.cut_in is None


@pytest.mark.parametrize(
    "text", ["Plain answer.", " with  spaces \n", "\n", "a < b", "{not a call}", "[1] a source", "```x"]
)
@pytest.mark.parametrize("dialect", FRAMES)
def test_a_plain_answer_streams_unchanged(dialect: str, text: str) -> None:
    for pieces in ([text], list(text)):
        events, parser = run(*pieces, dialect=dialect, control=frozenset())
        assert all(isinstance(event, Content) and event.text for event in events)
        assert content(events) == text
        assert parser.calls == 0


def test_text_around_and_between_calls() -> None:
    call = '{"name": "f", "arguments": {}}'
    events, _ = run("Before \n\n", OPEN, call, CLOSE, "\n", OPEN, call, "\n", CLOSE, "\n\nAfter\n")
    assert content(events) == "Before" + "After\n"
    assert calls(events) == [("f", "{}"), ("f", "{}")]
    events, _ = run("\n\n", OPEN, call, CLOSE, "\n\n")
    assert content(events) == ""


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('{"arguments": {"a": 1}, "name": "f"}', '{"a": 1}'),
        ('{"id": 7, "type": "function", "name": "f", "parameters": {"a": [1]}}', '{"a": [1]}'),
        ('{"name": "f"}', "{}"),
        ('{"name": "f", "arguments": null}', "{}"),
        ('{"name": "f", "arguments": ""}', "{}"),
        ('{"name": "f", "arguments": "null"}', "{}"),
        ('{"arguments": null, "name": "f"}', "{}"),
        ('{"name": "f", "arguments": "{\\"a\\": \\"\\\\u00e9\\\\n\\"}"}', '{"a": "\\u00e9\\n"}'),
        ('{"arguments": " {\\"a\\": 1} ", "name": "f"}', '{"a": 1}'),
        ('{"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}', '{"a": 1}'),
        ('{"function": "f", "arguments": {"a": 1}}', '{"a": 1}'),
        ('{"name": "\\u0066", "arguments": {}}', "{}"),
        ('{"name": "f", "arguments": {"a": 1}, "arguments": {"a": 2}}', '{"a": 1}'),
        ('{"name": "f", "arguments": {"a": 1}}}', '{"a": 1}'),
        ('{"name": "f", "arguments": {"a": "line\nend"}}', '{"a": "line\\nend"}'),
        ('{"name": "f", "arguments": {"a": 1},}', '{"a": 1}'),
    ],
)
def test_forms_of_a_call_that_are_understood(text: str, arguments: str) -> None:
    for events, parser in (hermes(text), run(OPEN, text, CLOSE)):
        assert calls(events) == [("f", arguments)]
        assert complete(events) == [True]
        json.loads(arguments)
        assert content(events) == ""
        assert parser.cut_in is None


@pytest.mark.parametrize(
    "text",
    [
        '{"name": 1}',
        '{"name": "unknown", "arguments": {}}',
        '{"name": "f", "arguments": [1]}',
        '{"name": "f", "arguments": "not json"}',
        '{"name": "f", "arguments": 5}',
        '{"name": "f", "arguments": "nul"}',
        '{"name": "f", "arguments": "null or nothing"}',
        '{"arguments": {"a": 1}}',
        '{"name": {"x": 1}, "arguments": {}}',
        '{"name": "f" "arguments": {}}',
        '{"name": null}',
        "{}",
        "[]",
        "",
        "plain",
        "{{{{",
        '"f"',
    ],
)
def test_what_is_no_call_is_content_as_written(text: str) -> None:
    for events, parser in (
        hermes(text),
        run(OPEN, text, CLOSE),
        run(f"<tool_call>{text}</tool_call>", control=frozenset()),
    ):
        assert calls(events) == []
        assert content(events) == f"<tool_call>{text}</tool_call>"
        assert parser.calls == 0
        assert parser.cut_in is None


def test_a_good_call_behind_a_bad_one_is_delivered() -> None:
    events, _ = run(OPEN, '{"name": 1}', CLOSE, OPEN, '{"name": "f"}', CLOSE)
    assert content(events) == '<tool_call>{"name": 1}</tool_call>'
    assert calls(events) == [("f", "{}")]
    events, _ = run(OPEN, '{"name": "f", ', OPEN, '{"name": "get_weather"}')
    assert content(events) == '<tool_call>{"name": "f",'
    assert calls(events) == [("get_weather", "{}")]


def test_json_that_breaks_after_the_start_is_delivered_as_written() -> None:
    for pieces in (
        [OPEN, '{"name": "f", "arguments": {"a": 1,, "b"}} x', CLOSE],
        [OPEN, *'{"name": "f", "arguments": {"a": 1,, "b"}} x', CLOSE],
    ):
        events, parser = run(*pieces, " Sorry.")
        assert calls(events) == [("f", '{"a": 1,, "b"}} x')]
        assert complete(events) == [False]
        assert content(events) == "Sorry."
    events, _ = run(OPEN, '{"name": "f", "arguments": "{\\"a\\": oops}"}', CLOSE)
    assert calls(events) == [("f", '{"a": oops}')]
    assert complete(events) == [False]
    assert parser.calls == 1


def test_output_cut_within_the_arguments() -> None:
    events, parser = run(OPEN, '{"name": "f", "arguments": {"b": "some te')
    assert calls(events) == [("f", '{"b": "some te')]
    assert complete(events) == [False]
    assert parser.cut_in == "tool_call"
    assert content(events) == ""


def test_output_cut_before_the_name_is_content() -> None:
    events, parser = run("Hm. ", OPEN, '{"name": "get_we')
    assert content(events) == 'Hm. <tool_call>{"name": "get_we'
    assert parser.calls == 0


def test_missing_and_stray_closing_tags() -> None:
    call = '{"name": "f", "arguments": {}}'
    events, parser = run(OPEN, call)
    assert (calls(events), content(events), parser.cut_in) == ([("f", "{}")], "", None)
    events, _ = run(OPEN, call, OPEN, call, CLOSE)
    assert calls(events) == [("f", "{}"), ("f", "{}")]
    events, _ = run(OPEN, call, "\nand", CLOSE, " more")
    assert content(events) == "and more"
    events, _ = run("<tool_call>", call, "\nand</tool_", "call> more", control=frozenset())
    assert content(events) == "and more"
    events, _ = run(OPEN, call, call, CLOSE)
    assert calls(events) == [("f", "{}"), ("f", "{}")]


def test_letters_do_not_count_where_the_tag_is_a_control_token() -> None:
    text = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    events, parser = run(text)
    assert content(events) == text
    assert parser.calls == 0


def test_a_control_token_counts_even_if_it_was_not_announced() -> None:
    events, _ = run(OPEN, '{"name": "f"}', CLOSE, control=frozenset())
    assert calls(events) == [("f", "{}")]


def test_control_tokens_within_a_string_are_its_text() -> None:
    events, _ = run(OPEN, '{"name": "f", "arguments": {"b": "', CLOSE, " and ", OPEN, '"}}', CLOSE)
    assert calls(events) == [("f", '{"b": "</tool_call> and <tool_call>"}')]


def test_tokens_of_no_meaning() -> None:
    special, plain = ControlToken(1, "<|im_end|>"), ControlToken(2, "<tool_response>", special=False)
    events, _ = run("a", special, plain, "b", OPEN, special, '{"name": "f"}', CLOSE, special)
    assert content(events) == "a<tool_response>b"
    assert calls(events) == [("f", "{}")]


def test_nothing_empty_while_text_is_held_back() -> None:
    parser = OutputParser(dialect="hermes", tools=TOOLS)
    assert parser.push("<tool") == []
    assert parser.push("") == []
    assert parser.push("box>") == [Content("<toolbox>")]
    assert parser.push("\n") == []
    assert parser.finish() == [Content("\n")]


def test_only_the_first_call_counts_without_parallel_calls() -> None:
    call = '{"name": "f", "arguments": {"a": 1}}'
    events, parser = run(OPEN, call, CLOSE, "\n", OPEN, call, CLOSE, " End", parallel=False)
    assert calls(events) == [("f", '{"a": 1}')]
    assert content(events) == "End"
    assert parser.satisfied


@pytest.mark.parametrize(
    ("dialect", "text", "expected"),
    [
        ("mistral", '[TOOL_CALLS]f{"a": 1}', [("f", '{"a": 1}')]),
        ("mistral", '[TOOL_CALLS]f[CALL_ID]123456789[ARGS]{"a": 1}', [("f", '{"a": 1}')]),
        ("mistral", '[TOOL_CALLS] [{"name": "f", "arguments": {}, "id": "abc"}]', [("f", "{}")]),
        ("mistral", '[TOOL_CALLS]{"name": "f", "arguments": {}}', [("f", "{}")]),
        ("llama3_json", '{"type": "function", "name": "f", "parameters": {"a": 1}}', [("f", '{"a": 1}')]),
        (
            "llama3_json",
            '\n\n{"name": "f", "parameters": {}}; {"name": "get_weather", "parameters": {}}',
            [("f", "{}"), ("get_weather", "{}")],
        ),
        ("llama3_json", '[{"name": "f", "parameters": {}}]', [("f", "{}")]),
        ("pythonic", "[f(1, 'x')]", [("f", '{"a":1,"b":"x"}')]),
        ("pythonic", "[f(a=1, a=2, b=None,)]", [("f", '{"a":1,"b":null}')]),
        ("pythonic", "<|python_start|>[f()]<|python_end|>", [("f", "{}")]),
        ("gemma", "```tool_code\nf(a=1)\n```", [("f", '{"a":1}')]),
        ("gemma", '```json\n[{"name": "f", "parameters": {"a": 1}}]\n```', [("f", '{"a": 1}')]),
        ("gemma", "[f(a=1), get_weather()]", [("f", '{"a":1}'), ("get_weather", "{}")]),
        ("gemma", '{"name": "f", "parameters": {}}', [("f", "{}")]),
        ("phi4", '<|tool_call|>{"name": "f", "arguments": {}}<|/tool_call|>', [("f", "{}")]),
    ],
)
def test_other_notations(dialect: str, text: str, expected: list[tuple[str, str]]) -> None:
    for pieces in ([text], list(text)):
        events, _ = run(*pieces, dialect=dialect, control=frozenset())
        assert calls(events) == expected
        assert all(complete(events))
        assert content(events) == ""


@pytest.mark.parametrize(
    ("dialect", "text"),
    [
        ("llama3_json", '{"city": "Rome", "name": "f", "parameters": {}}'),
        ("llama3_json", '{"name": "Bob", "parameters": {}}'),
        ("llama3_json", 'Here: {"name": "f", "parameters": {}}'),
        ("llama3_json", '<|python_tag|>print("x")'),
        ("pythonic", "[f, g]"),
        ("pythonic", "[unknown(a=1)]"),
        ("pythonic", "I call [f(a=1)]"),
        ("mistral", "[TOOL_CALLS]unknown[ARGS]{}"),
        ("mistral", "[TOOL_CALLS]"),
        ("gemma", '```json\n{"city": "Rome"}\n```'),
        ("gemma", "```python\nf(a=1)\n```"),
        ("gemma", "```tool_code\nprint(1)\n```"),
        ("phi4", "functools[partial]"),
    ],
)
def test_what_only_looks_like_a_call_streams_as_content(dialect: str, text: str) -> None:
    for pieces in ([text], list(text)):
        events, parser = run(*pieces, dialect=dialect, control=frozenset())
        assert content(events) == text
        assert parser.calls == 0


def test_json_answer_of_other_keys_is_not_held_until_its_end() -> None:
    parser = OutputParser(dialect="llama3_json", tools=TOOLS)
    assert parser.push('{"city"') == [Content('{"city"')]
    assert parser.push(': "Rome') == [Content(': "Rome')]


def test_python_that_breaks_ends_the_call_and_goes_on_as_content() -> None:
    events, parser = run("[f(a=1, b=oops), rest]", dialect="pythonic", control=frozenset())
    assert calls(events) == [("f", '{"a":1,"b":')]
    assert complete(events) == [False]
    assert content(events) == "), rest]"
    assert parser.calls == 1
