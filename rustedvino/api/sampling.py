"""The fields that chat and raw completions share: how to sample, when to stop, how to answer."""

from __future__ import annotations

from typing import Annotated, Any, Final

from attrs import frozen

from rustedvino.api.converter import FieldError, NonEmpty, Within, register, wrong

__all__ = ["MAX_N", "MAX_STOPS", "MAX_STOP_CHARS", "SamplingRequest", "StopStrings", "StreamOptions"]

MAX_N: Final = 128
MAX_STOPS: Final = 4
#: A stop string is held back while it may still match, so its length bounds how late text can be.
MAX_STOP_CHARS: Final = 1024
_MAX_TOKENS: Final = 2**31 - 1

ModelId = Annotated[str, NonEmpty(512)]
TokenCount = Annotated[int, Within(1, _MAX_TOKENS)]
Penalty = Annotated[float, Within(-2, 2)]


@frozen
class StopStrings:
    """`stop` on the wire: one string or up to four, none of them empty."""

    values: tuple[str, ...] = ()


def _structure_stop(value: Any) -> StopStrings:
    if type(value) is str:
        return StopStrings((_stop_string(value),))
    if type(value) is not list or len(value) > MAX_STOPS:
        raise wrong(f"a string or an array of at most {MAX_STOPS} strings", value)
    stops = []
    for i, item in enumerate(value):
        try:
            stops.append(_stop_string(item))
        except FieldError as e:
            raise e.under(i) from None
    return StopStrings(tuple(dict.fromkeys(stops)))


def _stop_string(value: Any) -> str:
    if type(value) is not str or not 0 < len(value) <= MAX_STOP_CHARS:
        raise wrong(f"a string of 1 to {MAX_STOP_CHARS} characters", value)
    return value


register(StopStrings, _structure_stop)


@frozen(kw_only=True)
class StreamOptions:
    include_usage: bool = False
    include_obfuscation: bool = False


@frozen(kw_only=True)
class SamplingRequest:
    """None means that the client left the field out and the model's own default applies."""

    model: ModelId
    n: Annotated[int, Within(1, MAX_N)] = 1
    stop: StopStrings = StopStrings()
    seed: Annotated[int, Within(-(2**63), 2**64 - 1)] | None = None
    max_tokens: TokenCount | None = None
    temperature: Annotated[float, Within(0, 2)] | None = None
    top_p: Annotated[float, Within(0, 1, above=True)] | None = None
    #: -1 and 0 both switch the limit off.
    top_k: Annotated[int, Within(-1, _MAX_TOKENS)] | None = None
    min_p: Annotated[float, Within(0, 1)] | None = None
    repetition_penalty: Annotated[float, Within(0, 10, above=True)] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    #: Checked, then refused unless empty: the runtime has no such hook, and the answer would be another.
    logit_bias: dict[str, Annotated[float, Within(-100, 100)]] | None = None
    ignore_eos: bool = False
    stream: bool = False
    stream_options: StreamOptions | None = None

    def __attrs_post_init__(self) -> None:
        if self.stream_options is not None and not self.stream:
            raise FieldError("is only allowed when 'stream' is true.", ("stream_options",))
        if self.logit_bias:
            message = "cannot be used: the runtime does not support it."
            raise FieldError(message, ("logit_bias",), "unsupported_parameter")

    @property
    def stop_strings(self) -> tuple[str, ...]:
        return self.stop.values

    @property
    def include_usage(self) -> bool:
        """Whether every chunk of the stream carries `usage` and one chunk at the end tells it."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def max_new_tokens(self) -> int | None:
        """The requested bound on generated tokens; None when the client set none."""
        return self.max_tokens
