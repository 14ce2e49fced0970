"""The messages of a chat: what the wire allows, and what a chat template gets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal

from attrs import frozen

from rustedvino.api.converter import FieldError, NonEmpty, register, structure_as, wrong

__all__ = [
    "ROLES",
    "AudioPart",
    "ChatMessage",
    "Content",
    "ContentPart",
    "FilePart",
    "FunctionCall",
    "ImagePart",
    "RefusalPart",
    "TextPart",
    "ToolCall",
    "template_messages",
]

ROLES: Final = ("developer", "system", "user", "assistant", "tool", "function")
Role = Literal["developer", "system", "user", "assistant", "tool", "function"]
#: Of a function.
Name = Annotated[str, NonEmpty(256)]


# -- content parts --------------------------------------------------------------------------------------


@frozen(kw_only=True)
class TextPart:
    type: Literal["text"]
    text: str


@frozen(kw_only=True)
class RefusalPart:
    type: Literal["refusal"]
    refusal: str


@frozen(kw_only=True)
class ImageUrl:
    url: Annotated[str, NonEmpty()]
    detail: Literal["auto", "low", "high", "original"] = "auto"


@frozen(kw_only=True)
class ImagePart:
    type: Literal["image_url"]
    image_url: ImageUrl


@frozen(kw_only=True)
class InputAudio:
    data: Annotated[str, NonEmpty()]
    format: Annotated[str, NonEmpty(16)]


@frozen(kw_only=True)
class AudioPart:
    type: Literal["input_audio"]
    input_audio: InputAudio


@frozen(kw_only=True)
class FileData:
    file_data: str | None = None
    file_id: str | None = None
    filename: str | None = None


@frozen(kw_only=True)
class FilePart:
    type: Literal["file"]
    file: FileData


ContentPart = TextPart | RefusalPart | ImagePart | AudioPart | FilePart
_PARTS: Final[dict[str, type[Any]]] = {
    "text": TextPart,
    "image_url": ImagePart,
    "input_audio": AudioPart,
    "file": FilePart,
    "refusal": RefusalPart,
}


@frozen
class Content:
    """Content on the wire is a string or an array of parts; here a string or a tuple of parts."""

    value: str | tuple[ContentPart, ...]


def _structure_content(value: Any) -> Content:
    if type(value) is str:
        return Content(value)
    if type(value) is not list:
        raise wrong("a string or an array of content parts", value)
    if not value:
        raise FieldError("must have at least one content part, but it is empty.")
    parts: list[ContentPart] = []
    for i, item in enumerate(value):
        try:
            parts.append(_structure_part(item))
        except FieldError as e:
            raise e.under(i) from None
    return Content(tuple(parts))


def _structure_part(value: Any) -> ContentPart:
    if type(value) is not dict:
        raise wrong("an object with a 'type'", value)
    kind = value.get("type")
    part = _PARTS.get(kind) if type(kind) is str else None
    if part is None:
        if kind is None:
            raise FieldError("is missing: you must provide a 'type'.", ("type",), "missing_required_parameter")
        raise wrong("one of " + ", ".join(f"'{name}'" for name in _PARTS), kind).under("type")
    result: ContentPart = structure_as(part, value)
    return result


register(Content, _structure_content)


# -- messages -------------------------------------------------------------------------------------------


@frozen(kw_only=True)
class FunctionCall:
    """`arguments` is kept as given: JSON text as a rule, an object from some clients, None for null."""

    name: Name
    arguments: str | dict[str, Any] | None = None


@frozen(kw_only=True)
class ToolCall:
    function: FunctionCall
    id: str | None = None
    type: Literal["function"] = "function"

    def to_template(self) -> dict[str, Any]:
        call: dict[str, Any] = {} if self.id is None else {"id": self.id}
        call["type"] = "function"
        call["function"] = {"name": self.function.name, "arguments": self.function.arguments}
        return call


@frozen(kw_only=True)
class ChatMessage:
    """One turn. `content` None stands for null or absent, which only an assistant or a tool may send."""

    REFUSED: ClassVar[Mapping[str, str]] = {
        "function_call": "use 'tool_calls'",
        "audio": "audio output is not supported",
    }

    role: Role
    content: Content | None = None
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None

    def __attrs_post_init__(self) -> None:
        if self.content is None and self.role in ("system", "developer", "user"):
            message = "is missing: you must provide the message's 'content'."
            raise FieldError(message, ("content",), "missing_required_parameter")
        if self.tool_calls and self.role != "assistant":
            raise FieldError("is only allowed in a message of role 'assistant'.", ("tool_calls",))
        if self.role in ("system", "developer", "assistant"):
            for i, part in enumerate(self.parts):
                if not isinstance(part, TextPart | RefusalPart):
                    message = f"must be 'text' in a message of role '{self.role}', but it is '{part.type}'."
                    raise FieldError(message, ("content", i, "type"))

    @property
    def parts(self) -> tuple[ContentPart, ...]:
        """The content parts; empty when the content is a plain string or null."""
        value = self.content.value if self.content is not None else ""
        return () if isinstance(value, str) else value

    @property
    def text(self) -> str:
        """All text of the message; several parts are separate lines."""
        if self.content is None:
            return self.refusal or ""
        if isinstance(self.content.value, str):
            return self.content.value
        texts = (_text_of(part) for part in self.content.value)
        return "\n".join(text for text in texts if text is not None)

    def to_template(self) -> dict[str, Any]:
        """The message as chat templates know it.

        `content` is a string, or, when there are images, a list of `{"type": "text", "text": …}` and
        `{"type": "image"}` in their order. Null content is "" because templates join it with strings.
        """
        role = {"developer": "system", "function": "tool"}.get(self.role, self.role)
        message: dict[str, Any] = {"role": role, "content": self._template_content()}
        if self.name is not None:
            message["name"] = self.name
        if self.tool_calls:
            message["tool_calls"] = [call.to_template() for call in self.tool_calls]
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        if self.reasoning_content is not None:
            message["reasoning_content"] = self.reasoning_content
        return message

    def _template_content(self) -> str | list[dict[str, str]]:
        if not any(isinstance(part, ImagePart) for part in self.parts):
            return self.text
        items: list[dict[str, str]] = []
        for part in self.parts:
            text = _text_of(part)
            if text is not None:
                items.append({"type": "text", "text": text})
            elif isinstance(part, ImagePart):
                items.append({"type": "image"})
        return items


def _text_of(part: ContentPart) -> str | None:
    if isinstance(part, TextPart):
        return part.text
    return part.refusal if isinstance(part, RefusalPart) else None


def template_messages(messages: tuple[ChatMessage, ...]) -> list[dict[str, Any]]:
    """The plain list a chat template gets."""
    return [message.to_template() for message in messages]
