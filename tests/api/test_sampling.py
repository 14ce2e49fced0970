"""Fields shared by chat and completions: ranges, stop strings, stream options."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rustedvino.api.converter import structure
from rustedvino.api.errors import ApiError
from rustedvino.api.sampling import MAX_STOP_CHARS, SamplingRequest

NOT_NUMBERS = ["5", True, False, [], {}, math.nan, math.inf, -math.inf]
NUMBERS = {
    "n": (1, 128),
    "seed": (-(2**63), 2**64 - 1),
    "max_tokens": (1, 2**31 - 1),
    "temperature": (0, 2),
    "top_p": (0.01, 1),
    "top_k": (-1, 2**31 - 1),
    "min_p": (0, 1),
    "repetition_penalty": (0.01, 10),
    "frequency_penalty": (-2, 2),
    "presence_penalty": (-2, 2),
}


def request(**fields):
    return structure({"model": "m", **fields}, SamplingRequest)


def refused(**fields):
    with pytest.raises(ApiError) as caught:
        request(**fields)
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize("field", NUMBERS)
@given(data=st.data())
def test_numbers_are_taken_in_their_range_and_refused_elsewhere(field, data):
    low, high = NUMBERS[field]
    inside = data.draw(st.integers(math.ceil(low), math.floor(high)), "inside")
    assert getattr(request(**{field: inside}), field) == inside
    outside = data.draw(st.sampled_from([low - 1, high + 1, high * 2 + 1, *NOT_NUMBERS]), "outside")
    error = refused(**{field: outside})
    assert error.param == field
    assert "must be a" in error.message


@pytest.mark.parametrize("field", ["top_p", "repetition_penalty"])
def test_zero_is_below_the_open_ends(field):
    assert refused(**{field: 0}).param == field


@pytest.mark.parametrize("field", ["n", "seed", "max_tokens", "top_k"])
def test_counts_are_whole(field):
    assert refused(**{field: 1.5}).param == field
    assert getattr(request(**{field: 3.0}), field) == 3


@pytest.mark.parametrize("field", ["ignore_eos", "stream"])
def test_switches_are_true_or_false(field):
    assert getattr(request(**{field: True}), field) is True
    for wrong in ("true", 1, 0, [], {}):
        assert refused(**{field: wrong}).param == field


def test_what_is_left_out_is_left_to_the_model():
    plain = request(**dict.fromkeys([*NUMBERS, "stop", "stream", "stream_options", "logit_bias"]))
    assert plain == SamplingRequest(model="m")
    assert plain.n == 1
    for field in NUMBERS.keys() - {"n"}:
        assert getattr(plain, field) is None


@pytest.mark.parametrize(
    ("stop", "values"),
    [
        ("\n", ("\n",)),
        (["a", "b", "c", "d"], ("a", "b", "c", "d")),
        ([], ()),
        (None, ()),
        (["a", "a"], ("a",)),
        ("x" * MAX_STOP_CHARS, ("x" * MAX_STOP_CHARS,)),
    ],
)
def test_stop_is_a_string_or_up_to_four(stop, values):
    assert request(stop=stop).stop_strings == values


@pytest.mark.parametrize(
    ("stop", "param"),
    [
        ("", "stop"),
        ("x" * (MAX_STOP_CHARS + 1), "stop"),
        (5, "stop"),
        ({}, "stop"),
        (["a", "b", "c", "d", "e"], "stop"),
        (["a", ""], "stop[1]"),
        (["a", "b", 3], "stop[2]"),
        ([None], "stop[0]"),
        ([["a"]], "stop[0]"),
    ],
)
def test_other_stops_are_named(stop, param):
    assert refused(stop=stop).param == param


def test_stream_options_need_a_stream():
    assert request(stream=True, stream_options={"include_usage": True}).include_usage
    assert not request(stream=True, stream_options={}).include_usage
    assert not request(stream=True).include_usage
    assert refused(stream_options={"include_usage": True}).param == "stream_options"
    assert refused(stream=False, stream_options={}).param == "stream_options"
    error = refused(stream=True, stream_options={"include_usage": 1})
    assert error.param == "stream_options.include_usage"


def test_logit_bias_is_checked_and_refused_unless_empty():
    assert request(logit_bias={}).logit_bias == {}
    assert refused(logit_bias={"5": 101}).param == "logit_bias.5"
    assert refused(logit_bias=[1]).param == "logit_bias"
    error = refused(logit_bias={"5": 1})
    assert (error.param, error.code) == ("logit_bias", "unsupported_parameter")


@pytest.mark.parametrize("model", ["", "x" * 513, 5, [], {}])
def test_a_model_is_a_name(model):
    assert refused(model=model).param == "model"
