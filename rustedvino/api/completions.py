"""`POST /v1/completions`: the request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final

from attrs import frozen

from rustedvino.api.converter import FieldError, Within, register, wrong
from rustedvino.api.sampling import SamplingRequest

__all__ = ["MAX_TOKEN_ID", "CompletionRequest", "Prompts", "token_ids"]

MAX_TOKEN_ID: Final = 2**31 - 1
#: One prompt: text, or token ids.
Prompt = str | tuple[int, ...]


@frozen
class Prompts:
    """`prompt` on the wire is a string, token ids, or an array of either; here always a tuple of prompts.

    The first element decides what an array is: an integer makes it the token ids of one prompt, a string or
    an array makes it several prompts of that kind.
    """

    values: tuple[Prompt, ...]
    #: Whether the client wrote an array of prompts, so that an error can name one of them.
    is_array: bool = False

    def path(self, index: int) -> str:
        """The path of one prompt: `prompt` or `prompt[2]`."""
        return f"prompt[{index}]" if self.is_array else "prompt"


def token_ids(value: Any) -> tuple[int, ...]:
    """A JSON array as token ids; raises FieldError under the index of the first that is none."""
    if type(value) is not list:
        raise wrong("an array of token ids", value)
    # One pass in C for the usual case: a long prompt has hundreds of thousands of ids.
    if set(map(type, value)) <= {int} and (not value or (min(value) >= 0 and max(value) <= MAX_TOKEN_ID)):
        return tuple(value)
    ids = []
    for i, item in enumerate(value):
        whole = type(item) is int or (type(item) is float and item.is_integer())
        if not whole or not 0 <= item <= MAX_TOKEN_ID:
            raise wrong(f"a token id between 0 and {MAX_TOKEN_ID}", item).under(i)
        ids.append(int(item))
    return tuple(ids)


def _structure_prompts(value: Any) -> Prompts:
    if type(value) is str or (type(value) is list and value and type(value[0]) in (int, float)):
        return Prompts((_structure_prompt(value),))
    if type(value) is not list:
        raise wrong("a string, an array of strings, an array of token ids or an array of those", value)
    if not value:
        raise _empty()
    kind = type(value[0])
    if kind not in (str, list):
        raise wrong("a string, a token id or an array of token ids", value[0]).under(0)
    prompts = []
    for i, item in enumerate(value):
        try:
            if type(item) is not kind:
                raise wrong("a string like the first" if kind is str else "an array like the first", item)
            prompts.append(_structure_prompt(item))
        except FieldError as e:
            raise e.under(i) from None
    return Prompts(tuple(prompts), is_array=True)


def _structure_prompt(value: Any) -> Prompt:
    if not value:
        raise _empty()
    return value if type(value) is str else token_ids(value)


def _empty() -> FieldError:
    return FieldError("must not be empty: there is nothing to continue.")


register(Prompts, _structure_prompts)


@frozen(kw_only=True)
class CompletionRequest(SamplingRequest):
    REFUSED: ClassVar[Mapping[str, str]] = {"suffix": "inserting before a suffix is not supported"}

    prompt: Prompts
    echo: bool = False
    best_of: Annotated[int, Within(1, 128)] | None = None
    logprobs: Annotated[int, Within(0, 5)] | None = None
    #: Whether control strings such as `<|im_end|>` in a text prompt become control tokens.
    parse_special: bool = True

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if self.best_of is not None and self.best_of != self.n:
            raise FieldError(
                f"must equal 'n' ({self.n}): choosing among more candidates is not supported.", ("best_of",)
            )

    @property
    def prompts(self) -> tuple[Prompt, ...]:
        return self.prompt.values
