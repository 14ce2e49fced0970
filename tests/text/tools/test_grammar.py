"""Grammars that force a call: what the runtime accepts, and that the parsers read what it then writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rustedvino.text.tools.events import Content, Reasoning, ToolCallArguments, ToolCallEnd, ToolCallStart
from rustedvino.text.tools.grammar import tool_call_grammar
from rustedvino.text.tools.output import TOOL_DIALECTS, OutputParser

TINY = Path(__file__).parents[2] / "models" / "tiny-qwen3-chat"

TOOLS: dict[str, dict[str, Any]] = {
    "get_weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 12},
            "unit": {"enum": ["celsius", "fahrenheit"]},
            "days": {"type": "integer", "minimum": 1, "maximum": 9},
        },
        "required": ["city"],
        "additionalProperties": False,
    },
    "ping": {"type": "object", "properties": {}, "additionalProperties": False},
    "opt": {"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"type": ["string", "null"]}}},
}


@pytest.fixture(scope="module")
def generate() -> Any:
    g = pytest.importorskip("openvino_genai")
    scheduler = g.SchedulerConfig()
    scheduler.num_kv_blocks = 64
    pipeline = g.ContinuousBatchingPipeline(str(TINY), scheduler, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    tokenizer = pipeline.get_tokenizer()
    prompt = tokenizer.encode(
        "<|im_start|>user\nWhat is the weather in Paris?<|im_end|>\n<|im_start|>assistant\n", add_special_tokens=False
    ).input_ids

    def run(grammar: dict[str, Any], *, max_new_tokens: int = 300) -> str:
        config = g.GenerationConfig()
        config.max_new_tokens = max_new_tokens
        config.structured_output_config = g.StructuredOutputConfig(structural_tags_config=json.dumps(grammar))
        ids = pipeline.generate([prompt], [config])[0].m_generation_ids[0]
        return str(tokenizer.decode(ids, skip_special_tokens=False)).removesuffix("<|im_end|>")

    return run


@pytest.mark.parametrize("name", sorted(TOOLS))
@pytest.mark.parametrize("dialect", TOOL_DIALECTS)
def test_a_named_tool_is_what_the_model_then_calls(generate: Any, dialect: str, name: str) -> None:
    text = generate(tool_call_grammar(dialect, TOOLS, name))
    parser = OutputParser(dialect=dialect, tools=TOOLS)
    events = [*parser.push(text), *parser.finish()]
    assert isinstance(events[0], ToolCallStart), text
    assert events[0].name == name
    assert not any(isinstance(event, Content) for event in events)
    end = events[-1]
    assert isinstance(end, ToolCallEnd)
    if end.complete:
        arguments = json.loads("".join(e.fragment for e in events if isinstance(e, ToolCallArguments)))
        assert set(arguments) <= set(TOOLS[name]["properties"]) or name == "opt"
        assert set(TOOLS[name].get("required", ())) <= set(arguments)


@pytest.mark.parametrize("parallel", [True, False])
@pytest.mark.parametrize("dialect", TOOL_DIALECTS)
def test_required_gives_a_call_of_some_tool(generate: Any, dialect: str, parallel: bool) -> None:
    text = generate(tool_call_grammar(dialect, TOOLS, parallel=parallel))
    parser = OutputParser(dialect=dialect, tools=TOOLS)
    events = [*parser.push(text), *parser.finish()]
    assert parser.calls >= 1, text
    assert parser.calls == 1 or parallel
    assert not any(isinstance(event, Content) for event in events)


@pytest.mark.parametrize("inside", [True, False])
def test_the_model_may_think_before_the_forced_call(generate: Any, inside: bool) -> None:
    text = generate(tool_call_grammar("hermes", TOOLS, "ping", reasoning="qwen3", inside_reasoning=inside))
    parser = OutputParser(reasoning="qwen3", dialect="hermes", tools=TOOLS, inside_reasoning=inside)
    events = [*parser.push(text), *parser.finish()]
    assert any(isinstance(event, Reasoning) for event in events)
    assert parser.calls == 1 or parser.cut_in == "reasoning"


def test_variants_by_the_tokens_a_model_has(generate: Any) -> None:
    assert "[TOOL_CALLS]ping[ARGS]" in generate(
        tool_call_grammar("mistral", TOOLS, "ping", control_tokens=frozenset({"[TOOL_CALLS]", "[ARGS]"}))
    )
    assert "<|tool_call|>[" in generate(
        tool_call_grammar("phi4", TOOLS, "ping", control_tokens=frozenset({"<|tool_call|>"}))
    )


def test_a_named_tool_must_exist() -> None:
    with pytest.raises(KeyError):
        tool_call_grammar("hermes", TOOLS, "nothing")
    with pytest.raises(KeyError):
        tool_call_grammar("nothing", TOOLS)


@pytest.mark.parametrize("dialect", TOOL_DIALECTS)
def test_a_grammar_is_plain_json(dialect: str) -> None:
    grammar = tool_call_grammar(dialect, {'we"ird\\name': {}, "é": {"type": "object"}}, reasoning="phi")
    assert json.loads(json.dumps(grammar)) == grammar
