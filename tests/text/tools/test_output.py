from __future__ import annotations

import pytest

from rustedvino.text.tools.events import Content, Reasoning, ToolCallArguments, ToolCallEnd, ToolCallStart
from rustedvino.text.tools.output import TOOL_DIALECTS, OutputParser, make_tool_parser
from rustedvino.text.tools.pieces import ControlToken

THINK, THINK_END = ControlToken(3, "<think>", special=False), ControlToken(4, "</think>", special=False)
CALL, CALL_END = ControlToken(5, "<tool_call>", special=False), ControlToken(6, "</tool_call>", special=False)
CONTROL = frozenset({"<think>", "</think>", "<tool_call>", "</tool_call>"})


def qwen3(**settings: object) -> OutputParser:
    return OutputParser(reasoning="qwen3", dialect="hermes", tools={"f": {}}, control_tokens=CONTROL, **settings)  # type: ignore[arg-type]


def test_thinking_then_text_then_a_call() -> None:
    parser = qwen3()
    pieces = [
        THINK,
        "\nHm",
        "m.\n",
        THINK_END,
        "\n\n",
        "I look.\n",
        CALL,
        '\n{"name": "f", "arguments": {"a"',
        ": 1}}",
        CALL_END,
    ]
    events = [parser.push(piece) for piece in pieces]
    assert events == [
        [],
        [Reasoning("Hm")],
        [Reasoning("m.")],
        [],
        [],
        [Content("I look.")],
        [],
        [ToolCallStart(0, "f"), ToolCallArguments(0, '{"a"')],
        [ToolCallArguments(0, ": 1}"), ToolCallEnd(0)],
        [],
    ]
    assert parser.finish() == []
    assert (parser.calls, parser.cut_in) == (1, None)


def test_a_call_right_behind_the_thinking_leaves_no_content() -> None:
    parser = qwen3(inside_reasoning=True)
    pieces = ["Hm.\n", THINK_END, "\n\n", CALL, '{"name": "f"}', CALL_END, "\n"]
    events = [event for piece in pieces for event in parser.push(piece)] + parser.finish()
    assert [event for event in events if isinstance(event, Content)] == []
    assert parser.calls == 1


def test_cut_while_thinking_has_reasoning_and_no_content() -> None:
    parser = qwen3()
    events = [event for piece in [THINK, "\nA call: ", CALL, " or"] for event in parser.push(piece)] + parser.finish()
    assert events == [Reasoning("A call: "), Reasoning("<tool_call>"), Reasoning(" or")]
    assert parser.cut_in == "reasoning"


def test_an_answer_without_thinking_streams_at_once_with_tools_and_reasoning_on() -> None:
    parser = qwen3()
    assert parser.push("Hel") == [Content("Hel")]
    assert parser.push("lo") == [Content("lo")]
    assert parser.push(ControlToken(2, "<|im_end|>")) == []
    assert parser.finish() == []
    assert parser.calls == 0
    assert not parser.satisfied


def test_an_end_of_text_token_of_its_own_after_a_call_changes_nothing() -> None:
    parser = qwen3()
    for piece in (CALL, '{"name": "f"}', CALL_END):
        parser.push(piece)
    assert parser.push(ControlToken(2, "<|im_end|>")) == []
    assert parser.push("") == []
    assert parser.finish() == []
    assert parser.calls == 1


def test_without_parsers_everything_is_content() -> None:
    parser = OutputParser()
    assert parser.push("<think>") == [Content("<think>")]
    assert parser.push(CALL) == [Content("<tool_call>")]
    assert parser.push(ControlToken(2, "<|im_end|>")) == []
    assert parser.push("") == []
    assert parser.finish() == []


def test_one_call_is_enough_without_parallel_calls() -> None:
    parser = qwen3(parallel=False)
    assert not parser.satisfied
    parser.push(CALL)
    parser.push('{"name": "f", "arguments": {')
    assert not parser.satisfied
    parser.push("}}")
    assert parser.satisfied


def test_unknown_names_are_refused() -> None:
    with pytest.raises(KeyError):
        OutputParser(reasoning="nothing")
    with pytest.raises(KeyError):
        OutputParser(dialect="nothing", tools={"f": {}})
    with pytest.raises(KeyError):
        make_tool_parser("gpt_oss", {"f": {}})


@pytest.mark.parametrize("dialect", TOOL_DIALECTS)
def test_a_long_output_of_half_tags_is_given_back_whole(dialect: str) -> None:
    parser = OutputParser(reasoning="qwen3" if dialect != "gpt_oss" else None, dialect=dialect, tools={"f": {}})
    pieces = ["<", "[", "`", "\n", " ", "<tool", "_call", "{"] * 2000
    events = [event for piece in pieces for event in parser.push(piece)] + parser.finish()
    assert "".join(event.text for event in events if isinstance(event, Content)) == "".join(pieces)
