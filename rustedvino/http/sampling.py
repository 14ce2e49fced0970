"""How a request is sampled: what it says, else what the model's file says, else neutral values."""

import secrets
from collections.abc import Mapping
from typing import Any

from attrs import frozen

from rustedvino.api.sampling import SamplingRequest
from rustedvino.config.types import ModelSettings

DEFAULT_TEMPERATURE = 1.0
MIN_TEMPERATURE = 1e-5
"""A temperature below this is 0: the two choose the same token, and the runtime's float32 cannot divide by it."""
SMALLEST = 1e-6
"""Lower bound of top_p and repetition_penalty on their way to the runtime, which refuses what rounds to 0."""
MAX_MIN_P = 1.0 - 2.0**-24
"""The runtime refuses 1, which means "only the most likely token"; this float32 says the same."""


@frozen(kw_only=True)
class Sampling:
    """Effective values. Temperature 0 is greedy, and the fields of sampling then mean nothing."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    seed: int

    def options(self, index: int) -> dict[str, Any]:
        """Submit options of the ``index``-th choice: seeds count up from the request's."""
        return {
            "temperature": self.temperature,
            "top_p": max(self.top_p, SMALLEST),
            "top_k": self.top_k,
            "min_p": min(self.min_p, MAX_MIN_P),
            "repetition_penalty": max(self.repetition_penalty, SMALLEST),
            "frequency_penalty": self.frequency_penalty,
            "presence_penalty": self.presence_penalty,
            "seed": (self.seed + index) % 2**64,
        }

    def report(self) -> dict[str, Any]:
        """The ``sampling`` object of a response."""
        if self.temperature == 0:
            return {"temperature": 0.0, "repetition_penalty": self.repetition_penalty}
        return {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "repetition_penalty": self.repetition_penalty,
            "frequency_penalty": self.frequency_penalty,
            "presence_penalty": self.presence_penalty,
            "seed": self.seed,
        }


def effective_sampling(
    request: SamplingRequest, generation: Mapping[str, Any], settings: ModelSettings, *, plain: bool = True
) -> Sampling:
    """Merge a request with ``generation_config.json`` and the model's settings.

    Each field the request leaves out comes from the file. A file that says ``do_sample: false`` makes greedy the
    default, not the rule: a request's own temperature samples. A model with a draft is greedy by default too.
    ``plain`` False (tools, response_format) keeps the configured repetition penalty away, which would punish the
    repetitions that JSON is made of.
    """
    greedy_by_default = generation.get("do_sample") is False
    temperature = request.temperature
    if temperature is None:
        temperature = 0.0 if greedy_by_default else _number(generation, "temperature", DEFAULT_TEMPERATURE, 0, 2)
    speculative = settings.speculative
    if speculative is not None and (request.temperature is None or speculative.sampled_requests == "greedy"):
        temperature = 0.0  # what is not greedy by now is refused by the loaded model
    repetition = request.repetition_penalty
    if repetition is None and plain:
        repetition = settings.repetition_penalty
    if repetition is None:
        repetition = _number(generation, "repetition_penalty", 1.0, SMALLEST, 10)
    return Sampling(
        temperature=temperature if temperature >= MIN_TEMPERATURE else 0.0,
        top_p=_said(request.top_p, _number(generation, "top_p", 1.0, SMALLEST, 1)),
        top_k=max(0, int(_said(request.top_k, _number(generation, "top_k", 0, 0, 2**31 - 1)))),
        min_p=_said(request.min_p, _number(generation, "min_p", 0.0, 0, 1)),
        repetition_penalty=repetition,
        frequency_penalty=_said(request.frequency_penalty, 0.0),
        presence_penalty=_said(request.presence_penalty, 0.0),
        seed=(request.seed if request.seed is not None else secrets.randbits(53)) % 2**64,
    )


def _said(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value


def _number(source: Mapping[str, Any], name: str, otherwise: float, low: float, high: float) -> float:
    """A number of the model's file, or ``otherwise`` when it is absent or outside what the runtime accepts."""
    value = source.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return otherwise
    return value if low <= value <= high else otherwise
