"""`POST /tokenize` and `POST /detokenize`: the requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from attrs import field, frozen

from rustedvino.api.chat import Tool, check_template_kwargs
from rustedvino.api.completions import token_ids
from rustedvino.api.converter import FieldError, NonEmpty, register
from rustedvino.api.messages import ChatMessage, template_messages
from rustedvino.api.sampling import ModelId

__all__ = ["DetokenizeRequest", "TokenIds", "TokenizeRequest"]


@frozen(kw_only=True)
class TokenizeRequest:
    """Either `prompt` (raw text) or `messages` (a chat, rendered by the model's template), never both."""

    REFUSED: ClassVar[Mapping[str, str]] = {"chat_template": "the model's own template is used"}

    model: ModelId | None = None
    prompt: str | None = None
    messages: Annotated[tuple[ChatMessage, ...], NonEmpty()] | None = None
    tools: tuple[Tool, ...] = ()
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool | None = None
    parse_special: bool = True
    return_token_strs: bool = False
    enable_thinking: bool | None = None
    chat_template_kwargs: dict[str, Any] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        if self.prompt is None and self.messages is None:
            message = "is missing: you must provide 'prompt' or 'messages'."
            raise FieldError(message, ("prompt",), "missing_required_parameter")
        if self.prompt is not None and self.messages is not None:
            raise FieldError("cannot be combined with 'prompt'.", ("messages",))
        if self.continue_final_message:
            message = "cannot be used: continuing a message is not supported."
            raise FieldError(message, ("continue_final_message",), "unsupported_parameter")
        check_template_kwargs(self.chat_template_kwargs)

    @property
    def with_special_tokens(self) -> bool:
        """What the client said, else true for raw text and false for a chat, whose template writes them."""
        return self.messages is None if self.add_special_tokens is None else self.add_special_tokens

    def to_template_messages(self) -> list[dict[str, Any]]:
        """The chat as templates know it; empty for raw text."""
        return template_messages(self.messages or ())


@frozen
class TokenIds:
    """An array of token ids on the wire; may be empty."""

    values: tuple[int, ...]


register(TokenIds, lambda value: TokenIds(token_ids(value)))


@frozen(kw_only=True)
class DetokenizeRequest:
    tokens: TokenIds
    model: ModelId | None = None

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.tokens.values
