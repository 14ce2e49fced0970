"""What a chat template can do, found by rendering; and the texts tokenizers are compared on.

`probe_template` runs in a process that may be killed: a template can render for ever or without end.
"""

from __future__ import annotations

import datetime as dt
import unicodedata
from collections.abc import Mapping
from itertools import product
from typing import Any, Final

import attrs

from rustedvino.text.history import ArgumentsForm, ContentForm, template_messages
from rustedvino.text.templates import ChatTemplate, TemplateError, TemplateSource

_USER: Final = "Quartz sphinx question"
_SYSTEM: Final = "Vexing zebra instruction"
_ANSWER: Final = "Jumbled fox answer"
_RESULT: Final = "Waltzing nymph result"
_NAME: Final = "probe_lookup"
_ARGUMENT: Final = "bright vixens"
_NOW: Final = dt.datetime(2025, 1, 2, 3, 4, 5)

_QUESTION: Final = ({"role": "user", "content": _USER},)

_TOOLS: Final[list[dict[str, Any]]] = [
    {
        "type": "function",
        "function": {
            "name": _NAME,
            "description": "Look something up.",
            "parameters": {
                "type": "object",
                "properties": {"query": {"type": "string", "description": "What to look up."}},
                "required": ["query"],
            },
        },
    }
]


@attrs.frozen
class ProbeResult:
    """What a template can do. `ok` False: the model answers completions only, and `error` says why."""

    ok: bool
    error: str | None = None
    supports_system: bool = False
    """A system message reaches the prompt."""
    supports_tools: bool = False
    """Tool descriptions reach the prompt."""
    supports_tool_calls: bool = False
    """An earlier call and its result reach the prompt."""
    supports_thinking_switch: bool = False
    """`enable_thinking` changes the prompt."""
    supports_reasoning: bool = False
    """`reasoning_content` of the answer under way (behind the last question) reaches the prompt."""
    supports_parallel_calls: bool = False
    """Two calls in one message are accepted."""
    keeps_user_text: bool = False
    """The last user message reaches the prompt unchanged, white space inside included."""
    keeps_history: bool = False
    """Earlier turns reach the prompt."""
    adds_generation_prompt: bool = False
    """The prompt ends with the beginning of an answer if asked."""
    arguments: ArgumentsForm = "object"
    """In which form the template wants tool call arguments; "either": an object, or text that is none."""
    null_call_content: bool = False
    """The template knows a message with tool calls by its null content: empty text will not do."""
    content: ContentForm = "string"
    """In which form the template wants text content."""
    opens_thinking: bool = False
    """The generation prompt ends inside the reasoning: the answer starts without an opening tag."""


def probe_template(source: TemplateSource | str, variables: Mapping[str, Any] | None = None) -> ProbeResult:
    """Render a fixed set of conversations and say what the template makes of them. Never raises."""
    try:
        template = ChatTemplate(source, variables, now=lambda: _NOW)
    except TemplateError as error:
        return ProbeResult(ok=False, error=f"the chat template does not compile: {error}")
    forms: tuple[ContentForm, ...] = ("string", "parts")
    error_text: str | None = None
    for form in forms:
        probe = _Probe(template, form)
        prompt = probe.render(_QUESTION)
        if prompt is None:
            error_text = error_text or probe.error
        elif _USER in prompt:
            return _examine(probe, prompt)
    reason = error_text or "the text of the user is not in the prompt"
    return ProbeResult(ok=False, error=f"the chat template cannot render a question: {reason}")


@attrs.define(eq=False)
class _Probe:
    template: ChatTemplate
    content: ContentForm
    arguments: ArgumentsForm = "object"
    null_call_content: bool = False
    error: str | None = None

    def render(self, messages: Any, **kwargs: Any) -> str | None:
        """Return the prompt, None if the template refuses."""
        prepared = template_messages(
            messages,
            arguments=self.arguments,
            content=self.content,
            null_call_content=self.null_call_content,
        )
        try:
            return self.template.render(prepared, **kwargs)
        except TemplateError as error:
            self.error = str(error)
            return None

    def shows(self, messages: Any, *texts: str, **kwargs: Any) -> bool:
        """Whether the prompt of the messages holds all the texts."""
        prompt = self.render(messages, **kwargs)
        return prompt is not None and all(text in prompt for text in texts)


def _examine(probe: _Probe, prompt: str) -> ProbeResult:
    user = list(_QUESTION)
    spaced = "two  spaces\n\tand a tab, {{ 1 }} {% if %} <&> \"quoted\" 'é'"
    bare = probe.render(user, add_generation_prompt=False)
    calls = _tool_calls(probe)
    thinking = [probe.render(user, enable_thinking=switch) for switch in (True, False)]
    return ProbeResult(
        ok=True,
        supports_system=probe.shows([{"role": "system", "content": _SYSTEM}, *user], _SYSTEM, _USER),
        supports_tools=probe.shows(user, _NAME, _USER, tools=_TOOLS),
        supports_tool_calls=calls,
        supports_thinking_switch=None not in thinking and thinking[0] != thinking[1],
        supports_reasoning=probe.shows(
            [*user, {"role": "assistant", "content": _ANSWER, "reasoning_content": _RESULT}],
            _RESULT,
            add_generation_prompt=False,
        ),
        supports_parallel_calls=calls and probe.shows(_call_turns(2), _NAME, _RESULT, tools=_TOOLS),
        keeps_user_text=probe.shows([{"role": "user", "content": spaced}], spaced),
        keeps_history=probe.shows(
            [*user, {"role": "assistant", "content": _ANSWER}, {"role": "user", "content": _SYSTEM}],
            _USER,
            _ANSWER,
            _SYSTEM,
        ),
        adds_generation_prompt=bare is not None and len(prompt) > len(bare) and prompt.startswith(bare),
        arguments=probe.arguments,
        null_call_content=probe.null_call_content,
        content=probe.content,
        opens_thinking=prompt.rstrip().endswith(("<think>", "[THINK]")),
    )


def _tool_calls(probe: _Probe) -> bool:
    """Return whether calls reach the prompt, and leave in the probe the form they have to be given in."""
    forms: tuple[ArgumentsForm, ...] = ("object", "string")
    for probe.null_call_content, probe.arguments in product((False, True), forms):
        prompt = probe.render(_call_turns(1), tools=_TOOLS)
        if prompt is None or not all(text in prompt for text in (_NAME, _ARGUMENT, _RESULT)):
            continue
        if '\\"query' in prompt or "{'query'" in prompt:
            continue  # dumped twice, or as Python prints it
        if probe.arguments == "object":
            probe.arguments = "either"
            if not probe.shows(_call_turns(1, _ARGUMENT), _NAME, _ARGUMENT, _RESULT, tools=_TOOLS):
                probe.arguments = "object"
        return True
    probe.null_call_content, probe.arguments = False, "object"
    return False


def _call_turns(count: int, arguments: str = f'{{"query": "{_ARGUMENT}"}}') -> list[dict[str, Any]]:
    # Nine letters and digits: what the strictest templates take for the id of a call.
    ids = [f"probe000{index}" for index in range(count)]
    return [
        {"role": "user", "content": _USER},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {
                    "id": call_id,
                    "type": "function",
                    "function": {"name": _NAME, "arguments": arguments},
                }
                for call_id in ids
            ],
        },
        *({"role": "tool", "tool_call_id": call_id, "name": _NAME, "content": _RESULT} for call_id in ids),
    ]


PROBE_STRINGS: Final = (
    "",
    " ",
    "   ",
    "Hello, world!",
    " leading space",
    "trailing space ",
    "two  spaces   three",
    "\n",
    "\n\n\nlines\n\n",
    "tab\tand\t\ttabs",
    "windows\r\nlines\r\n",
    "old mac\rlines",
    "mixed \n \n  indent\n    code",
    "1234567890 3.14159 1,000,000",
    "don't can't I'll we've it's",
    "camelCase snake_case kebab-case SCREAMING",
    "Grüße aus Köln, naïve façade",
    unicodedata.normalize("NFC", "e\u0301 a\u0308 n\u0303 Å"),
    unicodedata.normalize("NFD", "é ä ñ Å"),
    "ﬁne ½ Ａ① ™",
    "你好,世界。漢字かな交じり文",
    "안녕하세요 세계",
    "Привет, мир! Γειά σου",
    "שלום עולם مرحبا بالعالم",
    "नमस्ते दुनिया สวัสดี",
    "🙂 😀😀 👍🏽 🇩🇪",
    "👩‍👩‍👧 👨🏿‍🚀 ❤️‍🔥",
    "\U00010348 \U0001d54f \U000e0041 \u200b\u200d\ufeff",
    "for (int i = 0; i < n; ++i) { a[i] += b->c; } // https://x.org/?q=%20",
    '{"a": [1, 2.5e-3, null], "b": "\\u00e9\\n"}',
    "<|im_start|>user\n<|im_end|> <s>[INST] </s> <think> <|eot_id|> <bos>",
    "▁▁ ĠĊ <0x0A> ## [CLS] \x00\x01\x7f \x85\xa0\u3000",
)
"""Texts on which the runtime's tokenizer must give the ids of tokenizer.json, with and without special tokens."""
