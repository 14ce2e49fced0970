"""`POST /v1/chat/completions`: the request."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Final, Literal

from attrs import field, frozen

from rustedvino.api.converter import FieldError, NonEmpty, Segment, Within, register, structure_as, wrong
from rustedvino.api.messages import (
    ROLES,
    AudioPart,
    ChatMessage,
    ContentPart,
    FilePart,
    FunctionCall,
    ImagePart,
    Name,
    RefusalPart,
    TextPart,
    ToolCall,
    template_messages,
)
from rustedvino.api.sampling import SamplingRequest, TokenCount

__all__ = [
    "ROLES",
    "AudioPart",
    "ChatMessage",
    "ChatRequest",
    "ContentPart",
    "FilePart",
    "FunctionCall",
    "ImagePart",
    "JsonSchemaFormat",
    "RefusalPart",
    "ResponseFormat",
    "TextPart",
    "Tool",
    "ToolCall",
    "ToolChoice",
    "check_template_kwargs",
    "template_messages",
]

#: Names a template gets from the server itself.
RESERVED_TEMPLATE_KWARGS: Final = frozenset(
    {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "chat_template"}
)


@frozen(kw_only=True)
class _FunctionSpec:
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


@frozen(kw_only=True)
class _ToolShape:
    type: Literal["function"]
    function: _FunctionSpec


@frozen(kw_only=True)
class Tool:
    """A function the model may call; `parameters` is a JSON schema, None when the function takes none.

    `raw` is the object as the client wrote it: templates print it, with its keys in that order.
    """

    name: str
    description: str | None
    parameters: dict[str, Any] | None
    strict: bool
    raw: dict[str, Any] = field(eq=False, repr=False)


def _structure_tool(value: Any) -> Tool:
    function = structure_as(_ToolShape, value).function
    return Tool(
        name=function.name,
        description=function.description,
        parameters=function.parameters,
        strict=bool(function.strict),
        raw=value,
    )


register(Tool, _structure_tool)


@frozen(kw_only=True)
class ToolChoice:
    """Which tools may or must be called; an empty `names` means all of them.

    A named function is `mode="required", names=("f",)`. `name_paths` says where each name stands.
    """

    mode: Literal["none", "auto", "required"]
    names: tuple[str, ...] = ()
    name_paths: tuple[tuple[Segment, ...], ...] = field(default=(), eq=False, repr=False)


@frozen(kw_only=True)
class _FunctionName:
    name: Name


@frozen(kw_only=True)
class _NamedChoice:
    type: Literal["function"]
    function: _FunctionName


@frozen(kw_only=True)
class _AllowedTools:
    mode: Literal["auto", "required"]
    tools: Annotated[tuple[_NamedChoice, ...], NonEmpty()]


@frozen(kw_only=True)
class _AllowedChoice:
    type: Literal["allowed_tools"]
    allowed_tools: _AllowedTools


def _structure_tool_choice(value: Any) -> ToolChoice:
    if value == "none" or value == "auto" or value == "required":
        return ToolChoice(mode=value)
    if type(value) is not dict:
        raise wrong("'none', 'auto', 'required' or an object", value)
    if value.get("type") == "allowed_tools":
        allowed = structure_as(_AllowedChoice, value).allowed_tools
        return ToolChoice(
            mode=allowed.mode,
            names=tuple(tool.function.name for tool in allowed.tools),
            name_paths=tuple(("allowed_tools", "tools", i, "function", "name") for i in range(len(allowed.tools))),
        )
    if value.get("type") not in (None, "function"):
        raise wrong("'function' or 'allowed_tools'", value["type"]).under("type")
    named = structure_as(_NamedChoice, value)
    return ToolChoice(mode="required", names=(named.function.name,), name_paths=(("function", "name"),))


register(ToolChoice, _structure_tool_choice)


@frozen(kw_only=True)
class JsonSchemaFormat:
    name: Name
    schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None


@frozen(kw_only=True)
class ResponseFormat:
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchemaFormat | None = None

    def __attrs_post_init__(self) -> None:
        if self.type == "json_schema" and self.json_schema is None:
            message = "is missing: type 'json_schema' needs it."
            raise FieldError(message, ("json_schema",), "missing_required_parameter")


# -- the request ----------------------------------------------------------------------------------------


@frozen(kw_only=True)
class ChatRequest(SamplingRequest):
    REFUSED: ClassVar[Mapping[str, str]] = {
        "audio": "audio output is not supported here; use /v1/audio/speech",
        "web_search_options": "this server does not search the web",
        "functions": "use 'tools'",
        "function_call": "use 'tool_choice'",
        "prediction": "predicted outputs are not supported",
    }

    messages: Annotated[tuple[ChatMessage, ...], NonEmpty()]
    max_completion_tokens: TokenCount | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Within(0, 20)] | None = None
    response_format: ResponseFormat | None = None
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool = True
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    enable_thinking: bool | None = None
    chat_template_kwargs: dict[str, Any] = field(factory=dict)
    modalities: tuple[Literal["text"], ...] | None = None

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if self.top_logprobs is not None and not self.logprobs:
            raise FieldError("is only allowed when 'logprobs' is true.", ("top_logprobs",))
        check_template_kwargs(self.chat_template_kwargs)
        if self.tool_choice is not None:
            self._check_tool_choice(self.tool_choice)

    def _check_tool_choice(self, choice: ToolChoice) -> None:
        if choice.mode == "required" and not self.tools:
            raise FieldError("needs 'tools' to choose from, but there are none.", ("tool_choice",))
        known = {tool.name for tool in self.tools}
        for name, path in zip(choice.names, choice.name_paths, strict=True):
            if name not in known:
                raise FieldError("must be the name of one of 'tools'.", ("tool_choice", *path))

    @property
    def max_new_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def effective_tool_choice(self) -> ToolChoice:
        """The choice made, else "auto" with tools and "none" without."""
        if not self.tools:
            return ToolChoice(mode="none")
        return self.tool_choice or ToolChoice(mode="auto")

    @property
    def thinking(self) -> bool | None:
        """Whether the client wants reasoning; None leaves it to the template.

        `enable_thinking` wins over `chat_template_kwargs`, and both over `reasoning_effort`, of which only
        "none" decides.
        """
        if self.enable_thinking is not None:
            return self.enable_thinking
        given = self.chat_template_kwargs.get("enable_thinking")
        if isinstance(given, bool):
            return given
        return False if self.reasoning_effort == "none" else None

    def media_parts(self) -> Iterator[tuple[str, ImagePart | AudioPart | FilePart]]:
        """Every part that is not text, with its path (`messages[0].content[1]`), in order."""
        for i, message in enumerate(self.messages):
            for j, part in enumerate(message.parts):
                if not isinstance(part, TextPart | RefusalPart):
                    yield f"messages[{i}].content[{j}]", part

    def to_template_messages(self) -> list[dict[str, Any]]:
        """The plain list of dicts a chat template gets; see `ChatMessage.to_template`."""
        return template_messages(self.messages)

    def template_tools(self) -> list[dict[str, Any]] | None:
        """`tools` for a chat template, as the client wrote them; None when none may be called."""
        choice = self.effective_tool_choice
        if choice.mode == "none":
            return None
        return [tool.raw for tool in self.tools if not choice.names or tool.name in choice.names]


def check_template_kwargs(kwargs: Mapping[str, Any]) -> None:
    """Raises FieldError for a name that the server itself gives to every template."""
    for name in kwargs:
        if name in RESERVED_TEMPLATE_KWARGS:
            raise FieldError("is set by the server and cannot be given here.", ("chat_template_kwargs", name))
    thinking = kwargs.get("enable_thinking")
    if thinking is not None and not isinstance(thinking, bool):
        raise wrong("true or false", thinking).under("chat_template_kwargs", "enable_thinking")
