"""Effective sampling values: the request's, else the model file's, else neutral ones."""

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rustedvino.api.completions import CompletionRequest, Prompts
from rustedvino.config.types import ModelSettings, SpeculativeSettings
from rustedvino.http.sampling import effective_sampling


def request(**fields: Any) -> CompletionRequest:
    return CompletionRequest(model="m", prompt=Prompts(("x",)), **fields)


def test_nothing_said_is_neutral() -> None:
    sampling = effective_sampling(request(seed=1), {}, ModelSettings())
    assert sampling.report() == {
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "seed": 1,
    }


def test_the_file_fills_each_field_that_the_request_leaves_out() -> None:
    file = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0.1, "repetition_penalty": 1.05}
    sampling = effective_sampling(request(temperature=0.2), file, ModelSettings())
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.2, 0.95, 20, 0.1)
    assert sampling.repetition_penalty == 1.05
    said = request(temperature=1.5, top_p=0.5, top_k=3, min_p=0.2, repetition_penalty=1.2)
    sampling = effective_sampling(said, file, ModelSettings())
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (1.5, 0.5, 3, 0.2)
    assert sampling.repetition_penalty == 1.2


@pytest.mark.parametrize(
    "value",
    [None, "0.5", True, [], float("nan"), float("inf"), -1, 10**400, {"a": 1}],
    ids=lambda value: str(value)[:8],
)
@pytest.mark.parametrize("name", ["temperature", "top_p", "top_k", "min_p", "repetition_penalty"])
def test_a_file_with_nonsense_is_as_one_without(name: str, value: Any) -> None:
    plain = effective_sampling(request(seed=1), {}, ModelSettings())
    assert effective_sampling(request(seed=1), {name: value}, ModelSettings()) == plain


def test_a_model_with_a_draft_is_greedy_unless_a_request_says_otherwise() -> None:
    """What says otherwise is refused by the loaded model, or made greedy where the settings say so."""
    file = {"temperature": 0.6, "top_p": 0.9}
    refusing = ModelSettings(speculative=SpeculativeSettings(draft_model="d"))
    assert effective_sampling(request(), file, refusing).report() == {"temperature": 0.0, "repetition_penalty": 1.0}
    assert effective_sampling(request(temperature=0.7), file, refusing).temperature == 0.7
    greedy = ModelSettings(speculative=SpeculativeSettings(draft_model="d", sampled_requests="greedy"))
    assert effective_sampling(request(temperature=0.7), file, greedy).temperature == 0


def test_do_sample_false_is_a_default_only() -> None:
    file = {"do_sample": False, "temperature": 0.6}
    assert effective_sampling(request(), file, ModelSettings()).temperature == 0
    assert effective_sampling(request(temperature=0.7), file, ModelSettings()).temperature == 0.7
    assert effective_sampling(request(temperature=0), {"do_sample": True}, ModelSettings()).temperature == 0


def test_greedy_reports_what_matters_only() -> None:
    assert effective_sampling(request(temperature=0), {}, ModelSettings()).report() == {
        "temperature": 0.0,
        "repetition_penalty": 1.0,
    }


def test_the_repetition_penalty_of_the_settings_keeps_away_from_json() -> None:
    settings = ModelSettings(repetition_penalty=1.1)
    assert effective_sampling(request(), {}, settings).repetition_penalty == 1.1
    assert effective_sampling(request(), {}, settings, plain=False).repetition_penalty == 1.0
    assert effective_sampling(request(repetition_penalty=1.3), {}, settings, plain=False).repetition_penalty == 1.3


def test_seeds() -> None:
    assert len({effective_sampling(request(), {}, ModelSettings()).seed for _ in range(8)}) == 8
    sampling = effective_sampling(request(seed=2**64 - 1), {}, ModelSettings())
    assert [sampling.options(index)["seed"] for index in range(3)] == [2**64 - 1, 0, 1]
    assert effective_sampling(request(seed=-1), {}, ModelSettings()).seed == 2**64 - 1


def test_top_k_off() -> None:
    for top_k in (-1, 0):
        assert effective_sampling(request(top_k=top_k), {"top_k": 20}, ModelSettings()).top_k == 0


@given(
    temperature=st.floats(0, 2),
    top_p=st.floats(0, 1, exclude_min=True),
    min_p=st.floats(0, 1),
    penalty=st.floats(0, 10, exclude_min=True),
)
def test_every_value_a_request_may_have_is_one_the_runtime_takes(
    temperature: float, top_p: float, min_p: float, penalty: float
) -> None:
    """The runtime computes in float32 and refuses what is, or rounds to, a border it excludes."""
    said = request(temperature=temperature, top_p=top_p, min_p=min_p, repetition_penalty=penalty)
    options = effective_sampling(said, {}, ModelSettings()).options(0)
    single = {name: float32(options[name]) for name in ("temperature", "top_p", "min_p", "repetition_penalty")}
    assert options["temperature"] == 0 or 1e-6 < single["temperature"] <= 2
    assert 0 < single["top_p"] <= 1
    assert 0 <= single["min_p"] < 1
    assert 0 < single["repetition_penalty"] <= 10


def float32(value: float) -> float:
    return float(struct.unpack("f", struct.pack("f", value))[0])
