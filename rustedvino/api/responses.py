"""`POST /v1/responses`: the request, as far as a server can serve it that keeps nothing between requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal

from attrs import field, frozen

from rustedvino.api.chat import ToolChoice, check_template_kwargs
from rustedvino.api.converter import FieldError, NonEmpty, Segment, Within, register, structure_as, wrong
from rustedvino.api.errors import shown
from rustedvino.api.messages import Name
from rustedvino.api.responses_input import Input, kind_of, missing
from rustedvino.api.sampling import SamplingRequest, TokenCount

__all__ = ["FunctionTool", "ResponsesRequest", "ResponsesToolChoice", "TextConfig", "TextFormat"]

MAX_METADATA: Final = 16
MAX_METADATA_NAME_CHARS: Final = 64
MAX_METADATA_VALUE_CHARS: Final = 512

_KEEPS_NOTHING: Final = "this server keeps no responses; send the whole conversation in 'input'"
_UNSUPPORTED: Final = "unsupported_parameter"


# -- tools ----------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class _FunctionShape:
    type: Literal["function"]
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


@frozen(kw_only=True)
class FunctionTool:
    """A function the model may call; `raw` is the object as the client wrote it."""

    name: str
    description: str | None
    parameters: dict[str, Any] | None
    strict: bool
    raw: dict[str, Any] = field(eq=False, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """The tool as a response tells it."""
        return {
            "type": "function",
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
            "strict": self.strict,
        }


def _structure_tool(value: Any) -> FunctionTool:
    kind = kind_of(value, "a tool")
    if type(kind) is str and kind != "function":
        message = f"must be 'function', as this server runs no tools of its own, but it is {shown(kind)}."
        raise FieldError(message, ("type",), _UNSUPPORTED)
    if "function" in value and "name" not in value:
        message = "cannot be used: name, description and parameters stand beside 'type' here."
        raise FieldError(message, ("function",), _UNSUPPORTED)
    shape = structure_as(_FunctionShape, value)
    return FunctionTool(
        name=shape.name,
        description=shape.description,
        parameters=shape.parameters,
        strict=bool(shape.strict),
        raw=value,
    )


register(FunctionTool, _structure_tool)


@frozen(kw_only=True)
class ResponsesToolChoice:
    """The choice, with the paths of its names as this API has them; `raw` is what the client wrote."""

    choice: ToolChoice
    raw: str | dict[str, Any]


@frozen(kw_only=True)
class _NamedChoice:
    type: Literal["function"]
    name: Name


@frozen(kw_only=True)
class _AllowedChoice:
    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[tuple[_NamedChoice, ...], NonEmpty()]


def _structure_tool_choice(value: Any) -> ResponsesToolChoice:
    if value == "none" or value == "auto" or value == "required":
        return ResponsesToolChoice(choice=ToolChoice(mode=value), raw=value)
    if type(value) is not dict:
        raise wrong("'none', 'auto', 'required' or an object", value)
    kind = value.get("type")
    mode: Literal["auto", "required"] = "required"
    if kind == "allowed_tools":
        allowed = structure_as(_AllowedChoice, value)
        mode, names = allowed.mode, tuple(tool.name for tool in allowed.tools)
        paths: tuple[tuple[Segment, ...], ...] = tuple(("tools", i, "name") for i in range(len(names)))
    elif kind is None or kind == "function":
        names, paths = (structure_as(_NamedChoice, value).name,), (("name",),)
    else:
        raise wrong("'function' or 'allowed_tools'", kind).under("type")
    return ResponsesToolChoice(choice=ToolChoice(mode=mode, names=names, name_paths=paths), raw=value)


register(ResponsesToolChoice, _structure_tool_choice)


# -- the request ----------------------------------------------------------------------------------------


@frozen(kw_only=True)
class TextFormat:
    """The shape of the text; unlike in chat the schema stands beside the type."""

    type: Literal["text", "json_object", "json_schema"]
    name: Name | None = None
    schema: dict[str, Any] | None = None
    description: str | None = None
    strict: bool | None = None

    def __attrs_post_init__(self) -> None:
        if self.type == "json_schema":
            for name in ("name", "schema"):
                if getattr(self, name) is None:
                    raise missing(name)

    def to_dict(self) -> dict[str, Any]:
        """The format as a response tells it."""
        if self.type != "json_schema":
            return {"type": self.type}
        return {
            "type": self.type,
            "name": self.name,
            "description": self.description,
            "schema": self.schema,
            "strict": bool(self.strict),
        }


@frozen(kw_only=True)
class TextConfig:
    format: TextFormat = TextFormat(type="text")
    verbosity: Literal["low", "medium", "high"] | None = None


@frozen(kw_only=True)
class ReasoningConfig:
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None


Included = Literal[
    "message.output_text.logprobs",
    # Of these there is never anything to include.
    "reasoning.encrypted_content",
    "message.input_image.image_url",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]


@frozen(kw_only=True)
class ResponsesRequest(SamplingRequest):
    """Beyond OpenAI's fields it takes the extensions that chat has (`top_k`, `seed`, `stop`, …)."""

    REFUSED: ClassVar[Mapping[str, str]] = {
        "previous_response_id": _KEEPS_NOTHING,
        "conversation": _KEEPS_NOTHING,
        "prompt": "this server keeps no prompt templates; use 'instructions' and 'input'",
        "context_management": "this server does not compact conversations",
        "max_tool_calls": "this server runs no tools of its own",
        "moderation": "this server does not moderate",
        "messages": "use 'input'",
        "n": "a response is a single answer",
        "max_tokens": "use 'max_output_tokens'",
        "max_completion_tokens": "use 'max_output_tokens'",
        "response_format": "use 'text.format'",
        "reasoning_effort": "use 'reasoning.effort'",
        "logprobs": "put 'message.output_text.logprobs' into 'include'",
    }

    input: Input
    instructions: str | None = None
    tools: tuple[FunctionTool, ...] = ()
    tool_choice: ResponsesToolChoice | None = None
    parallel_tool_calls: bool = True
    max_output_tokens: TokenCount | None = None
    text: TextConfig = TextConfig()
    reasoning: ReasoningConfig = ReasoningConfig()
    include: tuple[Included, ...] = ()
    top_logprobs: Annotated[int, Within(0, 20)] | None = None
    truncation: Literal["auto", "disabled"] = "disabled"
    metadata: dict[str, str] = field(factory=dict)
    background: bool = False
    store: bool | None = None
    service_tier: Annotated[str, NonEmpty(64)] | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    enable_thinking: bool | None = None
    chat_template_kwargs: dict[str, Any] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if self.background:
            message = "cannot be true: this server keeps no responses that could be asked for later."
            raise FieldError(message, ("background",), _UNSUPPORTED)
        if self.truncation == "auto":
            message = "cannot be 'auto': this server does not leave out parts of a conversation."
            raise FieldError(message, ("truncation",), _UNSUPPORTED)
        check_template_kwargs(self.chat_template_kwargs)
        self._check_metadata()

    def _check_metadata(self) -> None:
        if len(self.metadata) > MAX_METADATA:
            raise FieldError(f"must have at most {MAX_METADATA} entries.", ("metadata",))
        for name, value in self.metadata.items():
            if len(name) > MAX_METADATA_NAME_CHARS:
                raise FieldError(
                    f"must have a name of at most {MAX_METADATA_NAME_CHARS} characters.", ("metadata", name)
                )
            if len(value) > MAX_METADATA_VALUE_CHARS:
                raise FieldError(f"must have at most {MAX_METADATA_VALUE_CHARS} characters.", ("metadata", name))

    @property
    def wants_logprobs(self) -> bool:
        """Whether the answer's text comes with its log-probabilities."""
        return "message.output_text.logprobs" in self.include or bool(self.top_logprobs)

    def echo(self) -> dict[str, Any]:
        """The fields of a response that repeat the request."""
        return {
            "background": False,
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "max_tool_calls": None,
            "model": self.model,
            "parallel_tool_calls": self.parallel_tool_calls,
            "previous_response_id": None,
            "prompt_cache_key": self.prompt_cache_key,
            "reasoning": {"effort": self.reasoning.effort, "summary": self.reasoning.summary},
            "safety_identifier": self.safety_identifier,
            "service_tier": "default",
            "store": False,
            "text": {"format": self.text.format.to_dict(), "verbosity": self.text.verbosity or "medium"},
            "tool_choice": "auto" if self.tool_choice is None else self.tool_choice.raw,
            "tools": [tool.to_dict() for tool in self.tools],
            "top_logprobs": self.top_logprobs or 0,
            "truncation": self.truncation,
            "user": self.user,
            "metadata": self.metadata,
        }
