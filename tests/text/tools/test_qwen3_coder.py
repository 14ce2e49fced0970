from __future__ import annotations

import json
from typing import Any

import pytest

from rustedvino.text.tools.events import Content, Event, ToolCallArguments, ToolCallEnd, ToolCallStart
from rustedvino.text.tools.output import OutputParser
from rustedvino.text.tools.pieces import ControlToken, Piece

TOOLS: dict[str, dict[str, Any]] = {
    "f": {
        "type": "object",
        "properties": {
            "s": {"type": "string"},
            "i": {"type": "integer"},
            "n": {"type": ["number", "null"]},
            "b": {"type": "boolean"},
            "o": {"type": "object"},
            "l": {"anyOf": [{"type": "array"}, {"type": "string"}]},
            "any": {},
        },
    },
    "g": {},
}
CONTROL = frozenset({"<tool_call>", "</tool_call>"})
OPEN, CLOSE = ControlToken(5, "<tool_call>", special=False), ControlToken(6, "</tool_call>", special=False)


def run(*pieces: Piece, control: frozenset[str] = frozenset()) -> tuple[str, list[tuple[str, str, bool]], OutputParser]:
    parser = OutputParser(dialect="qwen3_coder", tools=TOOLS, control_tokens=control)
    events: list[Event] = [event for piece in pieces for event in parser.push(piece)] + parser.finish()
    text, calls = "", list[list[Any]]()
    for event in events:
        match event:
            case Content(part):
                text += part
            case ToolCallStart(index, name):
                assert index == len(calls)
                calls.append([name, "", None])
            case ToolCallArguments(index, fragment):
                calls[index][1] += fragment
            case ToolCallEnd(index, complete):
                calls[index][2] = complete
    return text, [(name, arguments, complete) for name, arguments, complete in calls], parser


def one(body: str) -> Any:
    """The arguments of one call with this body, whichever way it is cut."""
    text = f"<tool_call>\n<function=f>\n{body}</function>\n</tool_call>"
    results = [run(text)[:2], run(*text)[:2], run(OPEN, *text[11:-12], CLOSE, control=CONTROL)[:2]]
    assert results[0] == results[1] == results[2]
    content, calls = results[0]
    assert content == ""
    assert [(name, complete) for name, _, complete in calls] == [("f", True)]
    return json.loads(calls[0][1])


def parameter(key: str, value: str) -> str:
    return f"<parameter={key}>\n{value}\n</parameter>\n"


@pytest.mark.parametrize(
    ("key", "written", "value"),
    [
        ("s", "12", "12"),
        ("s", "true", "true"),
        ("s", ' "quoted" ', ' "quoted" '),
        ("s", "\nlines\n\n", "\nlines\n\n"),
        ("s", "", ""),
        ("s", "a </parameter> b </function> <parameter", "a </parameter> b </function> <parameter"),
        ("s", "</parameter>\n</paramet", "</parameter>\n</paramet"),
        ("i", "12", 12),
        ("i", " 12 ", 12),
        ("i", "twelve", "twelve"),
        ("n", "1.5e3", 1500.0),
        ("n", "null", None),
        ("n", "None", None),
        ("b", "true", True),
        ("b", "False", False),
        ("o", '{"a": [1, null]}', {"a": [1, None]}),
        ("o", "{'a': True}", {"a": True}),
        ("l", '["x"]', ["x"]),
        ("l", "x, y", "x, y"),
        ("any", "7", 7),
        ("any", "seven", "seven"),
        ("any", '"7"', '"7"'),
        ("unsaid", "[1]", [1]),
    ],
)
def test_values_get_the_type_of_the_schema(key: str, written: str, value: Any) -> None:
    got = one(parameter(key, written))
    assert got == {key: value}
    assert type(got[key]) is type(value)


def test_forms_that_models_write() -> None:
    assert one("") == {}
    assert one("<parameter=s>x</parameter>") == {"s": "x"}
    assert one(parameter("s", "x") + parameter("i", "1") + parameter("s", "again")) == {"s": "x", "i": 1}
    content, calls, _ = run("Text\n<function=g>\n</function>\nMore")
    assert (content, calls) == ("TextMore", [("g", "{}", True)])
    content, calls, _ = run(OPEN, "<function=g></function>", CLOSE, "\n", OPEN, "<function=g>", CLOSE, control=CONTROL)
    assert (content, calls) == ("", [("g", "{}", True)] * 2)


def test_strings_stream_as_they_come() -> None:
    parser = OutputParser(dialect="qwen3_coder", tools=TOOLS)
    assert parser.push("<tool_call>\n<function=f>") == [ToolCallStart(0, "f")]
    assert parser.push("\n<parameter=s>\n") == [ToolCallArguments(0, '{"s":"')]
    assert parser.push('say "') == [ToolCallArguments(0, 'say \\"')]
    assert parser.push("hi\n") == [ToolCallArguments(0, "hi")]
    assert parser.push("</param") == []
    assert parser.push("eter>\n<parameter=i>\n1\n</parameter>") == [ToolCallArguments(0, '","i":')]
    assert parser.push("\n</function>") == [ToolCallArguments(0, "1}"), ToolCallEnd(0)]


@pytest.mark.parametrize("text", ["<function=unknown>\n</function>", "text", "<function=f", "{}", "<function>"])
def test_what_is_no_call_is_content(text: str) -> None:
    for pieces in ([OPEN, text, CLOSE], [OPEN, *text, CLOSE]):
        content, calls, _ = run(*pieces, control=CONTROL)
        assert calls == []
        assert content == f"<tool_call>{text}</tool_call>"
    assert run(*f"<b> < {text} <tool")[0] == f"<b> < {text} <tool"


def test_cut_within_a_value_delivers_what_came() -> None:
    text, calls, parser = run("<tool_call><function=f><parameter=s>\nsome te")
    assert (text, calls, parser.cut_in) == ("", [("f", '{"s":"some te', False)], "tool_call")
    text, calls, _ = run("<tool_call><function=f><parameter=i>\n12")
    assert (text, calls) == ("", [("f", '{"i":', False)])
    text, calls, _ = run("<tool_call><function=f>\n")
    assert (text, calls) == ("", [("f", "", False)])


def test_missing_closing_tag_of_a_value() -> None:
    assert one("<parameter=s>\nx\n") == {"s": "x"}
    assert one("<parameter=s>\nx</function> y\n</parameter>") == {"s": "x</function> y"}
    assert one(parameter("s", "1") + "oops\n") == {"s": "1\n</parameter>\noops"}


def test_text_in_the_place_of_a_tag_ends_the_call() -> None:
    text, calls, _ = run("<tool_call><function=f>oops</function></tool_call>")
    assert calls == [("f", "", False)]
    assert text == "oops</function></tool_call>"


def test_control_tokens_within_a_value_are_its_text() -> None:
    _, calls, _ = run(OPEN, "<function=f><parameter=s>\n", CLOSE, "\n</parameter></function>", CLOSE, control=CONTROL)
    assert calls == [("f", '{"s":"</tool_call>"}', True)]
