"""Which tool dialect a model speaks, by its chat template and control tokens."""

from __future__ import annotations


def detect_tool_dialect(template_source: str, control_tokens: frozenset[str] = frozenset()) -> str | None:
    """Return the name of the dialect, None if the template has no place for tools."""
    source = template_source

    def has(*marks: str) -> bool:
        return any(mark in source for mark in marks)

    if has("<|channel|>") and has("<|message|>", "<|call|>"):
        return "gpt_oss"
    if not has("tools", "tool_calls", "functions"):
        return None
    if has("<function=") and has("<parameter="):
        return "qwen3_coder"
    if has("<tool_call>"):
        return "hermes"
    if has("[TOOL_CALLS]", "[AVAILABLE_TOOLS]"):
        return "mistral"
    if has("<|tool_call|>", "functools[", "<|tool|>"):
        return "phi4"
    if has("<|python_start|>", "[func_name1("):
        return "pythonic"
    if has("<|python_tag|>", '"parameters"') and has("<|start_header_id|>", "<|python_tag|>"):
        return "llama3_json"
    if has("<start_of_turn>", "```tool_code"):
        return "gemma"
    for tag, dialect in (("<tool_call>", "hermes"), ("[TOOL_CALLS]", "mistral"), ("<|tool_call|>", "phi4")):
        if tag in control_tokens:
            return dialect
    return None
