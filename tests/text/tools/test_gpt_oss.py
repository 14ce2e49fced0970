from __future__ import annotations

from typing import Any

import pytest

from rustedvino.text.tools.events import Content, Event, Reasoning, ToolCallArguments, ToolCallEnd, ToolCallStart
from rustedvino.text.tools.gpt_oss import TAGS
from rustedvino.text.tools.output import OutputParser
from rustedvino.text.tools.pieces import ControlToken, Piece

TOOLS: dict[str, dict[str, Any]] = {"get_weather": {"type": "object"}, "f": {}}
ALL = frozenset(TAGS)


def pieces_of(text: str, *, step: int = 1000) -> list[Piece]:
    pieces: list[Piece] = []
    while text:
        at, tag = min(((text.index(tag), tag) for tag in TAGS if tag in text), default=(len(text), ""))
        pieces += [text[i : min(at, i + step)] for i in range(0, at, step)]
        if tag:
            pieces.append(ControlToken(1, tag))
        text = text[at + len(tag) :]
    return pieces


def run(text: str, *, tools: dict[str, Any] | None = TOOLS, **settings: Any) -> tuple[dict[str, Any], OutputParser]:
    results = []
    for pieces, control in (
        (pieces_of(text), ALL),
        (pieces_of(text, step=1), ALL),
        ([text], frozenset[str]()),
        (list(text), frozenset[str]()),
    ):
        parser = OutputParser(reasoning="gpt_oss", tools=tools, control_tokens=control, **settings)
        events: list[Event] = [event for piece in pieces for event in parser.push(piece)] + parser.finish()
        results.append((summary(events), parser))
    assert all(result[0] == results[0][0] for result in results)
    return results[0]


def summary(events: list[Event]) -> dict[str, Any]:
    found: dict[str, Any] = {"reasoning": "", "content": "", "calls": [], "complete": []}
    for event in events:
        match event:
            case Reasoning(text):
                found["reasoning"] += text
            case Content(text):
                found["content"] += text
            case ToolCallStart(index, name):
                assert index == len(found["calls"])
                found["calls"].append([name, ""])
            case ToolCallArguments(index, fragment):
                found["calls"][index][1] += fragment
            case ToolCallEnd(_, complete):
                found["complete"].append(complete)
    return found


def expect(**parts: Any) -> dict[str, Any]:
    return {"reasoning": "", "content": "", "calls": [], "complete": [], **parts}


ANALYSIS = "<|channel|>analysis<|message|>Think.<|end|><|start|>assistant"


def test_thinking_and_answer() -> None:
    found, parser = run(ANALYSIS + "<|channel|>final<|message|>Hello!<|return|>")
    assert found == expect(reasoning="Think.", content="Hello!")
    assert parser.cut_in is None


@pytest.mark.parametrize(
    "header",
    [
        "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>",
        "<|channel|>commentary to=functions.get_weather<|message|>",
        " to=functions.get_weather<|channel|>commentary <|constrain|>json<|message|>",
        "<|channel|>analysis to=functions.get_weather <|constrain|>json<|message|>",
        "<|channel|>commentary to=get_weather json<|message|>",
    ],
)
def test_forms_of_a_call(header: str) -> None:
    found, parser = run(ANALYSIS + header + '{"city": "Rome", "n": 1}<|call|>')
    assert found == expect(reasoning="Think.", calls=[["get_weather", '{"city": "Rome", "n": 1}']], complete=[True])
    assert parser.calls == 1


def test_preamble_in_the_commentary_channel_is_content() -> None:
    found, _ = run("<|channel|>commentary<|message|>I look it up.<|end|><|start|>assistant<|channel|>final<|message|>.")
    assert found == expect(content="I look it up..")


def test_several_calls_and_missing_ends() -> None:
    call = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}"
    found, _ = run(f"{call}<|call|><|start|>assistant{call}<|start|>assistant{call}")
    assert found == expect(calls=[["f", "{}"]] * 3, complete=[True] * 3)
    found, parser = run(f"{call}<|call|><|start|>assistant{call}<|call|>", parallel=False)
    assert found == expect(calls=[["f", "{}"]], complete=[True])
    assert parser.satisfied


def test_call_without_arguments_text() -> None:
    text = "<|channel|>commentary to=functions.f<|message|>"
    parser = OutputParser(dialect="gpt_oss", tools=TOOLS, control_tokens=ALL)
    events = [event for piece in pieces_of(text + "<|call|>") for event in parser.push(piece)] + parser.finish()
    assert summary(events) == expect(calls=[["f", "{}"]], complete=[True])


def test_cut_anywhere() -> None:
    found, parser = run("<|channel|>analysis<|message|>Thin")
    assert (found, parser.cut_in) == (expect(reasoning="Thin"), "reasoning")
    found, parser = run(ANALYSIS + '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": "b')
    assert (found, parser.cut_in) == (
        expect(reasoning="Think.", calls=[["f", '{"a": "b']], complete=[False]),
        "tool_call",
    )
    found, parser = run(ANALYSIS + "<|channel|>commentary to=functions.f <|constrain|>json<|message|>")
    assert (found, parser.cut_in) == (expect(reasoning="Think.", calls=[["f", ""]], complete=[False]), "tool_call")
    found, _ = run(ANALYSIS + "<|channel|>comm")
    assert found == expect(reasoning="Think.")


def test_unknown_tool_and_no_object_are_content() -> None:
    found, _ = run('<|channel|>commentary to=functions.other<|message|>{"a": 1}<|call|>')
    assert found == expect(content='{"a": 1}')
    found, _ = run("<|channel|>commentary to=functions.f<|message|>[1]<|call|>")
    assert found == expect(content="[1]")


def test_without_tools_a_call_is_content() -> None:
    found, _ = run('<|channel|>commentary to=functions.f<|message|>{"a": 1}<|call|>', tools=None)
    assert found == expect(content='{"a": 1}')


def test_arguments_that_stop_being_json() -> None:
    found, _ = run('<|channel|>commentary to=functions.f<|message|>{"a": oops}<|call|><|start|>assistant')
    assert found == expect(calls=[["f", '{"a": oops}']], complete=[False])
    found, _ = run('<|channel|>commentary to=functions.f<|message|>{"a": 1} and<|call|>')
    assert found == expect(calls=[["f", '{"a": 1} and']], complete=[False])


def test_answer_without_a_header_is_content() -> None:
    for text in ("Hello there", "a", " Hi"):
        found, _ = run(text)
        assert found == expect(content=text)


def test_prompt_that_opened_the_thinking() -> None:
    found, _ = run("Think.<|end|><|start|>assistant<|channel|>final<|message|>Hi", inside_reasoning=True)
    assert found == expect(reasoning="Think.", content="Hi")
