"""Messages of a chat: roles, content, and what templates get."""

import pytest

from rustedvino.api.converter import structure
from rustedvino.api.errors import ApiError
from rustedvino.api.messages import ROLES, ChatMessage, ImagePart, template_messages

TEXT = {"type": "text", "text": "look"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
AUDIO = {"type": "input_audio", "input_audio": {"data": "AA==", "format": "wav"}}
FILE = {"type": "file", "file": {"file_id": "f"}}


def message(role="user", content="hi", **fields):
    return structure({"role": role, "content": content, **fields}, ChatMessage)


def refused(**fields):
    with pytest.raises(ApiError) as caught:
        message(**fields)
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize("role", ROLES)
def test_every_role_is_known_and_becomes_one_that_templates_know(role):
    rendered = message(role).to_template()
    expected = {"developer": "system", "function": "tool"}.get(role, role)
    assert rendered == {"role": expected, "content": "hi"}


@pytest.mark.parametrize("role", ["bot", "User", "", 5, ["user"]])
def test_an_unknown_role_is_refused_with_the_list(role):
    error = refused(role=role)
    assert error.param == "role"
    for known in ROLES:
        assert f"'{known}'" in error.message


def test_a_role_is_required():
    with pytest.raises(ApiError) as caught:
        structure({"content": "hi"}, ChatMessage)
    assert caught.value.param == "role"


@pytest.mark.parametrize("role", ["system", "developer", "user"])
@pytest.mark.parametrize("fields", [{}, {"content": None}])
def test_content_is_required_of_whoever_only_speaks(role, fields):
    with pytest.raises(ApiError) as caught:
        structure({"role": role, **fields}, ChatMessage)
    assert caught.value.param == "content"


@pytest.mark.parametrize("role", ["assistant", "tool", "function"])
def test_null_content_of_others_is_an_empty_string_for_templates(role):
    assert message(role, None).to_template()["content"] == ""


@pytest.mark.parametrize(
    ("content", "param"),
    [
        (5, "content"),
        ({}, "content"),
        ([], "content"),
        ([5], "content[0]"),
        (["text"], "content[0]"),
        ([None], "content[0]"),
        ([TEXT, {}], "content[1].type"),
        ([TEXT, {"type": None}], "content[1].type"),
        ([{"type": "video"}], "content[0].type"),
        ([{"type": ["text"]}], "content[0].type"),
        ([{"type": "text"}], "content[0].text"),
        ([{"type": "text", "text": 5}], "content[0].text"),
        ([{"type": "image_url"}], "content[0].image_url"),
        ([{"type": "image_url", "image_url": "http://x"}], "content[0].image_url"),
        ([{"type": "image_url", "image_url": {"url": ""}}], "content[0].image_url.url"),
        ([{"type": "image_url", "image_url": {"url": "x", "detail": "?"}}], "content[0].image_url.detail"),
        ([{"type": "input_audio", "input_audio": {"data": "x"}}], "content[0].input_audio.format"),
    ],
)
def test_wrong_content_is_named(content, param):
    assert refused(content=content).param == param


def test_text_parts_become_one_string_for_templates():
    parts = [TEXT, {"type": "text", "text": ""}, {"type": "text", "text": "again"}]
    assert message(content=parts).to_template()["content"] == "look\n\nagain"
    refusal = [{"type": "refusal", "refusal": "no"}]
    assert message("assistant", refusal).to_template()["content"] == "no"


def test_images_keep_their_place_among_the_text():
    result = message(content=[IMAGE, TEXT, IMAGE])
    image = {"type": "image"}
    assert result.to_template()["content"] == [image, TEXT, image]
    assert result.text == "look"
    assert isinstance(result.parts[0], ImagePart)
    assert result.parts[0].image_url.url == IMAGE["image_url"]["url"]


@pytest.mark.parametrize("part", [IMAGE, AUDIO, FILE])
@pytest.mark.parametrize("role", ["system", "developer", "assistant"])
def test_only_users_and_tools_show_media(role, part):
    assert refused(role=role, content=[TEXT, part]).param == "content[1].type"
    message("user", [TEXT, part])
    message("tool", [TEXT, part])


@pytest.mark.parametrize("arguments", ['{"a":1}', "not json", "", None, {"a": 1}, {}])
def test_arguments_of_a_past_call_are_kept_as_given(arguments):
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    rendered = message("assistant", None, tool_calls=[call]).to_template()
    assert rendered == {"role": "assistant", "content": "", "tool_calls": [call]}


def test_a_tool_round_reaches_the_template_whole():
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turns = [
        message("user", "q"),
        message("assistant", None, tool_calls=[call], reasoning_content="hm"),
        message("tool", "42", tool_call_id="c1", name="f"),
    ]
    assert template_messages(tuple(turns)) == [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "", "tool_calls": [call], "reasoning_content": "hm"},
        {"role": "tool", "content": "42", "name": "f", "tool_call_id": "c1"},
    ]


@pytest.mark.parametrize(
    ("calls", "param"),
    [
        ("x", "tool_calls"),
        ([5], "tool_calls[0]"),
        ([{}], "tool_calls[0].function"),
        ([{"function": {"name": ""}}], "tool_calls[0].function.name"),
        ([{"function": {"name": "f", "arguments": 5}}], "tool_calls[0].function.arguments"),
        ([{"function": {"name": "f", "arguments": []}}], "tool_calls[0].function.arguments"),
        ([{"type": "custom", "function": {"name": "f"}}], "tool_calls[0].type"),
    ],
)
def test_wrong_calls_are_named(calls, param):
    assert refused(role="assistant", tool_calls=calls).param == param


def test_only_an_assistant_calls():
    assert refused(role="user", tool_calls=[{"function": {"name": "f"}}]).param == "tool_calls"
    assert refused(role="assistant", function_call={"name": "f"}).param == "function_call"
