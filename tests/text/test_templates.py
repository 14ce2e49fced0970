import datetime as dt
import json
from pathlib import Path
from xml.sax.saxutils import quoteattr

import pytest

from rustedvino.text.markers import ControlMarker
from rustedvino.text.templates import (
    ChatTemplate,
    TemplateError,
    TemplateSource,
    find_chat_template,
    template_variables,
)

USER = [{"role": "user", "content": "hi"}]


def render(text: str, messages=USER, **kwargs) -> str:
    return ChatTemplate(text).render(messages, **kwargs)


def write_xml(folder: Path, body: str, head: str = "") -> None:
    (folder / "openvino_tokenizer.xml").write_text(
        f'<?xml version="1.0"?>{head}<net name="tokenizer"><layers><chat_template value="no"/></layers>'
        f"<rt_info>{body}</rt_info></net>"
    )


def test_the_order_in_which_templates_are_found(tmp_path: Path):
    """Every place is filled, then emptied from the front."""
    override = tmp_path / "mine.txt"
    override.write_text("0", encoding="utf-8-sig")
    (tmp_path / "chat_template.jinja").write_text("1")
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": "2"}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "3"}))
    xml = "<chat_template value='4&#10;x'/><simplified_chat_template value='5'/>"
    write_xml(tmp_path, xml)
    assert find_chat_template(tmp_path, override) == TemplateSource("0", str(override))
    found = []
    for name in ("chat_template.jinja", "chat_template.json", "tokenizer_config.json"):
        source = find_chat_template(tmp_path)
        assert source is not None
        assert source.origin == name
        found.append(source.text)
        (tmp_path / name).unlink()
    assert found == ["1", "2", "3"]
    assert find_chat_template(tmp_path) == TemplateSource("4\nx", "openvino_tokenizer.xml (chat_template)")
    write_xml(tmp_path, "<chat_template/><simplified_chat_template value='5'/>")
    assert find_chat_template(tmp_path) == TemplateSource("5", "openvino_tokenizer.xml (simplified_chat_template)")
    (tmp_path / "openvino_tokenizer.xml").unlink()
    assert find_chat_template(tmp_path) is None


def test_the_runtimes_file_holds_the_same_template(chat_folder: Path, tmp_path: Path):
    (tmp_path / "openvino_tokenizer.xml").write_bytes((chat_folder / "openvino_tokenizer.xml").read_bytes())
    found, original = find_chat_template(tmp_path), find_chat_template(chat_folder)
    assert found is not None
    assert original is not None
    assert found.text == original.text


def test_named_templates(tmp_path: Path):
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}, {"name": 3}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    source = find_chat_template(tmp_path)
    assert source == TemplateSource("plain", "tokenizer_config.json", "tools")
    template = ChatTemplate(source)
    assert template.render(USER) == "plain"
    assert template.render(USER, tools=[]) == "plain"
    assert template.render(USER, tools=[{"type": "function"}]) == "tools"


def test_a_tool_use_file_beside_the_template(tmp_path: Path):
    (tmp_path / "chat_template.jinja").write_text("plain")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    assert find_chat_template(tmp_path) == TemplateSource("plain", "chat_template.jinja", "tools")


@pytest.mark.parametrize("value", [None, "", "  ", [], [{"name": "x"}], 5])
def test_an_empty_template_is_none(tmp_path: Path, value):
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": value}))
    assert find_chat_template(tmp_path) is None


def test_a_missing_override_is_an_error(tmp_path: Path):
    (tmp_path / "chat_template.jinja").write_text("x")
    with pytest.raises(TemplateError, match=r"gone\.jinja cannot be read"):
        find_chat_template(tmp_path, tmp_path / "gone.jinja")


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff", b"[" * 200_000])
def test_a_broken_config_is_an_error(tmp_path: Path, content):
    (tmp_path / "tokenizer_config.json").write_bytes(content)
    with pytest.raises(TemplateError, match=r"tokenizer_config\.json"):
        find_chat_template(tmp_path)
    with pytest.raises(TemplateError, match=r"tokenizer_config\.json"):
        template_variables(tmp_path)


def test_a_document_type_is_refused(tmp_path: Path):
    bomb = '<!DOCTYPE net [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]>'
    write_xml(tmp_path, "<chat_template value='&b;'/>", head=bomb)
    with pytest.raises(TemplateError, match="document type"):
        find_chat_template(tmp_path)


def test_broken_xml_is_an_error(tmp_path: Path):
    (tmp_path / "openvino_tokenizer.xml").write_text("<net><rt_info>")
    with pytest.raises(TemplateError, match="not XML"):
        find_chat_template(tmp_path)


def test_attribute_values_come_through_whole(tmp_path: Path):
    text = "{{- '<|im_start|>' + \"é\" -}}\n\t{%- if a < b and c > d -%}&amp;{%- endif -%}"
    quoted = quoteattr(text, {"\n": "&#10;", "\t": "&#9;"})
    write_xml(tmp_path, f"<chat_template value={quoted}/>")
    source = find_chat_template(tmp_path)
    assert source is not None
    assert source.text == text


def test_variables_from_both_files(tmp_path: Path):
    (tmp_path / "special_tokens_map.json").write_text(
        json.dumps(
            {
                "bos_token": "<b>",
                "eos_token": {"content": "<e>"},
                "additional_special_tokens": ["<x>", {"content": "<y>"}],
            }
        )
    )
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": {"content": "<end>", "lstrip": False}, "pad_token": None, "add_bos_token": True})
    )
    assert template_variables(tmp_path) == {
        "bos_token": "<b>",
        "eos_token": "<end>",
        "additional_special_tokens": ["<x>", "<y>"],
    }
    assert template_variables(tmp_path / "none") == {}


def test_json_as_models_have_seen_it():
    value = {"b": "é<>&'\"\u2028", "a": [1, 2.0, None, True]}
    assert render("{{ x | tojson }}", x=value) == '{"b": "é<>&\'\\"\u2028", "a": [1, 2.0, null, true]}'
    assert render("{{ x | tojson(indent=2) }}", x={"a": 1}) == '{\n  "a": 1\n}'
    assert render("{{ x | tojson(separators=(',', ':'), sort_keys=true) }}", x={"b": 1, "a": 2}) == '{"a":2,"b":1}'
    assert render("{{ x | tojson(ensure_ascii=true) }}", x=["é🙂"]) == '["\\u00e9\\ud83d\\ude42"]'


def test_marks_survive_json_in_ascii():
    marker = ControlMarker(["<think>", "¶"])
    rendered = render("{{ x | tojson(ensure_ascii=true) }}", x=marker.mark("é<think>¶"))
    assert marker.unmark(rendered) == '"\\u00e9<think>¶"'


def test_blocks_leave_no_lines_behind():
    assert render("{% if true %}\n  {% set a = 1 %}\nx\n{% endif %}\n") == "x\n"


def test_loop_controls_and_generation():
    text = (
        "{% for i in [1,2,3,4] %}{% if i == 2 %}{% continue %}{% endif %}"
        "{% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}"
    )
    assert render(text) == "13"
    assert render("a{% generation %}{{ messages[0].content }}{% endgeneration %}b") == "ahib"
    assert (
        render("{% for m in messages %}{% generation %}{{ loop.index }}{{ m.role }}{% endgeneration %}{% endfor %}")
        == "1user"
    )


def test_time_is_injected():
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", now=lambda: dt.datetime(2024, 7, 26))
    assert template.render(USER) == "26 Jul 2024"


def test_the_templates_own_refusal_is_kept():
    with pytest.raises(TemplateError) as caught:
        render("{{ raise_exception('Roles must alternate!') }}")
    assert str(caught.value) == "Roles must alternate!"


@pytest.mark.parametrize(
    "text",
    [
        "{{ messages[0].content + messages }}",
        "{{ nothing.at.all }}",
        "{{ 1 / 0 }}",
        "{{ messages[0]['content'].x.y }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ strftime_now(5) }}",
        "{% for i in range(10000000) %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ messages | tojson(indent='x', separators=1) }}",
    ],
)
def test_whatever_a_template_does_wrong_is_one_error(text):
    with pytest.raises(TemplateError):
        render(text)


@pytest.mark.parametrize("text", ["{% if %}", "{{ x", "{% unknown %}", "{{ messages | nofilter }}", "{% generation %}"])
def test_a_template_that_does_not_compile(text):
    with pytest.raises(TemplateError):
        ChatTemplate(text)


def test_special_tokens_cannot_be_replaced_by_a_request():
    template = ChatTemplate("{{ eos_token }}{{ mode }}", {"eos_token": "</s>"})
    assert template.render(USER, eos_token="<|im_start|>", mode="x") == "</s>x"
    assert template.render(USER, messages="m", self="s") == "</s>"


def test_rendering_changes_nothing():
    messages = [{"role": "user", "content": "hi", "parts": [1]}]
    template = ChatTemplate("{% set ns = namespace(a=1) %}{% set ns.a = 2 %}{{ messages | length }}")
    assert template.render(messages) == template.render(messages) == "1"
    assert messages == [{"role": "user", "content": "hi", "parts": [1]}]


def test_an_empty_system_message_reaches_the_template():
    """A default system prompt is for no system message, not for an empty one."""
    text = "{% if messages[0].role == 'system' %}[{{ messages[0].content }}]{% else %}[default]{% endif %}"
    assert render(text, [{"role": "system", "content": ""}, *USER]) == "[]"
    assert render(text) == "[default]"


def test_absent_tools_are_none_and_lists_are_given():
    text = "{{ tools is none }}{{ documents is none }}{{ add_generation_prompt }}"
    assert render(text) == "TrueTrueTrue"
    assert render(text, tools=[{}], documents=[{}], add_generation_prompt=False) == "FalseFalseFalse"


@pytest.mark.parametrize("thinking", [True, False])
def test_the_thinking_switch_of_a_real_template(chat_folder: Path, thinking):
    source = find_chat_template(chat_folder)
    assert source is not None
    prompt = ChatTemplate(source, template_variables(chat_folder)).render(USER, enable_thinking=thinking)
    assert ("</think>" in prompt) == (not thinking and "enable_thinking" in source.text)
