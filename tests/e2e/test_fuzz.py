"""Whatever a client sends, it gets an answer that is not our fault, and the next good request works."""

import json
from typing import Any

import httpx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.answers import chat_body, completion_body, expect_error, expect_ok
from tests.support.server import ServerProcess, sse_data

MODEL = "tiny-qwen3-chat"

numbers = st.one_of(
    st.integers(-3, 40),
    st.sampled_from([2**31 - 1, 2**31, 2**53, 2**63, 2**64, -(2**63), 10**40, 1e-320, 1e308, -0.0, 0.5, 1.0, 2.0]),
    st.floats(allow_nan=False, allow_infinity=False),
)
texts = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        [
            *("", "user", "system", "assistant", "tool", "function", "text", "image_url", "auto", "none", "required"),
            *(
                "json_object",
                "json_schema",
                "<|im_end|>",
                "<think>",
                "<tool_call>",
                "\ue000",
                "\u202e",
                "x" * 2000,
                MODEL,
            ),
            *("\x00", "{{ 7 * 7 }}", "../..", "🙂" * 40),
        ]
    ),
)
scalars = st.one_of(st.none(), st.booleans(), numbers, texts)
names = st.one_of(st.sampled_from(["type", "text", "role", "content", "name", "function", "id"]), st.text(max_size=4))
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(names, inner, max_size=4)),
    max_leaves=8,
)
# What would only make a test slow is not left to chance.
token_counts = st.one_of(st.integers(-1, 4), st.sampled_from(["2", 1.5, [], {}, True]))

SAMPLING = [
    *("n", "stop", "seed", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "frequency_penalty"),
    *("presence_penalty", "logit_bias", "ignore_eos", "stream", "stream_options", "model", "logprobs"),
]
CHAT_FIELDS = [
    *SAMPLING,
    *("messages", "top_logprobs", "response_format", "tools", "tool_choice", "parallel_tool_calls", "modalities"),
    *("reasoning_effort", "enable_thinking", "chat_template_kwargs", "audio", "user", "metadata"),
]
messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "developer", "user", "assistant", "tool", "function"])},
        optional={
            "content": st.one_of(
                texts,
                st.lists(
                    st.fixed_dictionaries({"type": st.sampled_from(["text", "refusal"]), "text": texts}), max_size=3
                ),
                values,
            ),
            "name": scalars,
            "tool_call_id": scalars,
            "tool_calls": st.one_of(
                values,
                st.lists(
                    st.fixed_dictionaries(
                        {"id": texts, "type": st.just("function")},
                        optional={
                            "function": st.fixed_dictionaries({"name": texts, "arguments": st.one_of(texts, values)})
                        },
                    ),
                    max_size=2,
                ),
            ),
            "reasoning_content": scalars,
        },
    ),
    max_size=4,
)
tools = st.lists(
    st.fixed_dictionaries(
        {
            "type": st.just("function"),
            "function": st.fixed_dictionaries({"name": texts}, optional={"parameters": values}),
        }
    ),
    max_size=2,
)


def changes(fields: list[str]) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from(fields), values, max_size=3)


def check(server: ServerProcess, path: str, body: dict[str, Any]) -> None:
    data = json.dumps(body).encode()
    reply = server.client.post(path, content=data, headers={"content-type": "application/json"})
    if reply.status_code != 200:
        assert 400 <= reply.status_code < 500, (reply.status_code, reply.text[:500], data)
        expect_error(reply, reply.status_code)
    elif reply.headers["content-type"] == "application/json":
        assert isinstance(reply.json(), dict)
    else:
        *chunks, last = sse_data(reply.text)
        assert last == "[DONE]"
        assert not any("error" in json.loads(chunk) for chunk in chunks)


fuzzing = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@fuzzing
@given(changed=changes(CHAT_FIELDS), count=token_counts)
def test_chat_fields(server: ServerProcess, changed: dict[str, Any], count: Any) -> None:
    check(server, "/v1/chat/completions", {**chat_body(MODEL, "hi", max_tokens=count), **changed})


@fuzzing
@given(history=messages, functions=tools, stream=st.booleans())
def test_chat_messages(server: ServerProcess, history: list[Any], functions: list[Any], stream: bool) -> None:
    body = {"model": MODEL, "messages": history, "tools": functions, "max_tokens": 2, "stream": stream}
    check(server, "/v1/chat/completions", body)
    check(server, "/tokenize", {"model": MODEL, "messages": history})


@fuzzing
@given(changed=changes([*SAMPLING, "prompt", "echo", "best_of", "suffix", "parse_special"]), count=token_counts)
def test_completion_fields(server: ServerProcess, changed: dict[str, Any], count: Any) -> None:
    check(server, "/v1/completions", {**completion_body(MODEL, "hi", max_tokens=count), **changed})


@fuzzing
@given(
    prompt=st.one_of(st.lists(st.integers(-1, 1600), max_size=6), st.lists(st.lists(st.integers(0, 1600)), max_size=3))
)
def test_prompts_of_ids(server: ServerProcess, prompt: Any) -> None:
    check(server, "/v1/completions", completion_body(MODEL, prompt, max_tokens=1))


@fuzzing
@given(
    changed=changes(
        [
            "model",
            "prompt",
            "messages",
            "tools",
            "add_special_tokens",
            "parse_special",
            "chat_template_kwargs",
            "tokens",
        ]
    )
)
def test_tokenize_fields(server: ServerProcess, changed: dict[str, Any]) -> None:
    check(server, "/tokenize", {"model": MODEL, "prompt": "hi", **changed})
    check(server, "/detokenize", {"model": MODEL, "tokens": [1, 2], **changed})


@fuzzing
@given(data=st.one_of(st.binary(max_size=200), st.text('{}[]":,\\u0dte1-.', max_size=60).map(str.encode)))
def test_bytes(server: ServerProcess, data: bytes) -> None:
    reply = server.client.post("/v1/chat/completions", content=data, headers={"content-type": "application/json"})
    expect_error(reply, 400)


@fuzzing
@given(path=st.text(st.characters(codec="latin-1", exclude_characters="?#"), max_size=30), query=st.binary(max_size=10))
def test_paths(server: ServerProcess, path: str, query: bytes) -> None:
    target = b"/" + httpx.QueryParams({"x": path}).__str__()[2:].encode() + b"?" + query.hex().encode()
    url = httpx.URL(server.url).copy_with(raw_path=target)
    reply = server.client.get(url)
    assert reply.status_code < 500
    assert reply.headers["content-type"] == "application/json"


def test_and_then_a_good_request_works(server: ServerProcess) -> None:
    expect_ok(server.post("/v1/chat/completions", chat_body(MODEL, "hi", max_tokens=4)))
    assert server.client.get("/readyz").status_code == 200
