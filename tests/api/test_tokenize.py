"""The requests of /tokenize and /detokenize."""

import pytest

from rustedvino.api.converter import structure
from rustedvino.api.errors import ApiError
from rustedvino.api.tokenize import DetokenizeRequest, TokenizeRequest

HELLO = {"role": "user", "content": "hi"}


def refused(data, cls=TokenizeRequest):
    with pytest.raises(ApiError) as caught:
        structure(data, cls)
    assert caught.value.status == 400
    return caught.value


def test_raw_text():
    request = structure({"model": "m", "prompt": ""}, TokenizeRequest)
    assert (request.model, request.prompt, request.messages) == ("m", "", None)
    assert request.with_special_tokens
    assert request.parse_special
    assert not structure({"prompt": "x", "add_special_tokens": False}, TokenizeRequest).with_special_tokens


def test_a_chat():
    request = structure({"messages": [HELLO], "add_generation_prompt": False}, TokenizeRequest)
    assert request.to_template_messages() == [HELLO]
    assert not request.with_special_tokens
    assert not request.add_generation_prompt
    assert structure({"messages": [HELLO], "add_special_tokens": True}, TokenizeRequest).with_special_tokens


@pytest.mark.parametrize(
    ("data", "param"),
    [
        ({}, "prompt"),
        ({"prompt": None, "messages": None}, "prompt"),
        ({"prompt": "x", "messages": [HELLO]}, "messages"),
        ({"prompt": ["x"]}, "prompt"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "x", "content": ""}]}, "messages[0].role"),
        ({"messages": [HELLO], "continue_final_message": True}, "continue_final_message"),
        ({"messages": [HELLO], "chat_template": "{{ x }}"}, "chat_template"),
        ({"messages": [HELLO], "chat_template_kwargs": {"tools": []}}, "chat_template_kwargs.tools"),
        ({"prompt": "x", "return_token_strs": "yes"}, "return_token_strs"),
    ],
)
def test_wrong_requests_are_named(data, param):
    assert refused(data).param == param


def test_detokenize():
    assert structure({"tokens": [1, 2.0]}, DetokenizeRequest).token_ids == (1, 2)
    assert structure({"tokens": [], "model": "m"}, DetokenizeRequest).token_ids == ()
    for tokens, param in [(None, "tokens"), ("x", "tokens"), ([1, -1], "tokens[1]"), ([[1]], "tokens[0]")]:
        assert refused({"tokens": tokens}, DetokenizeRequest).param == param
