"""Input items and their content parts."""

from typing import Any

import pytest

from rustedvino.api.converter import structure
from rustedvino.api.errors import ApiError
from rustedvino.api.responses import ResponsesRequest
from rustedvino.api.responses_input import (
    FunctionCallItem,
    FunctionCallOutputItem,
    InputText,
    Item,
    MessageItem,
    OutputText,
    Parts,
    ReasoningItem,
)

USER: dict[str, Any] = {"role": "user", "content": "hi"}
CALL: dict[str, Any] = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
OUTPUT: dict[str, Any] = {"type": "function_call_output", "call_id": "c", "output": "x"}
IMAGE: dict[str, Any] = {"type": "input_image", "image_url": "data:x"}


def message(*parts: Any, role: str = "user") -> dict[str, Any]:
    return {"role": role, "content": list(parts)}


def take(item: Any) -> Item:
    value = structure({"model": "m", "input": [item]}, ResponsesRequest).input.value
    assert not isinstance(value, str)
    return value[0]


def refused(*items: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        structure({"model": "m", "input": list(items)}, ResponsesRequest)
    return caught.value


@pytest.mark.parametrize("role", ["user", "assistant", "system", "developer"])
@pytest.mark.parametrize("more", [{}, {"type": "message"}, {"type": "message", "id": "msg_1", "status": "completed"}])
def test_messages(role: str, more: dict[str, Any]) -> None:
    assert take({"role": role, "content": "hi", **more}) == MessageItem(role=role, content=Parts("hi"))  # type: ignore[arg-type]


def test_an_answer_as_this_server_wrote_it() -> None:
    part = {"type": "output_text", "text": "a", "annotations": [], "logprobs": []}
    item = {"id": "msg_1", "type": "message", "status": "completed", "role": "assistant", "content": [part]}
    assert take(item) == MessageItem(role="assistant", content=Parts((OutputText(type="output_text", text="a"),)))
    assert take({**item, "content": []}) == MessageItem(role="assistant", content=Parts(()))


def test_function_calls_and_what_they_returned() -> None:
    assert take({**CALL, "id": "fc_1", "status": "completed"}) == FunctionCallItem(
        call_id="c", name="f", arguments="{}"
    )
    assert take({**CALL, "arguments": {"a": 1}}) == FunctionCallItem(call_id="c", name="f", arguments={"a": 1})
    assert take(OUTPUT) == FunctionCallOutputItem(call_id="c", output=Parts("x"))
    text = {"type": "input_text", "text": "a"}
    parts = Parts((InputText(type="input_text", text="a"),))
    assert take({**OUTPUT, "output": [text]}) == FunctionCallOutputItem(call_id="c", output=parts)


def test_reasoning_is_taken_whatever_it_holds() -> None:
    bare = {"type": "reasoning", "id": "rs_1", "summary": []}
    summary = [{"type": "summary_text", "text": "a"}, {"type": "summary_text", "text": "b"}]
    content = [{"type": "reasoning_text", "text": "c"}, {"type": "reasoning_text", "text": "d"}]
    texts = []
    for item in (
        bare,
        {**bare, "encrypted_content": "zzz", "content": None, "status": "completed"},
        {**bare, "summary": summary},
        {**bare, "summary": summary, "content": content},
    ):
        taken = take(item)
        assert isinstance(taken, ReasoningItem)
        texts.append(taken.text)
    assert texts == ["", "", "a\n\nb", "cd"]


@pytest.mark.parametrize(
    ("item", "path"),
    [
        ("hi", ""),
        ({}, ".role"),
        ({"role": "user"}, ".content"),
        ({"role": "tool", "content": "x"}, ".role"),
        ({"role": "user", "content": []}, ".content"),
        ({"role": "user", "content": 5}, ".content"),
        (message("x"), ".content[0]"),
        (message({"text": "x"}), ".content[0].type"),
        (message({"type": "text", "text": "x"}), ".content[0].type"),
        (message({"type": "input_text"}), ".content[0].text"),
        (message({"type": "input_text", "text": "a"}, {"type": "input_text", "text": 5}), ".content[1].text"),
        (message({"type": "input_image"}), ".content[0].image_url"),
        (message({"type": "input_image", "image_url": {"url": "x"}}), ".content[0].image_url"),
        (message({"type": "input_image", "file_id": "file_1"}), ".content[0].file_id"),
        (message({**IMAGE, "detail": "all"}), ".content[0].detail"),
        (message(IMAGE, role="system"), ".content[0].type"),
        (message(IMAGE, role="assistant"), ".content[0].type"),
        (message({"type": "refusal", "refusal": "no"}), ".content[0].type"),
        ({**CALL, "name": ""}, ".name"),
        ({**CALL, "name": None}, ".name"),
        ({**CALL, "call_id": None}, ".call_id"),
        ({**CALL, "arguments": None}, ".arguments"),
        ({**CALL, "arguments": []}, ".arguments"),
        ({**OUTPUT, "call_id": ""}, ".call_id"),
        ({**OUTPUT, "output": None}, ".output"),
        ({**OUTPUT, "output": {"a": 1}}, ".output"),
        ({**OUTPUT, "output": [{"type": "output_text", "text": "x"}]}, ".output[0].type"),
        ({"type": "reasoning", "summary": ["x"]}, ".summary[0]"),
        ({"type": "web_search_call", "id": "ws_1"}, ".type"),
        ({"type": "custom_tool_call"}, ".type"),
        ({"type": ["message"], **USER}, ".type"),
        ({"type": "item_reference", "id": "msg_1"}, ""),
        ({"id": "msg_1"}, ""),
    ],
)
def test_one_wrong_value_is_named(item: Any, path: str) -> None:
    for before in ([], [USER, USER]):
        error = refused(*before, item)
        assert error.status == 400
        assert error.param == f"input[{len(before)}]{path}"


def test_references_are_refused_as_such() -> None:
    error = refused({"type": "item_reference", "id": "msg_1"})
    assert error.code == "unsupported_parameter"
    assert "keeps no responses" in error.message


def test_an_empty_list_is_no_input() -> None:
    assert refused().param == "input"
