"""The chat that a Responses request means, and the way back for errors."""

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rustedvino.api.chat import ChatRequest
from rustedvino.api.converter import structure
from rustedvino.api.errors import ApiError
from rustedvino.api.responses import ResponsesRequest
from rustedvino.api.responses_chat import Translation, to_chat

USER: dict[str, Any] = {"role": "user", "content": "hi"}
IMAGE: dict[str, Any] = {"type": "input_image", "image_url": "data:x", "detail": "low"}
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
WORD = st.text("abcdef_", min_size=1, max_size=8)


def translate(**fields: Any) -> Translation:
    return to_chat(structure({"model": "m", "input": "hi", **fields}, ResponsesRequest))


def messages(*items: Any, **fields: Any) -> list[dict[str, Any]]:
    return translate(input=list(items), **fields).chat.to_template_messages()


def call(name: str = "f", call_id: str = "c") -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": "{}"}


def output(text: Any = "x", call_id: str = "c") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": text}


def answer(text: str) -> dict[str, Any]:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed", "content": [part]}


def reasoning(text: str) -> dict[str, Any]:
    return {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": text}]}


def in_template(name: str = "f", call_id: str = "c") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": "{}"}}


class TestMessages:
    def test_a_text_with_instructions(self) -> None:
        chat = translate(instructions="be nice").chat
        assert chat.to_template_messages() == [{"role": "system", "content": "be nice"}, USER]

    def test_instructions_come_before_the_messages_own(self) -> None:
        system = {"role": "developer", "content": "own"}
        assert [m["content"] for m in messages(system, USER, instructions="first")] == ["first", "own", "hi"]

    def test_one_answer_of_several_items_is_one_message(self) -> None:
        assert messages(USER, reasoning("think"), answer("I call"), call("f", "1"), call("g", "2"), USER)[1] == {
            "role": "assistant",
            "content": "I call",
            "reasoning_content": "think",
            "tool_calls": [in_template("f", "1"), in_template("g", "2")],
        }

    def test_text_behind_a_call_belongs_to_the_same_answer(self) -> None:
        got = messages(USER, answer("a"), call(), answer("b"), reasoning("r"), output())
        assert [message["role"] for message in got] == ["user", "assistant", "tool"]
        assert (got[1]["content"], got[1]["reasoning_content"]) == ("ab", "r")

    def test_two_texts_are_two_messages(self) -> None:
        got = messages(USER, answer("a"), answer("b"), reasoning("r"), answer("c"), USER)
        assert [message["content"] for message in got] == ["hi", "a", "b", "c", "hi"]
        assert [message.get("reasoning_content") for message in got] == [None, None, None, "r", None]

    def test_calls_with_their_outputs_in_between_are_two_turns(self) -> None:
        got = messages(USER, call("f", "1"), output("x", "1"), call("g", "2"), output("y", "2"))
        assert [message["role"] for message in got] == ["user", "assistant", "tool", "assistant", "tool"]
        assert [message.get("tool_call_id") for message in got] == [None, None, "1", None, "2"]

    def test_parallel_calls_with_their_outputs_behind(self) -> None:
        got = messages(USER, call("f", "1"), call("g", "2"), output("x", "1"), output("y", "2"))
        assert [len(message.get("tool_calls", [])) for message in got] == [0, 2, 0, 0]

    def test_thinking_that_was_cut(self) -> None:
        assert messages(USER, reasoning("think"))[1] == {
            "role": "assistant",
            "content": "",
            "reasoning_content": "think",
        }

    def test_outputs_of_parts(self) -> None:
        parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
        assert messages(USER, call(), output(parts))[2]["content"] == "a\nb"
        assert messages(USER, call(), output([]))[2]["content"] == ""

    def test_images_keep_their_place(self) -> None:
        text = {"type": "input_text", "text": "a"}
        chat = translate(input=[{"role": "user", "content": [text, IMAGE, text]}]).chat
        assert [part["type"] for part in chat.to_template_messages()[0]["content"]] == ["text", "image", "text"]
        (path, part), *rest = chat.media_parts()
        assert (path, rest) == ("messages[0].content[1]", [])
        assert (part.image_url.url, part.image_url.detail) == ("data:x", "low")  # type: ignore[union-attr]


CALLS = st.lists(st.tuples(WORD, WORD, TEXT), max_size=3)
ANSWERS = st.tuples(st.none() | TEXT.filter(bool), st.none() | TEXT.filter(bool), CALLS).filter(any)
TURNS = st.lists(st.tuples(TEXT, ANSWERS, TEXT), min_size=1, max_size=4)


@given(TURNS)
@settings(max_examples=100, deadline=None)
def test_a_conversation_in_items_is_the_same_conversation_in_messages(turns: list[Any]) -> None:
    items: list[dict[str, Any]] = []
    chat: list[dict[str, Any]] = []
    for question, (thought, text, calls), result in turns:
        items.append({"role": "user", "content": question})
        chat.append({"role": "user", "content": question})
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if thought is not None:
            items.append(reasoning(thought))
            message["reasoning_content"] = thought
        if text is not None:
            items.append(answer(text))
        if calls:
            message["tool_calls"] = [
                {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
                for call_id, name, arguments in calls
            ]
        chat.append(message)
        items += [
            {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}
            for call_id, name, arguments in calls
        ]
        for call_id, _, _ in calls:
            items.append(output(result, call_id))
            chat.append({"role": "tool", "tool_call_id": call_id, "content": result})
    expected = structure({"model": "m", "messages": chat}, ChatRequest).to_template_messages()
    assert messages(*items) == expected


class TestFields:
    def test_shared_ones_have_the_same_name(self) -> None:
        fields = {"temperature": 0.5, "top_p": 0.4, "top_k": 3, "seed": 9, "min_p": 0.2, "enable_thinking": False}
        chat = translate(**fields, stop=["a"], chat_template_kwargs={"x": 1}, stream=True).chat
        assert {name: getattr(chat, name) for name in fields} == fields
        assert (chat.stop_strings, chat.chat_template_kwargs, chat.stream) == (("a",), {"x": 1}, True)
        assert chat.n == 1

    def test_renamed_ones(self) -> None:
        chat = translate(max_output_tokens=7, reasoning={"effort": "low"}, parallel_tool_calls=False).chat
        assert (chat.max_new_tokens, chat.reasoning_effort, chat.parallel_tool_calls) == (7, "low", False)
        assert translate(reasoning={"effort": "none"}).chat.thinking is False

    def test_tools_are_nested_as_chat_has_them(self) -> None:
        tool = {"type": "function", "name": "f", "strict": True, "parameters": {"a": 1}, "description": None, "x": 1}
        (got,) = translate(tools=[tool]).chat.template_tools() or ()
        assert got == {"type": "function", "function": {"name": "f", "strict": True, "parameters": {"a": 1}}}
        assert list(got["function"]) == ["name", "strict", "parameters"]

    @pytest.mark.parametrize(
        ("choice", "mode", "names"),
        [
            (None, "auto", ()),
            ("none", "none", ()),
            ("required", "required", ()),
            ({"type": "function", "name": "g"}, "required", ("g",)),
            (
                {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
                "auto",
                ("f",),
            ),
        ],
    )
    def test_tool_choice(self, choice: Any, mode: str, names: tuple[str, ...]) -> None:
        tools = [{"type": "function", "name": name} for name in "fg"]
        got = translate(tools=tools, tool_choice=choice).chat.effective_tool_choice
        assert (got.mode, got.names) == (mode, names)

    def test_the_shape_of_the_text(self) -> None:
        assert translate().chat.response_format is None
        assert translate(text={"format": {"type": "text"}}).chat.response_format is None
        wanted = translate(text={"format": {"type": "json_object"}}).chat.response_format
        assert wanted is not None
        assert wanted.type == "json_object"
        flat = {"type": "json_schema", "name": "n", "schema": {"a": 1}, "strict": True, "description": "d"}
        wanted = translate(text={"format": flat}).chat.response_format
        assert wanted is not None
        assert wanted.json_schema is not None
        got = wanted.json_schema
        assert (got.name, got.schema, got.strict, got.description) == ("n", {"a": 1}, True, "d")

    def test_logprobs(self) -> None:
        chat = translate(include=["message.output_text.logprobs"], top_logprobs=0).chat
        assert (chat.logprobs, chat.top_logprobs) == (True, None)
        chat = translate(top_logprobs=2).chat
        assert (chat.logprobs, chat.top_logprobs) == (True, 2)


class TestErrors:
    @pytest.mark.parametrize(
        ("fields", "param"),
        [
            ({"tool_choice": "required"}, "tool_choice"),
            (
                {"tool_choice": {"type": "function", "name": "g"}, "tools": [{"type": "function", "name": "f"}]},
                "tool_choice.name",
            ),
            (
                {
                    "tools": [{"type": "function", "name": "f"}],
                    "tool_choice": {
                        "type": "allowed_tools",
                        "mode": "auto",
                        "tools": [{"type": "function", "name": "f"}, {"type": "function", "name": "g"}],
                    },
                },
                "tool_choice.tools[1].name",
            ),
        ],
    )
    def test_what_only_the_whole_chat_shows(self, fields: dict[str, Any], param: str) -> None:
        with pytest.raises(ApiError) as caught:
            translate(**fields)
        assert caught.value.param == param

    ITEMS = (
        {"role": "system", "content": "s"},
        reasoning("r"),
        answer("a"),
        call("f", "1"),
        call("g", "2"),
        output([{"type": "input_text", "text": "x"}, IMAGE], "1"),
        {"role": "user", "content": [{"type": "input_text", "text": "x"}, IMAGE]},
    )

    @pytest.mark.parametrize(
        ("chat", "responses"),
        [
            ("messages", "input"),
            ("messages[0]", "instructions"),
            ("messages[0].content", "instructions"),
            ("messages[1].role", "input[0]"),
            ("messages[1].content", "input[0].content"),
            ("messages[2]", "input[1]"),
            ("messages[2].content[0]", "input[2].content[0]"),
            ("messages[2].tool_calls[1]", "input[4]"),
            ("messages[2].tool_calls[0].function.arguments", "input[3].arguments"),
            ("messages[2].tool_calls[0].id", "input[3].call_id"),
            ("messages[3].tool_call_id", "input[5].call_id"),
            ("messages[3].content[1]", "input[5].output[1]"),
            ("messages[4].content[1].image_url.url", "input[6].content[1].image_url"),
            ("messages[4].content[1].image_url.detail", "input[6].content[1].detail"),
            ("messages[99]", "messages[99]"),
            ("max_tokens", "max_output_tokens"),
            ("max_completion_tokens", "max_output_tokens"),
            ("reasoning_effort", "reasoning.effort"),
            ("response_format", "text.format"),
            ("response_format.type", "text.format.type"),
            ("response_format.json_schema.schema", "text.format.schema"),
            ("tools", "tools"),
            ("tools[1].function.name", "tools[1].name"),
            ("tools[1].function.parameters.type", "tools[1].parameters.type"),
            ("tool_choice.function.name", "tool_choice.name"),
            ("tool_choice.allowed_tools.tools[0].function.name", "tool_choice.tools[0].name"),
            ("temperature", "temperature"),
            ("top_logprobs", "top_logprobs"),
            ("logprobs", "include"),
        ],
    )
    def test_paths(self, chat: str, responses: str) -> None:
        translation = translate(input=list(self.ITEMS), instructions="i")
        error = ApiError(400, f"'{chat}' is wrong: it is 'so'", param=chat, code="c", retry_after_secs=3)
        got = translation.error(error)
        assert got.param == responses
        assert got.message == f"'{responses}' is wrong: it is 'so'"
        assert (got.status, got.code, got.type, got.retry_after_secs) == (400, "c", error.type, 3)

    def test_a_text_is_the_input(self) -> None:
        for path in ("messages", "messages[0]", "messages[0].content", "messages[0].content[0]"):
            assert translate().param(path) == "input"

    def test_parts_are_called_by_their_types(self) -> None:
        got = translate().error(ApiError(400, "content of type 'image_url' is not supported"))
        assert got.message == "content of type 'input_image' is not supported"
        assert got.param is None

    @given(st.lists(st.lists(st.booleans(), min_size=1, max_size=4), min_size=1, max_size=5), st.booleans())
    @settings(max_examples=50, deadline=None)
    def test_every_image_is_found_where_its_path_says(self, images: list[list[bool]], instructions: bool) -> None:
        items: list[Any] = []
        for number, message in enumerate(images):
            parts = [IMAGE if image else {"type": "input_text", "text": "x"} for image in message]
            items += (
                [call(call_id=str(number)), output(parts, str(number))]
                if number % 2
                else [
                    {"role": "user", "content": parts},
                    answer("a"),
                ]
            )
        translation = translate(input=items, instructions="i" if instructions else None)
        found = [translation.param(path) for path, _ in translation.chat.media_parts()]
        assert len(found) == sum(map(sum, images))
        for path in found:
            steps = re.fullmatch(r"input\[(\d+)\]\.(\w+)\[(\d+)\]", path)
            assert steps is not None
            assert items[int(steps[1])][steps[2]][int(steps[3])] is IMAGE
