"""The openai package against a running server: what most clients are made of."""

import asyncio
from collections.abc import Iterator

import openai
import pytest

from tests.support.answers import stream_chunks
from tests.support.server import ServerProcess

QUESTION = [{"role": "user", "content": "Repeat after me: 482913"}]
DIRECT = {"enable_thinking": False}


@pytest.fixture
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0, timeout=60) as made:
        yield made


def test_a_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="rv-demo", messages=QUESTION, temperature=0, extra_body=DIRECT)
    (choice,) = answer.choices
    assert choice.message.content == "482913"
    assert choice.message.role == "assistant"
    assert choice.finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_streamed_chat(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="rv-demo",
        messages=QUESTION,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body=DIRECT,
    )
    chunks = list(stream)
    assert "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices) == "482913"
    assert [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason] == ["stop"]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage is not None
    assert chunks[-1].choices == []


def test_the_stream_helper(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="rv-demo", messages=QUESTION, temperature=0, extra_body=DIRECT) as stream:
        for _ in stream:
            continue
        final = stream.get_final_completion()
    assert final.choices[0].message.content == "482913"


def test_reasoning_is_apart_from_content(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="rv-demo", messages=QUESTION, temperature=0, extra_body={"enable_thinking": True}
    )
    message = answer.choices[0].message
    assert message.content == "482913"
    assert message.model_extra is not None
    assert "repeat" in message.model_extra["reasoning_content"]


def test_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="tiny-qwen3", prompt=["Hello", "World"], max_tokens=5, temperature=0)
    assert [choice.index for choice in answer.choices] == [0, 1]
    texts = ["", ""]
    for chunk in client.completions.create(
        model="tiny-qwen3", prompt=["Hello", "World"], max_tokens=5, temperature=0, stream=True
    ):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [choice.text for choice in answer.choices]


def test_several_choices_and_a_seed(client: openai.OpenAI) -> None:
    def texts() -> list[str | None]:
        answer = client.chat.completions.create(
            model="tiny-qwen3", messages=QUESTION, n=3, seed=7, temperature=1, max_tokens=8
        )
        return [choice.message.content for choice in answer.choices]

    assert texts() == texts()


def test_models(client: openai.OpenAI) -> None:
    ids = [model.id for model in client.models.list()]
    assert "rv-demo" in ids
    model = client.models.retrieve("rv-demo")
    assert model.id == "rv-demo"
    assert model.object == "model"
    with pytest.raises(openai.NotFoundError) as failure:
        client.models.retrieve("nope")
    assert failure.value.code == "model_not_found"


class TestErrors:
    def test_not_found(self, client: openai.OpenAI) -> None:
        with pytest.raises(openai.NotFoundError) as failure:
            client.chat.completions.create(model="nope", messages=QUESTION)
        error = failure.value
        assert (error.status_code, error.code, error.param) == (404, "model_not_found", "model")
        assert error.request_id
        assert "nope" in error.message

    @pytest.mark.parametrize("stream", [False, True])
    def test_bad_request(self, client: openai.OpenAI, stream: bool) -> None:
        with pytest.raises(openai.BadRequestError) as failure:
            client.chat.completions.create(model="rv-demo", messages=QUESTION, temperature=9, stream=stream)
        assert failure.value.param == "temperature"
        assert failure.value.type == "invalid_request_error"

    def test_too_long(self, client: openai.OpenAI) -> None:
        with pytest.raises(openai.BadRequestError) as failure:
            client.chat.completions.create(model="rv-demo", messages=[{"role": "user", "content": "hello " * 10_000}])
        assert failure.value.code == "context_length_exceeded"
        assert failure.value.param == "messages"

    def test_an_unknown_route(self, client: openai.OpenAI) -> None:
        with pytest.raises(openai.NotFoundError) as failure:
            client.moderations.create(input="x")
        assert failure.value.code == "unknown_url"


def test_the_asynchronous_client(server: ServerProcess) -> None:
    async def chat() -> None:
        async with openai.AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key="unused", max_retries=0, timeout=60
        ) as client:
            answer = await client.chat.completions.create(
                model="rv-demo", messages=QUESTION, temperature=0, extra_body=DIRECT
            )
            assert answer.choices[0].message.content == "482913"
            text = ""
            stream = await client.chat.completions.create(
                model="rv-demo", messages=QUESTION, temperature=0, stream=True, extra_body=DIRECT
            )
            async for chunk in stream:
                text += chunk.choices[0].delta.content or ""
            assert text == "482913"
            with pytest.raises(openai.NotFoundError):
                await client.models.retrieve("nope")

    asyncio.run(chat())


def test_a_stream_that_is_closed_early_frees_the_connection(server: ServerProcess, client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="tiny-llama3", messages=QUESTION, max_tokens=3000, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()
    body = {"model": "tiny-llama3", "messages": QUESTION, "max_tokens": 3}
    assert stream_chunks(server, "/v1/chat/completions", body)
