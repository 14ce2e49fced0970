from pathlib import Path

import attrs
import pytest

from rustedvino.text.probes import PROBE_STRINGS, ProbeResult, probe_template
from rustedvino.text.templates import find_chat_template, template_variables

PLAIN = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def test_a_plain_template():
    assert probe_template(PLAIN) == ProbeResult(
        ok=True,
        supports_system=True,
        keeps_user_text=True,
        keeps_history=True,
        adds_generation_prompt=True,
    )


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("{% if %}", "does not compile"),
        ("nothing of the user", "text of the user"),
        ("{{ raise_exception('not for chat') }}", "not for chat"),
        ("{{ messages + 1 }}", "cannot render"),
    ],
)
def test_a_template_that_cannot_chat_says_why(text, error):
    result = probe_template(text)
    assert not result.ok
    assert error in (result.error or "")


def test_a_template_without_system_messages():
    refusing = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}" + PLAIN
    dropping = "{% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}"
    assert not probe_template(refusing).supports_system
    assert not probe_template(dropping).supports_system
    assert probe_template(refusing).ok


def test_a_template_that_changes_text():
    assert not probe_template(PLAIN.replace("m.content", "m.content.split() | join(' ')")).keeps_user_text


def test_a_template_that_forgets():
    assert not probe_template("{{ messages[-1].content }}").keeps_history


def test_a_template_for_parts_only():
    text = "{% for m in messages %}{% for p in m.content %}{{ p['text'] }}{% endfor %}{% endfor %}"
    result = probe_template(text)
    assert result.ok
    assert result.content == "parts"


@pytest.mark.parametrize(
    ("expression", "form"),
    [
        ("c.function.arguments | tojson", "either"),
        ("c.function.arguments", "string"),
        ("'```json' + c.function.arguments + '```'", "string"),
        ("c.function.arguments.query", "object"),
        ("c.function.arguments if c.function.arguments is string else c.function.arguments | tojson", "either"),
        ("c.function.arguments | items | list | tojson", "object"),
    ],
)
def test_the_form_of_arguments(expression, form):
    text = (
        "{{ tools | tojson }}{% for m in messages %}{{ m.content }}"
        "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ " + expression + " }}{% endfor %}{% endfor %}"
    )
    result = probe_template(text)
    assert result.supports_tools
    assert result.supports_tool_calls
    assert result.supports_parallel_calls
    assert result.arguments == form


def test_calls_known_by_null_content():
    text = (
        "{% for m in messages %}{% if m.content is none %}{% for c in m.tool_calls %}"
        "{{ c.function.name + c.function.arguments }}{% endfor %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
    )
    result = probe_template(text)
    assert result.supports_tool_calls
    assert result.null_call_content
    assert result.arguments == "string"
    plain = probe_template(PLAIN)
    assert not plain.supports_tool_calls
    assert not plain.null_call_content
    assert plain.arguments == "object"


def test_thinking():
    text = PLAIN + "{% if enable_thinking is false %}<think></think>{% endif %}"
    assert probe_template(text).supports_thinking_switch
    assert not probe_template(text).opens_thinking
    assert probe_template(PLAIN + "<think>\n").opens_thinking
    assert probe_template(
        PLAIN.replace("{{ m.content }}", "{{ m.reasoning_content }}{{ m.content }}")
    ).supports_reasoning


def test_the_models_at_hand_can_chat(chat_folder: Path):
    source = find_chat_template(chat_folder)
    assert source is not None
    result = probe_template(source, template_variables(chat_folder))
    assert result.ok
    assert result.supports_system
    assert result.keeps_user_text
    assert result.keeps_history
    assert result.supports_thinking_switch == ("enable_thinking" in source.text)
    assert result.supports_tools == ("tools" in source.text)


def test_a_result_is_plain_data():
    """It is sent between processes."""
    data = attrs.asdict(probe_template(PLAIN))
    assert ProbeResult(**data) == probe_template(PLAIN)
    assert all(isinstance(value, bool | str | None) for value in data.values())


def test_the_probe_strings():
    assert len(set(PROBE_STRINGS)) == 32
