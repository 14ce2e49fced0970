"""A Responses request as the chat it means, and errors about that chat in the request's own words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

import attrs
from attrs import define, field, frozen

from rustedvino.api.chat import ChatRequest, JsonSchemaFormat, ResponseFormat, Tool
from rustedvino.api.converter import FieldError
from rustedvino.api.errors import ApiError
from rustedvino.api.messages import (
    ChatMessage,
    Content,
    ContentPart,
    FileData,
    FilePart,
    FunctionCall,
    ImagePart,
    ImageUrl,
    RefusalPart,
    TextPart,
    ToolCall,
)
from rustedvino.api.responses import FunctionTool, ResponsesRequest, TextFormat
from rustedvino.api.responses_input import (
    FunctionCallItem,
    FunctionCallOutputItem,
    InputFile,
    InputImage,
    Item,
    MessageItem,
    Part,
    Parts,
    ReasoningItem,
    Refusal,
)
from rustedvino.api.sampling import SamplingRequest

__all__ = ["Translation", "to_chat"]

#: What both requests have under the same name and meaning.
_SHARED: Final = tuple(
    name
    for name in attrs.fields_dict(SamplingRequest)
    if name not in ("n", "max_tokens", "logit_bias", "stream_options", "stream")
)


@define
class _Source:
    """Where a chat message comes from: paths in the Responses request."""

    path: str
    content: str
    calls: list[str] = field(factory=list)

    def param(self, rest: str) -> str:
        """The path of what chat calls `messages[i]` + `rest`."""
        part = re.match(r"\.content(\[\d+\])?", rest)
        if part is not None:
            if part[1] is None or self.content == self.path:
                return self.content
            tail = rest[part.end() :].replace(".image_url.url", ".image_url").replace(".image_url.detail", ".detail")
            return self.content + part[1] + tail.replace(".file.", ".")
        call = re.match(r"\.tool_calls\[(\d+)\]", rest)
        if call is not None and int(call[1]) < len(self.calls):
            tail = rest[call.end() :].replace(".function.", ".").replace(".id", ".call_id")
            return self.calls[int(call[1])] + tail
        return self.path + (".call_id" if rest == ".tool_call_id" else "")


@frozen(kw_only=True)
class Translation:
    """`chat` asks for what the Responses request asks for."""

    chat: ChatRequest
    _sources: Sequence[_Source]

    def param(self, param: str) -> str:
        """A path in the chat request as a path in the Responses request."""
        message = re.match(r"messages\[(\d+)\]", param)
        if message is not None and int(message[1]) < len(self._sources):
            return self._sources[int(message[1])].param(param[message.end() :])
        for pattern, replacement in _PARAMS:
            param = pattern.sub(replacement, param)
        return param

    def error(self, error: ApiError) -> ApiError:
        """The error with the names of the Responses API in its param and in the quotes of its message."""
        return ApiError(
            error.status,
            _QUOTED.sub(lambda quoted: f"'{self._word(quoted[1])}'", error.message),
            type=error.type,
            param=None if error.param is None else self.param(error.param),
            code=error.code,
            retry_after_secs=error.retry_after_secs,
            headers=error.headers,
        )

    def _word(self, word: str) -> str:
        return _PART_TYPES.get(word) or self.param(word)


_PARAMS: Final = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"^messages$", "input"),
        (r"^max_(completion_)?tokens$", "max_output_tokens"),
        (r"^reasoning_effort$", "reasoning.effort"),
        (r"^response_format(\.json_schema)?(?!\w)", "text.format"),
        (r"^logprobs$", "include"),
        (r"^tool_choice\.allowed_tools(?!\w)", "tool_choice"),
        (r"^(tools\[\d+\]|tool_choice(?:\.tools\[\d+\])?)\.function(?!\w)", r"\1"),
    )
)
_PART_TYPES: Final = {"image_url": "input_image", "file": "input_file"}
_QUOTED: Final = re.compile(r"'([A-Za-z_][\w.\[\]]{0,300})'")


def to_chat(request: ResponsesRequest) -> Translation:
    """The chat of a request. Raises ApiError naming the field of the Responses request."""
    messages, sources = _messages(request)
    try:
        chat = ChatRequest(
            **{name: getattr(request, name) for name in _SHARED},
            stream=request.stream,
            messages=messages,
            max_completion_tokens=request.max_output_tokens,
            logprobs=request.wants_logprobs,
            top_logprobs=request.top_logprobs or None,
            response_format=_response_format(request.text.format),
            tools=tuple(_tool(tool) for tool in request.tools),
            tool_choice=None if request.tool_choice is None else request.tool_choice.choice,
            parallel_tool_calls=request.parallel_tool_calls,
            reasoning_effort=request.reasoning.effort,
            enable_thinking=request.enable_thinking,
            chat_template_kwargs=request.chat_template_kwargs,
        )
    except FieldError as e:
        raise e.api_error() from None
    return Translation(chat=chat, sources=sources)


def _response_format(wanted: TextFormat) -> ResponseFormat | None:
    if wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return ResponseFormat(type="json_object")
    assert wanted.name is not None
    assert wanted.schema is not None
    return ResponseFormat(
        type="json_schema",
        json_schema=JsonSchemaFormat(
            name=wanted.name, schema=wanted.schema, description=wanted.description, strict=wanted.strict
        ),
    )


def _tool(tool: FunctionTool) -> Tool:
    """The nested form, its fields in the client's order, as templates print it."""
    known = ("name", "description", "parameters", "strict")
    function = {name: value for name, value in tool.raw.items() if name in known and value is not None}
    return Tool(
        name=tool.name,
        description=tool.description,
        parameters=tool.parameters,
        strict=tool.strict,
        raw={"type": "function", "function": function},
    )


# -- messages -------------------------------------------------------------------------------------------


@define
class _Turn:
    """An answer of the model as it gathers: thinking, text, calls."""

    source: _Source
    reasoning: list[str] = field(factory=list)
    content: Content | None = None
    calls: list[ToolCall] = field(factory=list)

    def takes(self, item: Item) -> bool:
        """Whether the item belongs to this answer; after text only calls do, after calls everything does."""
        return isinstance(item, FunctionCallItem) or bool(self.calls) or self.content is None

    def add_text(self, content: Content, path: str) -> None:
        if self.content is None:
            self.content, self.source.content = content, path
        else:
            self.content = Content(_joined(self.content) + _joined(content))

    def message(self) -> ChatMessage:
        return ChatMessage(
            role="assistant",
            content=self.content,
            tool_calls=tuple(self.calls),
            reasoning_content="".join(self.reasoning) or None,
        )


def _messages(request: ResponsesRequest) -> tuple[tuple[ChatMessage, ...], tuple[_Source, ...]]:
    """The messages, and where each comes from.

    What the model wrote in one answer is one message in chat and several items here, so neighbours of it are put
    together again. Two texts in a row stay two messages.
    """
    messages: list[ChatMessage] = []
    sources: list[_Source] = []

    def add(message: ChatMessage, source: _Source) -> None:
        messages.append(message)
        sources.append(source)

    if request.instructions is not None:
        add(ChatMessage(role="system", content=Content(request.instructions)), _Source("instructions", "instructions"))
    if isinstance(request.input.value, str):
        add(ChatMessage(role="user", content=Content(request.input.value)), _Source("input", "input"))
        return tuple(messages), tuple(sources)
    turn: _Turn | None = None
    for i, item in enumerate(request.input.value):
        path = f"input[{i}]"
        ours = not isinstance(item, FunctionCallOutputItem) and not (
            isinstance(item, MessageItem) and item.role != "assistant"
        )
        if turn is not None and not (ours and turn.takes(item)):
            add(turn.message(), turn.source)
            turn = None
        if ours and turn is None:
            turn = _Turn(_Source(path, path))
        match item:
            case FunctionCallOutputItem(call_id=call_id, output=output):
                message = ChatMessage(role="tool", content=_content(output), tool_call_id=call_id)
                add(message, _Source(path, f"{path}.output"))
            case MessageItem(role=role, content=parts) if turn is None:
                add(ChatMessage(role=role, content=_content(parts)), _Source(path, f"{path}.content"))
            case MessageItem(content=parts):
                assert turn is not None
                turn.add_text(_content(parts), f"{path}.content")
            case FunctionCallItem(call_id=call_id, name=name, arguments=arguments):
                assert turn is not None
                turn.calls.append(ToolCall(id=call_id, function=FunctionCall(name=name, arguments=arguments)))
                turn.source.calls.append(path)
            case ReasoningItem(text=text):
                assert turn is not None
                turn.reasoning.append(text)
    if turn is not None:
        add(turn.message(), turn.source)
    return tuple(messages), tuple(sources)


def _content(parts: Parts) -> Content:
    if isinstance(parts.value, str):
        return Content(parts.value)
    return Content(tuple(_part(part) for part in parts.value) or "")


def _part(part: Part) -> ContentPart:
    match part:
        case InputImage(image_url=url, detail=detail):
            return ImagePart(type="image_url", image_url=ImageUrl(url=url, detail=detail))
        case InputFile(file_data=data, file_id=file_id, filename=filename):
            return FilePart(type="file", file=FileData(file_data=data, file_id=file_id, filename=filename))
        case Refusal(refusal=text):
            return RefusalPart(type="refusal", refusal=text)
        case _:
            return TextPart(type="text", text=part.text)


def _joined(content: Content) -> str:
    if isinstance(content.value, str):
        return content.value
    return "".join(_texts(content.value))


def _texts(parts: Iterable[Any]) -> Iterable[str]:
    for part in parts:
        yield part.refusal if isinstance(part, RefusalPart) else part.text
