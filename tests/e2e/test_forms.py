"""Answers of a demanded form: JSON, JSON by a schema, a call of a tool."""

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import openai
import pydantic
import pytest

from tests.support.server import PACKAGED_MODELS, ServerProcess, sse_chunks

CHAT = "/v1/chat/completions"
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
        },
    },
}
# New schemas are few per minute and model, so each group of tests has a model of its own.
TWINS = ("schemas", "tools", "hostile", "limited", "client")


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    sources = dict.fromkeys(TWINS, PACKAGED_MODELS / "rv-demo")
    folder = tmp_path_factory.mktemp("forms")
    with ServerProcess.serving(folder, {name: {"kv_cache_gb": 0.05} for name in TWINS}, sources=sources) as server:
        server.wait_ready()
        yield server


def ask(model: str, text: str, **more: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": text}], "temperature": 0, **more}


def schema_format(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "form", "schema": schema, "strict": True}}


@pytest.mark.parametrize("thinking", [True, False])
def test_an_answer_obeys_its_schema(forms: ServerProcess, thinking: bool) -> None:
    body = ask("schemas", "Extract: Anna is 31 years old.", enable_thinking=thinking)
    body["response_format"] = schema_format(PERSON)
    answer = forms.post(CHAT, body).json()["choices"][0]
    assert answer["finish_reason"] == "stop"
    assert json.loads(answer["message"]["content"]) == {"name": "Anna", "age": 31}
    streamed = sse_chunks(forms.post(CHAT, {**body, "stream": True}).text)
    text = "".join(choice["delta"].get("content") or "" for chunk in streamed for choice in chunk["choices"])
    assert text == answer["message"]["content"]


def test_a_hot_answer_obeys_its_schema_too(forms: ServerProcess) -> None:
    schema = {"type": "object", "properties": {"x": {"enum": ["a", "b", 3, None, True]}}, "required": ["x"]}
    for seed in range(6):
        body = ask("schemas", "Say anything at all.", enable_thinking=False, seed=seed)
        body |= {"temperature": 2, "response_format": schema_format(schema)}
        content = forms.post(CHAT, body).json()["choices"][0]["message"]["content"]
        jsonschema.validate(json.loads(content), schema)


def test_json_object_is_an_object(forms: ServerProcess) -> None:
    body = ask("schemas", "Extract as JSON: Anna is 31.", enable_thinking=False, max_tokens=200)
    answer = forms.post(CHAT, {**body, "response_format": {"type": "json_object"}}).json()["choices"][0]
    assert isinstance(json.loads(answer["message"]["content"]), dict)


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
@pytest.mark.parametrize("stream", [True, False])
def test_a_tool_is_called_whatever_was_said(forms: ServerProcess, choice: Any, stream: bool) -> None:
    body = ask("tools", "Hello", tools=[WEATHER], tool_choice=choice, enable_thinking=False, stream=stream)
    response = forms.post(CHAT, body)
    if stream:
        deltas = [choice for chunk in sse_chunks(response.text) for choice in chunk["choices"]]
        calls = [call for entry in deltas for call in entry["delta"].get("tool_calls", [])]
        assert [call["function"]["name"] for call in calls if "name" in call["function"]] == ["get_weather"]
        arguments = "".join(call["function"].get("arguments", "") for call in calls)
        finish = deltas[-1]["finish_reason"]
    else:
        answer = response.json()["choices"][0]
        (call,) = answer["message"]["tool_calls"]
        assert call["function"]["name"] == "get_weather"
        arguments, finish = call["function"]["arguments"], answer["finish_reason"]
    assert set(json.loads(arguments)) == {"city"}
    assert finish == "tool_calls"


def test_no_tool_is_seen_when_none_may_be_called(forms: ServerProcess) -> None:
    body = ask("tools", "What is the weather in Paris?", tools=[WEATHER], tool_choice="none")
    answer = forms.post(CHAT, body).json()["choices"][0]
    assert "tool_calls" not in answer["message"]
    assert answer["finish_reason"] == "stop"


def test_json_beside_callable_tools_is_refused(forms: ServerProcess) -> None:
    body = ask("tools", "x", tools=[WEATHER], response_format={"type": "json_object"})
    error = forms.post(CHAT, body).json()["error"]
    assert (error["param"], error["code"]) == ("response_format", "unsupported_parameter")


HOSTILE: dict[str, dict[str, Any]] = {
    "not": {"not": {"type": "string"}},
    "recursion": {"$ref": "#"},
    "remote": {"$ref": "https://example.com/schema.json"},
    "huge enum": {"enum": [f"value {number:06d}" for number in range(60_000)]},
    "bad pattern": {"type": "string", "pattern": "("},
    "lookahead": {"type": "string", "pattern": "(?=a)b"},
    "catastrophic": {"type": "string", "pattern": "^(a{1,900}){1,900}$"},
    "huge length": {"type": "string", "minLength": 10**9},
    "nothing fits": {"type": "integer", "minimum": 5, "maximum": 3},
    "unknown type": {"type": "date"},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_schema_that_cannot_be_enforced_is_refused_and_harms_nobody(forms: ServerProcess, name: str) -> None:
    body = ask("hostile", "x", enable_thinking=False, response_format=schema_format(HOSTILE[name]))
    response = forms.post(CHAT, body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"].startswith("response_format")
    assert forms.post(CHAT, ask("hostile", "Hello")).status_code == 200


def test_deep_nesting_is_refused(forms: ServerProcess) -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(30):  # the body's own bound on nesting is met before 50
        schema = {"type": "array", "items": {"type": "object", "properties": {"x": schema}}}
    response = forms.post(CHAT, ask("hostile", "x", response_format=schema_format(schema)))
    assert response.status_code == 400


def test_new_schemas_are_few_per_minute(forms: ServerProcess) -> None:
    def status(number: int) -> int:
        schema = {"type": "object", "properties": {f"field{number}": {"type": "boolean"}}}
        body = ask("limited", "x", enable_thinking=False, max_tokens=40, response_format=schema_format(schema))
        response = forms.post(CHAT, body)
        if response.status_code == 429:
            assert 1 <= int(response.headers["retry-after"]) <= 60
        return response.status_code

    assert [status(number) for number in range(5)] == [200, 200, 200, 200, 429]
    assert status(0) == 200  # known here: free
    assert forms.post(CHAT, ask("limited", "Hello")).status_code == 200


def test_the_openai_client_parses(forms: ServerProcess) -> None:
    class Person(pydantic.BaseModel):
        name: str
        age: int

    client = openai.OpenAI(base_url=f"{forms.url}/v1", api_key="unused", max_retries=0)
    text = "Extract: Anna is 31 years old."
    chat = client.chat.completions.parse(
        model="client", messages=[{"role": "user", "content": text}], response_format=Person, temperature=0
    )
    assert chat.choices[0].message.parsed == Person(name="Anna", age=31)
    response = client.responses.parse(model="client", input=text, text_format=Person, temperature=0)
    assert response.output_parsed == Person(name="Anna", age=31)
