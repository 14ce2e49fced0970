from __future__ import annotations

from pathlib import Path

import pytest

from rustedvino.text.tools.detect import detect_tool_dialect

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("template", "tokens", "dialect"),
    [
        ("{% if tools %}<tools>…<tool_call>\n{'name': …}", (), "hermes"),
        ("{% if tools %}<tool_call>\n<function=example>\n<parameter=p>", (), "qwen3_coder"),
        ("{% if tools %}[AVAILABLE_TOOLS]…[TOOL_CALLS]", (), "mistral"),
        ("{% if tools %}<|tool|>{{ message['tools'] }}<|/tool|>", ("<|tool_call|>",), "phi4"),
        ('<|start_header_id|>…{% if tools %}Respond in the format {"name": …, "parameters": …}', (), "llama3_json"),
        ("<|header_start|>{% if tools %}<|python_start|>[f()]<|python_end|>", (), "pythonic"),
        ("{% if tools %}[func_name1(params_name1=params_value1)]", (), "pythonic"),
        ("<start_of_turn>{% if tools %}{{ tools }}", (), "gemma"),
        ("<|start|>…<|channel|>commentary<|message|>", (), "gpt_oss"),
        ("{% if tools %}{{ tools | tojson }}", ("<tool_call>",), "hermes"),
        ("{% if tools %}{{ tools | tojson }}", (), None),
        ("<|im_start|>{{ message.content }}", ("<tool_call>",), None),
        ("", (), None),
    ],
)
def test_dialect_by_template(template: str, tokens: tuple[str, ...], dialect: str | None) -> None:
    assert detect_tool_dialect(template, frozenset(tokens)) == dialect


@pytest.mark.parametrize(
    ("folder", "dialect"),
    [
        ("rustedvino/models/rv-demo", "hermes"),
        ("tests/models/tiny-qwen3-chat", "hermes"),
        ("tests/models/tiny-llama3", "llama3_json"),
        ("tests/models/tiny-mistral", "mistral"),
    ],
)
def test_dialect_of_the_models_at_hand(folder: str, dialect: str) -> None:
    assert detect_tool_dialect((ROOT / folder / "chat_template.jinja").read_text()) == dialect
