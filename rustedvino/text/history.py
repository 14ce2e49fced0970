"""Brings messages of the wire format into the form chat templates were written for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

REASONING_TAGS: Final = (("<think>", "</think>"), ("[THINK]", "[/THINK]"))
"""How reasoning is written in the content of an earlier answer."""

ArgumentsForm = Literal["object", "string", "either"]
ContentForm = Literal["string", "parts"]


def split_reasoning(content: str) -> tuple[str | None, str]:
    """Return (reasoning, content) of an assistant's earlier answer; reasoning is None if it has none.

    The opening tag may be missing: many templates write it into the prompt, so that the answer begins
    inside the reasoning. An answer that was cut inside its reasoning has no content.
    """
    for opening, closing in REASONING_TAGS:
        start = content.lstrip()
        head, found, tail = content.partition(closing)
        if found:
            before, opened, reasoning = head.partition(opening)
            if opened and before.strip():
                continue  # the tags are inside of the answer: it talks about them
            return (reasoning if opened else head).strip(), tail.lstrip()
        if start.startswith(opening):
            return start.removeprefix(opening).strip(), ""
    return None, content


def arguments_as_object(arguments: Any) -> Any:
    """Return tool call arguments as an object if they are the JSON text of one, else as they are.

    Null and blank text are a call without arguments: an empty object.
    """
    if arguments is None:
        return {}
    if not isinstance(arguments, str):
        return arguments
    if not arguments.strip():
        return {}
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


def template_messages(
    messages: Sequence[Mapping[str, Any]],
    *,
    arguments: ArgumentsForm = "object",
    content: ContentForm = "string",
    null_call_content: bool = False,
) -> list[dict[str, Any]]:
    """Return messages ready for marking and rendering; the originals are not changed.

    - An assistant's content is split into `content` and `reasoning_content` (also given as `reasoning`
      and `thinking`, the names some templates look for), unless the message says its reasoning itself.
    - Tool call arguments become an object where they are the text of one ("object" and "either"; most
      templates dump them with `tojson` or walk through them) or text ("string": the templates that join
      them to a string, such as DeepSeek's). What is no object goes to "either" as it is, and to "object"
      under the name `arguments`, because a template that walks through a text fails. The probe of a
      template says which.
    - `null_call_content` makes empty content beside tool calls null: some templates know a call by that.
    - `content` says whether text content is given as a string or as a list of parts. Parts other than
      text are kept as a list either way.
    An empty content stays empty: templates tell an empty system message from none.
    """
    prepared = [_message(message, arguments, content) for message in messages]
    if null_call_content:
        for message in prepared:
            if message.get("tool_calls") and _text(message.get("content")) == "":
                message["content"] = None
    return prepared


def _message(message: Mapping[str, Any], arguments_form: ArgumentsForm, content_form: ContentForm) -> dict[str, Any]:
    result = dict(message)
    body = result.get("content")
    text = _text(body)
    if result.get("role") == "assistant":
        reasoning = next(
            (value for key in ("reasoning_content", "reasoning") if isinstance(value := result.get(key), str)),
            None,
        )
        if reasoning is None and text is not None:
            reasoning, text = split_reasoning(text)
        if reasoning is not None:
            result.update(reasoning_content=reasoning, reasoning=reasoning)
            if not (text and result.get("tool_calls")):  # harmony's template refuses both beside a call
                result["thinking"] = reasoning
        if isinstance(result.get("tool_calls"), Sequence):
            result["tool_calls"] = [_tool_call(call, arguments_form) for call in result["tool_calls"]]
    if text is not None:
        result["content"] = text if content_form == "string" else [{"type": "text", "text": text}]
    return result


def _text(body: Any) -> str | None:
    """Return content that is text only as one string, None for anything else."""
    if isinstance(body, str):
        return body
    if (
        isinstance(body, Sequence)
        and body
        and all(isinstance(part, Mapping) and isinstance(part.get("text"), str) for part in body)
    ):
        return "\n".join(part["text"] for part in body)
    return None


def _tool_call(call: Any, form: ArgumentsForm) -> Any:
    if not isinstance(call, Mapping):
        return call
    result = dict(call)
    function = result.get("function")
    if isinstance(function, Mapping) and "arguments" in function:
        value = function["arguments"]
        if form == "string" and isinstance(value, str) and value.strip():
            return result
        value = arguments_as_object(value)
        if form == "string":
            value = json.dumps(value, ensure_ascii=False)
        elif form == "object" and not isinstance(value, Mapping):
            value = {"arguments": value}
        result["function"] = {**function, "arguments": value}
    return result
