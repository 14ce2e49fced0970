"""``POST /v1/responses`` over HTTP and through the openai package."""

import asyncio
import base64
import io
import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from PIL import Image
from pydantic import BaseModel

from tests.support.answers import check_headers, expect_error, expect_ok, stream_chunks, streamed_text, whole_text
from tests.support.model_folders import CAUSAL, write_graph
from tests.support.responses import (
    accumulate,
    check_events,
    check_response,
    output_text,
    parse_events,
    without_ids,
)
from tests.support.server import F32, ServerProcess, model_source

PATH = "/v1/responses"
CHAT = "/v1/chat/completions"
WEATHER: dict[str, Any] = {
    "name": "get_weather",
    "description": "Get the current weather for a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
TOOLS: list[Any] = [{"type": "function", **WEATHER}]
CHAT_TOOLS: list[Any] = [{"type": "function", "function": WEATHER}]
QUESTION = "What is the weather in Paris?"
SUNNY = '{"temperature": 18, "sky": "sunny"}'


def body(text: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "rv-demo", "input": text, "temperature": 0, **fields}


def echo(text: str, **fields: Any) -> dict[str, Any]:
    """A request that the demo model answers with ``text`` and nothing else."""
    return body(f"Repeat after me: {text}", enable_thinking=False, **fields)


def whole(server: ServerProcess, request: dict[str, Any]) -> dict[str, Any]:
    return check_response(expect_ok(server.post(PATH, request)))


def stream(server: ServerProcess, request: dict[str, Any]) -> list[dict[str, Any]]:
    reply = server.post(PATH, {**request, "stream": True})
    assert reply.status_code == 200, reply.text[:500]
    assert reply.headers["content-type"].startswith("text/event-stream")
    check_headers(reply)
    return parse_events(reply.text)


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0, timeout=60) as made:
        yield made


class TestSameAsChat:
    """A request says the same in both APIs, and a greedy model answers it the same."""

    @pytest.mark.parametrize(
        "messages",
        [
            [{"role": "user", "content": "Repeat after me: 漢字 🙂"}],
            [{"role": "user", "content": "What can you do?"}],
            [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}],
            [
                {"role": "user", "content": "Repeat after me: 7"},
                {"role": "assistant", "content": "7"},
                {"role": "user", "content": "Repeat after me: 8"},
            ],
        ],
    )
    @pytest.mark.parametrize("model", ["rv-demo", "tiny-qwen3", "tiny-qwen3-chat"])
    def test_messages(self, server: ServerProcess, model: str, messages: list[Any]) -> None:
        shared = {"model": model, "temperature": 0}
        chat = expect_ok(server.post(CHAT, {**shared, "messages": messages, "max_tokens": 60}))
        answer = whole(server, {**shared, "input": messages, "max_output_tokens": 60})
        message = chat["choices"][0]["message"]
        assert output_text(answer) == (message["content"] or "")
        thinking = [item["content"][0]["text"] for item in answer["output"] if item["type"] == "reasoning"]
        assert thinking == ([message["reasoning_content"]] if message.get("reasoning_content") else [])
        usage, counts = answer["usage"], chat["usage"]
        assert (usage["input_tokens"], usage["output_tokens"]) == (counts["prompt_tokens"], counts["completion_tokens"])
        thought_tokens = counts.get("completion_tokens_details", {"reasoning_tokens": 0})["reasoning_tokens"]
        assert usage["output_tokens_details"]["reasoning_tokens"] == thought_tokens
        assert answer["status"] == ("incomplete" if chat["choices"][0]["finish_reason"] == "length" else "completed")
        if messages[0]["role"] == "system":
            rest = {"instructions": messages[0]["content"], "input": messages[1]["content"]}
            assert output_text(whole(server, {**shared, **rest, "max_output_tokens": 60})) == output_text(answer)

    def test_tools(self, server: ServerProcess) -> None:
        chat = expect_ok(
            server.post(
                CHAT,
                {
                    "model": "rv-demo",
                    "temperature": 0,
                    "tools": CHAT_TOOLS,
                    "messages": [{"role": "user", "content": QUESTION}],
                },
            )
        )
        answer = whole(server, body(QUESTION, tools=TOOLS))
        (call,) = chat["choices"][0]["message"]["tool_calls"]
        thinking, item = answer["output"]
        assert thinking["content"][0]["text"] == chat["choices"][0]["message"]["reasoning_content"]
        assert {"name": item["name"], "arguments": item["arguments"]} == call["function"]
        assert answer["usage"]["input_tokens"] == chat["usage"]["prompt_tokens"]


class TestWhole:
    def test_a_text(self, server: ServerProcess) -> None:
        answer = whole(server, echo("482913", metadata={"a": "b"}, store=True, user="u"))
        assert answer["status"] == "completed"
        (message,) = answer["output"]
        assert (message["role"], message["status"]) == ("assistant", "completed")
        assert output_text(answer) == "482913"
        assert (answer["model"], answer["metadata"], answer["user"]) == ("rv-demo", {"a": "b"}, "u")
        assert answer["temperature"] == 0
        assert answer["usage"]["output_tokens_details"]["reasoning_tokens"] == 0

    def test_thinking_comes_first_and_is_counted(self, server: ServerProcess) -> None:
        answer = whole(server, body("Repeat after me: 482913"))
        assert [item["type"] for item in answer["output"]] == ["reasoning", "message"]
        assert "repeat" in answer["output"][0]["content"][0]["text"]
        counted = answer["usage"]["output_tokens_details"]["reasoning_tokens"]
        assert 4 <= counted < answer["usage"]["output_tokens"]

    @pytest.mark.parametrize("effort", ["none", None])
    def test_effort(self, server: ServerProcess, effort: str | None) -> None:
        answer = whole(server, body("Repeat after me: 1", reasoning={"effort": effort, "summary": "auto"}))
        assert ("reasoning" in [item["type"] for item in answer["output"]]) == (effort is None)
        assert answer["reasoning"] == {"effort": effort, "summary": "auto"}

    def test_cut_inside_thinking(self, server: ServerProcess) -> None:
        answer = whole(server, body("Repeat after me: 1", max_output_tokens=4))
        assert answer["status"] == "incomplete"
        assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
        assert [(item["type"], item["status"]) for item in answer["output"]] == [("reasoning", "incomplete")]
        assert answer["usage"]["output_tokens"] == answer["max_output_tokens"] == 4

    def test_cut_inside_a_call(self, server: ServerProcess) -> None:
        request = body(QUESTION, tools=TOOLS, enable_thinking=False)
        full = whole(server, request)
        answer = whole(server, {**request, "max_output_tokens": full["usage"]["output_tokens"] - 8})
        (call,) = answer["output"]
        assert (answer["status"], call["status"]) == ("incomplete", "incomplete")
        assert call["arguments"]
        assert full["output"][0]["arguments"].startswith(call["arguments"])
        assert call["arguments"] != full["output"][0]["arguments"]

    def test_a_stop_string(self, server: ServerProcess) -> None:
        answer = whole(server, echo("one two three", stop=" two"))
        assert (output_text(answer), answer["status"]) == ("one", "completed")

    def test_log_probabilities_are_those_of_the_text(self, server: ServerProcess) -> None:
        request = body("Repeat after me: 漢字 482913", include=["message.output_text.logprobs"])
        answer = whole(server, request)
        part = answer["output"][1]["content"][0]
        told = b"".join(bytes(entry["bytes"]) for entry in part["logprobs"])
        assert told.decode() == part["text"] == "漢字 482913"
        assert all(entry["logprob"] <= 0 for entry in part["logprobs"])
        streamed = check_events(stream(server, request))
        assert without_ids(streamed["output"]) == without_ids(answer["output"])
        assert output_text(whole(server, {**request, "include": []})) == part["text"]


class TestStreams:
    @pytest.mark.parametrize("model", ["rv-demo", "tiny-qwen3", "tiny-llama3", "tiny-qwen3-chat"])
    @pytest.mark.parametrize("text", ["Repeat after me: 🙂é漢字👩‍👩‍👧", "What can you do?"])
    def test_a_stream_is_its_whole_answer(self, server: ServerProcess, model: str, text: str) -> None:
        request = body(text, model=model, max_output_tokens=100)
        answer = whole(server, request)
        events = stream(server, request)
        response = check_events(events)
        assert without_ids(response["output"]) == without_ids(answer["output"])
        assert response["usage"] == answer["usage"]
        assert response["status"] == answer["status"]
        _, text = accumulate(events)
        assert text == output_text(answer)

    def test_tokens_come_one_by_one(self, server: ServerProcess) -> None:
        events = stream(server, echo("one two three four five"))
        deltas = [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
        assert len(deltas) > 3

    def test_two_calls(self, server: ServerProcess) -> None:
        request = body("What is the weather in Paris and in Rome?", tools=TOOLS)
        events = stream(server, request)
        response = check_events(events)
        kinds = [item["type"] for item in response["output"]]
        assert kinds == ["reasoning", "function_call", "function_call"]
        cities = [json.loads(item["arguments"])["city"] for item in response["output"][1:]]
        assert cities == ["Paris", "Rome"]
        assert len({item["call_id"] for item in response["output"][1:]}) == 2
        done = [event for event in events if event["type"] == "response.function_call_arguments.done"]
        assert [event["name"] for event in done] == ["get_weather", "get_weather"]
        assert without_ids(response["output"]) == without_ids(whole(server, request)["output"])
        one = check_events(stream(server, {**request, "parallel_tool_calls": False}))
        assert [item["type"] for item in one["output"]] == ["reasoning", "function_call"]

    def test_a_bad_request_is_no_stream(self, server: ServerProcess) -> None:
        expect_error(server.post(PATH, body("hi", stream=True, temperature=3)), 400, param="temperature")
        expect_error(server.post(PATH, body("hi", stream=True, model="nope")), 404, "model_not_found", "model")

    def test_a_client_that_leaves_frees_the_model(self, server: ServerProcess) -> None:
        request = body("x", model="tiny-llama3", max_output_tokens=3000, stream=True, ignore_eos=True)
        for _ in range(3):
            with server.client.stream("POST", PATH, json=request) as reply:
                next(reply.iter_bytes())
        chat = {"model": "tiny-llama3", "messages": [{"role": "user", "content": "x"}], "max_tokens": 3}
        assert streamed_text(stream_chunks(server, CHAT, chat)) is not None


class TestHistory:
    def test_output_items_go_back_as_they_came(self, server: ServerProcess) -> None:
        user = {"role": "user", "content": "Repeat after me: 482913"}
        first = whole(server, body([user], tools=TOOLS))
        history: list[Any] = [user, *first["output"], {"role": "user", "content": QUESTION}]
        second = whole(server, body(history, tools=TOOLS))
        call = second["output"][-1]
        assert call["type"] == "function_call"
        history += second["output"]
        history.append({"type": "function_call_output", "call_id": call["call_id"], "output": SUNNY})
        third = whole(server, body(history, tools=TOOLS))
        assert output_text(third) == "The temperature is 18 and the sky is sunny."
        chat = [
            user,
            {"role": "assistant", "content": "482913", "reasoning_content": "I repeat the text."},
            {"role": "user", "content": QUESTION},
            {
                "role": "assistant",
                "content": None,
                "reasoning_content": second["output"][0]["content"][0]["text"],
                "tool_calls": [
                    {
                        "id": call["call_id"],
                        "type": "function",
                        "function": {"name": call["name"], "arguments": call["arguments"]},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": call["call_id"], "content": SUNNY},
        ]
        same = expect_ok(
            server.post(CHAT, {"model": "rv-demo", "messages": chat, "tools": CHAT_TOOLS, "temperature": 0})
        )
        assert whole_text(same) == output_text(third)
        assert same["usage"]["prompt_tokens"] == third["usage"]["input_tokens"]

    def test_an_output_of_parts(self, server: ServerProcess) -> None:
        items = [
            {"role": "user", "content": [{"type": "input_text", "text": QUESTION}]},
            {"type": "function_call", "call_id": "c", "name": "get_weather", "arguments": '{"city": "Paris"}'},
            {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": SUNNY}]},
        ]
        assert "sunny" in output_text(whole(server, body(items, tools=TOOLS)))


class TestErrors:
    @pytest.mark.parametrize(
        ("fields", "param", "code"),
        [
            ({"previous_response_id": "resp_1"}, "previous_response_id", "unsupported_parameter"),
            ({"conversation": "conv_1"}, "conversation", "unsupported_parameter"),
            ({"background": True}, "background", "unsupported_parameter"),
            ({"tools": [{"type": "web_search"}]}, "tools[0].type", "unsupported_parameter"),
            ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0]", "unsupported_parameter"),
            ({"input": "hello " * 10_000}, "input", "context_length_exceeded"),
            ({"input": "hello " * 3_000}, "input", "context_length_exceeded"),
            ({"max_output_tokens": 0}, "max_output_tokens", None),
            ({"tool_choice": {"type": "function", "name": "g"}, "tools": TOOLS}, "tool_choice.name", None),
            ({"top_logprobs": 3}, "top_logprobs", "unsupported_parameter"),
            (
                {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:x"}]}]},
                "input[0].content[0]",
                None,
            ),
            (
                {"input": [{"role": "user", "content": [{"type": "input_file", "file_data": "x"}]}]},
                "input[0].content[0]",
                None,
            ),
        ],
    )
    def test_fields_are_named(self, server: ServerProcess, fields: dict[str, Any], param: str, code: Any) -> None:
        for extra in ({}, {"stream": True}):
            error = expect_error(server.post(PATH, {**body("hi"), **fields, **extra}), 400, code, param)
            assert "messages" not in error["message"]
            assert "image_url'" not in error["message"]

    @pytest.mark.parametrize(
        ("method", "path"),
        [
            ("GET", "/resp_1"),
            ("DELETE", "/resp_1"),
            ("POST", "/resp_1/cancel"),
            ("GET", "/resp_1/input_items"),
            ("POST", "/compact"),
            ("POST", "/input_tokens"),
        ],
    )
    def test_nothing_is_kept_to_ask_for(self, server: ServerProcess, method: str, path: str) -> None:
        expect_error(server.client.request(method, PATH + path), 404, "unknown_url")
        expect_error(server.client.get(PATH), 405, "method_not_allowed")


class Answer(BaseModel):
    number: int


class TestOpenAI:
    def test_create(self, client: openai.OpenAI) -> None:
        answer = client.responses.create(
            model="rv-demo", input="Repeat after me: 482913", temperature=0, instructions="Be exact."
        )
        assert answer.output_text == "482913"
        assert [item.type for item in answer.output] == ["reasoning", "message"]
        assert answer.usage is not None
        assert answer.usage.output_tokens_details.reasoning_tokens > 0
        assert answer.instructions == "Be exact."

    def test_create_streamed(self, client: openai.OpenAI) -> None:
        events = list(
            client.responses.create(model="rv-demo", input="Repeat after me: 482913", temperature=0, stream=True)
        )
        assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == "482913"
        assert events[0].type == "response.created"
        final = events[-1]
        assert final.type == "response.completed"
        assert final.response.output_text == "482913"

    def test_the_stream_helper(self, client: openai.OpenAI) -> None:
        with client.responses.stream(model="rv-demo", input=QUESTION, temperature=0, tools=TOOLS) as events:
            snapshots = [event.snapshot for event in events if event.type == "response.function_call_arguments.delta"]
            final = events.get_final_response()
        call = final.output[-1]
        assert call.type == "function_call"
        assert snapshots[-1] == call.arguments
        assert json.loads(call.arguments) == {"city": "Paris"}

    def test_a_round_trip_of_a_tool(self, client: openai.OpenAI) -> None:
        items: list[Any] = [{"role": "user", "content": QUESTION}]
        first = client.responses.create(model="rv-demo", input=items, temperature=0, tools=TOOLS)
        items += first.output
        for item in first.output:
            if item.type == "function_call":
                items.append({"type": "function_call_output", "call_id": item.call_id, "output": SUNNY})
        assert len(items) == 4
        second = client.responses.create(model="rv-demo", input=items, temperature=0, tools=TOOLS)
        assert second.output_text == "The temperature is 18 and the sky is sunny."

    def test_parse(self, client: openai.OpenAI) -> None:
        answer = client.responses.parse(model="rv-demo", input="Say 7", temperature=0, text_format=Answer)
        assert isinstance(answer.output_parsed, Answer)

    def test_parse_without_a_format(self, client: openai.OpenAI) -> None:
        answer = client.responses.parse(model="rv-demo", input="Repeat after me: 482913", temperature=0)
        assert answer.output_text == "482913"
        assert answer.output_parsed is None

    def test_errors(self, client: openai.OpenAI) -> None:
        with pytest.raises(openai.NotFoundError) as missing:
            client.responses.create(model="nope", input="hi")
        assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
        with pytest.raises(openai.BadRequestError) as bad:
            client.responses.create(model="rv-demo", input="hi", previous_response_id="resp_1")
        assert bad.value.param == "previous_response_id"
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve("resp_1")

    def test_the_asynchronous_client(self, server: ServerProcess) -> None:
        async def run() -> None:
            async with openai.AsyncOpenAI(
                base_url=f"{server.url}/v1", api_key="unused", max_retries=0, timeout=60
            ) as client:
                question: Any = {"model": "rv-demo", "input": "Repeat after me: 482913", "temperature": 0}
                answer = await client.responses.create(**question)
                assert answer.output_text == "482913"
                async with client.responses.stream(**question) as events:
                    kinds = [event.type async for event in events]
                    final = await events.get_final_response()
                assert kinds[-1] == "response.completed"
                assert final.output_text == "482913"
                with pytest.raises(openai.BadRequestError):
                    await client.responses.create(**{**question, "background": True})

        asyncio.run(run())


@pytest.fixture(scope="module")
def other_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server of models that load when they are asked for; one of them cannot."""
    folder = tmp_path_factory.mktemp("responses")
    broken = folder / "models" / "broken"
    broken.mkdir(parents=True)
    for file in model_source("tiny-llama3").iterdir():
        if file.stem != "openvino_model":
            (broken / file.name).symlink_to(file)
    # Looks like a text model; that its layers make no sense is found by the runtime.
    write_graph(broken / "openvino_model.xml", CAUSAL, {"logits": (-1, -1, 1536)}, state=True)
    models = {
        "tiny-vlm": {**F32, "load": "on_demand"},
        "tiny-llama3": {**F32, "load": "on_demand"},
        "broken": {"load": "on_demand", "kind": "text_gen"},
    }
    with ServerProcess.serving(folder, models, num_threads=1, spare_workers=0, sse_keepalive_secs=0.1) as process:
        yield process


def picture() -> str:
    """A data URL of a small picture."""
    file = io.BytesIO()
    Image.new("RGB", (56, 56), (200, 0, 0)).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def test_images_are_seen_as_in_chat(other_server: ServerProcess) -> None:
    url = picture()
    shared = {"model": "tiny-vlm", "temperature": 0, "ignore_eos": True}
    text = {"type": "input_text", "text": "What is this?"}
    image = {"type": "input_image", "image_url": url, "detail": "auto"}
    items = [{"role": "user", "content": [text, image]}]
    answer = whole(other_server, {**shared, "input": items, "max_output_tokens": 8})
    parts = [{"type": "text", "text": text["text"]}, {"type": "image_url", "image_url": {"url": url}}]
    messages = [{"role": "user", "content": parts}]
    chat = expect_ok(other_server.post(CHAT, {**shared, "messages": messages, "max_tokens": 8}))
    assert output_text(answer) == whole_text(chat)
    assert answer["usage"]["input_tokens"] == chat["usage"]["prompt_tokens"]
    items.append({"role": "user", "content": [text, {**image, "image_url": "data:image/png;base64,AAAA"}]})
    error = expect_error(other_server.post(PATH, {**shared, "input": items}), 400, "invalid_image")
    assert error["param"] == "input[1].content[1].image_url"


def test_a_response_begins_before_its_model_is_loaded(other_server: ServerProcess) -> None:
    response = check_events(stream(other_server, body("x", model="tiny-llama3", max_output_tokens=3)))
    assert response["usage"]["output_tokens"] == 3


def test_a_model_that_cannot_be_loaded_fails_the_response(other_server: ServerProcess) -> None:
    reply = other_server.post(PATH, body("x", model="broken", stream=True))
    response = check_events(parse_events(reply.text))
    assert (response["status"], response["output"]) == ("failed", [])


def test_a_worker_that_is_lost_fails_the_response(other_server: ServerProcess) -> None:
    request = body("x", model="tiny-llama3", max_output_tokens=3000, ignore_eos=True, stream=True)
    told, killed = "", False
    with other_server.client.stream("POST", PATH, json=request) as reply:
        for piece in reply.iter_text():
            told += piece
            if not killed and "response.output_text.delta" in told:
                killed = True
                for pid in other_server.workers():
                    os.kill(pid, signal.SIGKILL)
    events = parse_events(told)
    response = check_events(events)
    assert response["status"] == "failed"
    assert response["error"]["code"] == "server_error"
    assert events[-2]["code"] == "worker_lost"
    assert output_text(response)
