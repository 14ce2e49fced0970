"""Prompts compared byte for byte with those of the `transformers` package.

The templates of goldens/ are ours, in the styles of eleven families; tools/make_template_goldens.py wrote what the
package makes of them.
"""

import datetime as dt
import json
import re
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

CONTROL = re.compile(r"<\|[^|<>\s]+\|>|<(?:start|end)_of_[a-z]+>|</?(?:tool_call|tool_response|tools|think|end)>|\[/?[A-Z_]+\]")


def template_of(family: str) -> ChatTemplate:
    return ChatTemplate(FAMILIES[family], GIVEN["special_tokens"], now=lambda: NOW)


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
