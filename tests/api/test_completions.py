"""The completions request: the four forms of a prompt, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rustedvino.api.completions import MAX_TOKEN_ID, CompletionRequest, token_ids
from rustedvino.api.converter import FieldError, structure
from rustedvino.api.errors import ApiError

TEXTS = st.text(min_size=1, max_size=10)
IDS = st.lists(st.integers(0, MAX_TOKEN_ID), min_size=1, max_size=10)


def request(**fields):
    return structure({"model": "m", "prompt": "p", **fields}, CompletionRequest)


def refused(**fields):
    with pytest.raises(ApiError) as caught:
        request(**fields)
    assert caught.value.status == 400
    return caught.value


@given(TEXTS | IDS | st.lists(TEXTS, min_size=1, max_size=4) | st.lists(IDS, min_size=1, max_size=4))
def test_each_form_of_prompt_is_told_apart(prompt):
    several = isinstance(prompt, list) and isinstance(prompt[0], str | list)
    expected = prompt if several else [prompt]
    result = request(prompt=prompt)
    assert result.prompts == tuple(tuple(p) if isinstance(p, list) else p for p in expected)
    last = len(expected) - 1
    assert result.prompt.path(last) == (f"prompt[{last}]" if several else "prompt")


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        ("", "prompt"),
        ([], "prompt"),
        (None, "prompt"),
        (5, "prompt"),
        (True, "prompt"),
        ({}, "prompt"),
        ([""], "prompt[0]"),
        (["a", ""], "prompt[1]"),
        ([[]], "prompt[0]"),
        ([[1], []], "prompt[1]"),
        ([True], "prompt[0]"),
        ([None], "prompt[0]"),
        ([{}], "prompt[0]"),
        ([1, True], "prompt[1]"),
        ([1, "a"], "prompt[1]"),
        ([1, [2]], "prompt[1]"),
        ([-1], "prompt[0]"),
        ([1.5], "prompt[0]"),
        ([1, 2**31], "prompt[1]"),
        (["a", 1], "prompt[1]"),
        (["a", [1]], "prompt[1]"),
        ([[1], "a"], "prompt[1]"),
        ([[1], 2], "prompt[1]"),
        ([[1, "a"]], "prompt[0][1]"),
        ([[1], [2, False]], "prompt[1][1]"),
        ([[[1]]], "prompt[0][0]"),
    ],
)
def test_anything_else_is_named(prompt, param):
    error = refused(prompt=prompt)
    assert error.param == param
    assert "prompt" in error.message


def test_whole_numbers_are_token_ids_however_they_are_written():
    assert request(prompt=[1.0, 2]).prompts == ((1, 2),)
    assert all(type(i) is int for i in request(prompt=[1.0, 2]).prompts[0])


@given(st.lists(st.one_of(st.integers(-2, 2), st.booleans(), st.none(), st.floats(), st.just("x")), max_size=6))
def test_token_ids_name_the_first_that_is_none(values):
    bad = [
        i
        for i, v in enumerate(values)
        if isinstance(v, bool) or not isinstance(v, int | float) or v != v or v < 0 or v % 1 or v > MAX_TOKEN_ID
    ]
    if not bad:
        assert token_ids(values) == tuple(values)
        return
    with pytest.raises(FieldError) as caught:
        token_ids(values)
    assert caught.value.path == (bad[0],)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"suffix": "x"}, "suffix"),
        ({"suffix": ""}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"n": 3, "best_of": 2}, "best_of"),
        ({"best_of": 0}, "best_of"),
        ({"logprobs": 6}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"echo": "yes"}, "echo"),
        ({"parse_special": 1}, "parse_special"),
        ({"stream_options": {}}, "stream_options"),
    ],
)
def test_wrong_options_are_named(fields, param):
    assert refused(**fields).param == param


def test_options_and_defaults():
    plain = request(suffix=None, best_of=None, logprobs=None, echo=None)
    assert (plain.echo, plain.best_of, plain.logprobs, plain.parse_special) == (False, None, None, True)
    full = request(n=2, best_of=2, logprobs=0, echo=True, parse_special=False, max_tokens=4)
    assert (full.n, full.logprobs, full.echo, full.parse_special, full.max_new_tokens) == (2, 0, True, False, 4)
