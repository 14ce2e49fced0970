"""`input` of a Responses request: items, and the content parts of their texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal

from attrs import frozen

from rustedvino.api.converter import FieldError, NonEmpty, register, structure_as, wrong
from rustedvino.api.messages import Name

__all__ = [
    "FunctionCallItem",
    "FunctionCallOutputItem",
    "Input",
    "InputFile",
    "InputImage",
    "InputText",
    "Item",
    "MessageItem",
    "OutputText",
    "Part",
    "Parts",
    "ReasoningItem",
    "Refusal",
    "kind_of",
    "missing",
]


def missing(name: str) -> FieldError:
    """The error of a field that must be there."""
    return FieldError(f"is missing: you must provide a {name} parameter.", (name,), "missing_required_parameter")


def kind_of(value: Any, noun: str) -> Any:
    """The `type` of an object, None when it has none."""
    if type(value) is not dict:
        raise wrong(f"an object ({noun})", value)
    return value.get("type")


# -- content parts --------------------------------------------------------------------------------------


@frozen(kw_only=True)
class InputText:
    type: Literal["input_text"]
    text: str


@frozen(kw_only=True)
class OutputText:
    type: Literal["output_text"]
    text: str


@frozen(kw_only=True)
class Refusal:
    type: Literal["refusal"]
    refusal: str


@frozen(kw_only=True)
class InputImage:
    REFUSED: ClassVar[Mapping[str, str]] = {"file_id": "this server stores no files; send 'image_url'"}

    type: Literal["input_image"]
    image_url: Annotated[str, NonEmpty()]
    detail: Literal["auto", "low", "high", "original"] = "auto"


@frozen(kw_only=True)
class InputFile:
    type: Literal["input_file"]
    file_data: str | None = None
    file_id: str | None = None
    file_url: str | None = None
    filename: str | None = None


Part = InputText | OutputText | Refusal | InputImage | InputFile
_PARTS: Final[dict[str, type[Any]]] = {
    "input_text": InputText,
    "input_image": InputImage,
    "input_file": InputFile,
    "output_text": OutputText,
    "refusal": Refusal,
}
_TEXT_PARTS: Final = ("input_text", "output_text", "refusal")
_OUTPUT_PARTS: Final = ("input_text", "input_image", "input_file")


@frozen
class Parts:
    """Content on the wire is a string or an array of parts; here a string or a tuple of parts."""

    value: str | tuple[Part, ...]

    def check(self, allowed: tuple[str, ...], where: str) -> None:
        """Raises FieldError with the path of the first part that may not stand here."""
        if isinstance(self.value, str):
            return
        for i, part in enumerate(self.value):
            if part.type not in allowed:
                names = ", ".join(f"'{name}'" for name in allowed)
                raise FieldError(f"must be one of {names} in {where}, but it is '{part.type}'.", (i, "type"))


def _structure_parts(value: Any) -> Parts:
    if type(value) is str:
        return Parts(value)
    if type(value) is not list:
        raise wrong("a string or an array of content parts", value)
    parts: list[Part] = []
    for i, item in enumerate(value):
        try:
            parts.append(_structure_part(item))
        except FieldError as e:
            raise e.under(i) from None
    return Parts(tuple(parts))


def _structure_part(value: Any) -> Part:
    kind = kind_of(value, "a content part")
    part = _PARTS.get(kind) if type(kind) is str else None
    if part is None:
        if kind is None:
            raise missing("type")
        raise wrong("one of " + ", ".join(f"'{name}'" for name in _PARTS), kind).under("type")
    result: Part = structure_as(part, value)
    return result


register(Parts, _structure_parts)


# -- input items ----------------------------------------------------------------------------------------


@frozen(kw_only=True)
class MessageItem:
    """A turn; with role "assistant" an earlier answer, also one as this server wrote it."""

    role: Literal["user", "assistant", "system", "developer"]
    content: Parts

    def __attrs_post_init__(self) -> None:
        allowed = _TEXT_PARTS if self.role == "assistant" else _TEXT_PARTS[:2]
        if self.role == "user":
            allowed = (*allowed, "input_image", "input_file")
        try:
            self.content.check(allowed, f"a message of role '{self.role}'")
        except FieldError as e:
            raise e.under("content") from None
        if self.content.value == () and self.role != "assistant":
            raise FieldError("must have at least one content part, but it is empty.", ("content",))


@frozen(kw_only=True)
class FunctionCallItem:
    """A call that the model made; `arguments` is JSON text as a rule."""

    call_id: Annotated[str, NonEmpty(512)]
    name: Name
    arguments: str | dict[str, Any]


@frozen(kw_only=True)
class FunctionCallOutputItem:
    """What a called function returned."""

    call_id: Annotated[str, NonEmpty(512)]
    output: Parts

    def __attrs_post_init__(self) -> None:
        try:
            self.output.check(_OUTPUT_PARTS, "the output of a function")
        except FieldError as e:
            raise e.under("output") from None


@frozen(kw_only=True)
class _ReasoningText:
    type: Literal["reasoning_text", "summary_text"]
    text: str


@frozen(kw_only=True)
class ReasoningItem:
    """Thinking of an earlier answer. What only its author can decrypt is passed over."""

    summary: tuple[_ReasoningText, ...] = ()
    content: tuple[_ReasoningText, ...] = ()

    @property
    def text(self) -> str:
        """The thinking itself, else its summary."""
        if self.content:
            return "".join(part.text for part in self.content)
        return "\n\n".join(part.text for part in self.summary)


Item = MessageItem | FunctionCallItem | FunctionCallOutputItem | ReasoningItem
_ITEMS: Final[dict[str, type[Any]]] = {
    "message": MessageItem,
    "function_call": FunctionCallItem,
    "function_call_output": FunctionCallOutputItem,
    "reasoning": ReasoningItem,
}


@frozen
class Input:
    """`input` on the wire: the text of one user message, or items."""

    value: str | tuple[Item, ...]


def _structure_input(value: Any) -> Input:
    if type(value) is str:
        return Input(value)
    if type(value) is not list:
        raise wrong("a string or an array of items", value)
    if not value:
        raise FieldError("must have at least one item, but it is empty.")
    items: list[Item] = []
    for i, item in enumerate(value):
        try:
            items.append(_structure_item(item))
        except FieldError as e:
            raise e.under(i) from None
    return Input(tuple(items))


def _structure_item(value: Any) -> Item:
    kind = kind_of(value, "an input item")
    if kind == "item_reference" or (kind is None and "id" in value and "role" not in value):
        message = "cannot be an item reference: this server keeps no responses; send the item itself."
        raise FieldError(message, code="unsupported_parameter")
    # Without a type an item is a message.
    item = _ITEMS.get("message" if kind is None else kind) if kind is None or type(kind) is str else None
    if item is None:
        raise wrong("one of " + ", ".join(f"'{name}'" for name in _ITEMS), kind).under("type")
    result: Item = structure_as(item, value)
    return result


register(Input, _structure_input)
