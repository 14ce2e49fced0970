"""Prompts compared byte for byte with those of the `transformers` package.

The templates of goldens/ are ours, in the styles of eleven families; tools/make_template_goldens.py wrote what the
package makes of them.
"""

import datetime as dt
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from rustedvino.text.history import template_messages
from rustedvino.text.markers import ControlMarker
from rustedvino.text.probes import ProbeResult, probe_template
from rustedvino.text.templates import ChatTemplate, TemplateError

GOLDENS = Path(__file__).with_name("goldens")
GIVEN = json.loads((GOLDENS / "conversations.json").read_text("utf-8"))
CASES: dict[str, Any] = GIVEN["conversations"]
NOW = dt.datetime.fromisoformat(GIVEN["now"])
FAMILIES = {path.stem: path.read_text("utf-8") for path in sorted(GOLDENS.glob("*.jinja"))}
EXPECTED = {name: json.loads((GOLDENS / f"{name}.json").read_text("utf-8")) for name in FAMILIES}

CONTROL = re.compile(
    r"<\|[^|<>\s]+\|>|<(?:start|end)_of_[a-z]+>|</?(?:tool_call|tool_response|tools|think|end)>|\[/?[A-Z_]+\]"
)


@cache
def template_of(family: str) -> ChatTemplate:
    return ChatTemplate(FAMILIES[family], GIVEN["special_tokens"], now=lambda: NOW)


@cache
def probe_of(family: str) -> ProbeResult:
    return probe_template(FAMILIES[family], GIVEN["special_tokens"])


@cache
def marker_of(family: str) -> ControlMarker:
    return ControlMarker({*CONTROL.findall(FAMILIES[family]), *GIVEN["special_tokens"].values()})


def prepare(family: str, messages: Any) -> Any:
    probe = probe_of(family)
    return template_messages(
        messages, arguments=probe.arguments, content=probe.content, null_call_content=probe.null_call_content
    )


def render(family: str, case: dict[str, Any], messages: Any, tools: Any, marker: ControlMarker | None = None) -> Any:
    mark = marker.mark_tree if marker is not None else lambda value: value
    try:
        text = template_of(family).render(
            mark(messages),
            tools=mark(tools),
            documents=mark(case.get("documents")),
            add_generation_prompt=case.get("add_generation_prompt", True),
            **mark(case.get("variables", {})),
        )
    except TemplateError as error:
        return {"error": str(error)}
    return {"text": marker.unmark(text) if marker is not None else text}


def test_there_are_goldens_for_every_template():
    assert len(FAMILIES) >= 10
    assert {path.stem for path in GOLDENS.glob("*.json")} == {*FAMILIES, "conversations"}
    for expected in EXPECTED.values():
        assert list(expected) == list(CASES)


@pytest.mark.parametrize("name", list(CASES))
@pytest.mark.parametrize("family", list(FAMILIES))
def test_a_prompt_is_that_of_transformers(family: str, name: str):
    """Refusals too: the words of `raise_exception`, and those of an expression that fails."""
    case = CASES[name]
    tools = GIVEN["tools"].get(case.get("tools"))
    assert render(family, case, case["messages"], tools) == EXPECTED[family][name]


# -- conversations of the wire, as the server brings them to a template ---------------------------------

PROBES = {
    "channels": {"arguments": "either", "supports_tools": True, "supports_parallel_calls": True},
    "chatml_thinking": {"arguments": "either", "supports_thinking_switch": True, "supports_reasoning": True},
    "concatenated": {"arguments": "string", "null_call_content": True, "opens_thinking": True, "supports_tools": False},
    "documents_python_tools": {"arguments": "either", "supports_tools": True},
    "header_ids": {"arguments": "either", "supports_tools": True, "supports_parallel_calls": False},
    "inst_alternating": {"arguments": "either", "supports_tools": True, "adds_generation_prompt": False},
    "parts_only": {"content": "parts", "supports_tools": False, "supports_tool_calls": False},
    "roles_and_documents": {"arguments": "either", "supports_tools": True},
    "separators": {"arguments": "either", "supports_tool_calls": True},
    "turns_model_role": {"supports_system": True, "supports_tools": False, "supports_tool_calls": False},
    "xml_parameters": {"arguments": "object", "supports_tools": True, "supports_parallel_calls": True},
}
"""What the trial of each template has to find."""


@pytest.mark.parametrize("family", list(FAMILIES))
def test_what_a_template_can_do_is_found(family: str):
    probe = probe_of(family)
    assert probe.ok
    assert probe.keeps_user_text
    assert probe.keeps_history
    expected = {"arguments": "object", "null_call_content": False, "content": "string", **PROBES[family]}
    assert {name: getattr(probe, name) for name in expected} == expected


CALLING = [family for family in FAMILIES if PROBES[family].get("supports_tool_calls", True)]


def wire_prompt(family: str, name: str) -> Any:
    """The prompt of a conversation on the server's way: prepared, marked, rendered, marks taken out."""
    case = CASES[name]
    messages = [message | {"content": message.get("content") or ""} for message in case["messages"]]
    tools = GIVEN["tools"].get(case.get("tools"))
    return render(family, case, prepare(family, messages), tools, marker_of(family))


CHANGED = {
    *("call_text", "call_text_null_content", "call_null_content", "call_object", "call_no_arguments"),
    *("call_with_text", "two_calls", "long_ids", "parts", "image_parts", "no_content", "thought_in_content"),
}
"""Conversations that are brought into another form first."""


@pytest.mark.parametrize("name", [name for name in CASES if name not in CHANGED])
@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "parts_only"])
def test_what_needs_no_change_is_not_changed(family: str, name: str):
    """Nor do the marks of client text show, whatever the template does with it."""
    assert wire_prompt(family, name) == EXPECTED[family][name]


@pytest.mark.parametrize("name", ["call_object", "call_text", "call_text_null_content"])
@pytest.mark.parametrize("family", CALLING)
def test_every_form_of_a_call_is_brought_into_the_template_s_own(family: str, name: str):
    golden = EXPECTED[family]["call_text_null_content" if family == "concatenated" else "call_object"]
    assert "text" in golden
    assert wire_prompt(family, name) == golden


@pytest.mark.parametrize("arguments", ["", " ", None, "{}", {}, "not json", "[1, 2]", '"x"', '{"cut": ', "7", "null"])
@pytest.mark.parametrize("family", CALLING)
def test_no_arguments_make_a_template_fail(family: str, arguments: Any):
    call = {"id": "abcdef123", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [
        {"role": "user", "content": "Do it"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "abcdef123", "content": "done"},
    ]
    prompt = render(family, {}, prepare(family, messages), None)
    assert "done" in prompt.get("text", prompt)


def test_thinking_of_earlier_answers_is_not_given_to_templates_that_do_not_know_it():
    for family, expected in EXPECTED.items():
        if family != "parts_only":
            plain = expected["turns"].get("text", "")
            found = wire_prompt(family, "thought_in_content")["text"]
            assert "hm" not in found, family
            assert "Two" in found
            assert plain == "" or "Two" in plain


def test_parts_of_text_are_lines():
    for family in FAMILIES:
        assert "One\n two" in wire_prompt(family, "parts")["text"]


@pytest.mark.parametrize("family", list(FAMILIES))
def test_client_text_makes_no_control_string(family: str):
    """The unmarked control strings of a prompt are those of the same conversation in harmless words."""
    marker = marker_of(family)
    hostile = "".join(sorted(CONTROL.findall(FAMILIES[family]))) + "</s><s>"

    def controls(text: str) -> list[str]:
        messages = [
            {"role": "system", "content": text},
            {"role": "user", "content": f"{text} x"},
            {"role": "assistant", "content": f"x {text}", "name": text},
            {"role": "user", "content": text},
        ]
        prepared = marker.mark_tree(prepare(family, messages))
        rendered = template_of(family).render(prepared, documents=marker.mark_tree([{"doc_id": text, "text": text}]))
        return [piece.text for piece in marker.split(rendered) if piece.control]

    assert controls(hostile) == controls("harmless")
    assert controls(hostile)
