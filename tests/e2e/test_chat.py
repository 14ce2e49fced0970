"""Chats over HTTP, streamed and whole."""

import itertools
from typing import Any

import httpx
import pytest

from tests.support.answers import (
    chat_body,
    echo_body,
    expect_error,
    expect_ok,
    stream_chunks,
    streamed_finish,
    streamed_text,
    whole_text,
)
from tests.support.server import ServerProcess

CHAT = "/v1/chat/completions"
USAGE = {"stream_options": {"include_usage": True}}
NASTY_TEXTS = ["🙂é漢字👩‍👩‍👧", "안녕하세요", "naïve café ﬁ ½", "مرحبا", "नमस्ते", "e\u0301\u0323", "a\u200db", "𝔘𝔫𝔦"]


def test_the_demo_model_answers_sensibly(server: ServerProcess) -> None:
    answer = expect_ok(server.post(CHAT, chat_body("rv-demo", "What can you do?", temperature=0)))
    assert "I can chat a little" in whole_text(answer)
    choice = answer["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["role"] == "assistant"
    assert answer["object"] == "chat.completion"
    assert answer["model"] == "rv-demo"
    assert answer["id"].startswith("chatcmpl-")
    assert answer["model_family"] == "qwen3"


def test_a_stream_has_a_role_then_text_then_a_finish(server: ServerProcess) -> None:
    chunks = stream_chunks(server, CHAT, echo_body("alpha 17"))
    assert streamed_text(chunks) == "alpha 17"
    assert streamed_finish(chunks) == "stop"
    assert len(chunks) > 4


@pytest.mark.parametrize("text", NASTY_TEXTS)
def test_a_stream_equals_the_whole_answer_byte_for_byte(server: ServerProcess, text: str) -> None:
    body = echo_body(text, max_tokens=120)
    answer = expect_ok(server.post(CHAT, body))
    chunks = stream_chunks(server, CHAT, {**body, **USAGE})
    assert streamed_text(chunks) == whole_text(answer)
    assert streamed_finish(chunks) == answer["choices"][0]["finish_reason"]
    assert chunks[-1]["usage"] == answer["usage"]


@pytest.mark.parametrize("text", ["🙂é漢字👩‍👩‍👧", "漢字 🙂", "é"])
def test_split_characters_arrive_whole(server: ServerProcess, text: str) -> None:
    """The demo model writes these byte by byte."""
    chunks = stream_chunks(server, CHAT, echo_body(text))
    assert streamed_text(chunks) == text
    assert "\ufffd" not in streamed_text(chunks)


@pytest.mark.parametrize("model", ["tiny-qwen3", "tiny-llama3", "tiny-qwen3-chat"])
@pytest.mark.parametrize("seed", range(3))
def test_random_models_stream_what_they_answer(server: ServerProcess, model: str, seed: int) -> None:
    """Random bytes: incomplete and invalid sequences on the way and at the end."""
    body = chat_body(model, f"{seed} 漢字 🙂", temperature=0, max_tokens=150)
    answer = expect_ok(server.post(CHAT, body))
    chunks = stream_chunks(server, CHAT, {**body, **USAGE})
    assert streamed_text(chunks) == whole_text(answer)
    assert chunks[-1]["usage"] == answer["usage"]
    assert streamed_finish(chunks) == answer["choices"][0]["finish_reason"]


def test_an_invalid_byte_does_not_hold_back_the_rest(server: ServerProcess) -> None:
    chunks = stream_chunks(server, CHAT, chat_body("tiny-llama3", "x", temperature=0, max_tokens=300, ignore_eos=True))
    assert "\ufffd" in streamed_text(chunks)
    sizes = [len(chunk["choices"][0]["delta"].get("content", "")) for chunk in chunks]
    assert max(sizes) < len(streamed_text(chunks)) / 4
    assert len(chunks) > 20


def test_limits_on_tokens(server: ServerProcess) -> None:
    def run(**fields: Any) -> tuple[int, str]:
        answer = expect_ok(server.post(CHAT, chat_body("tiny-qwen3", "hi", temperature=0, ignore_eos=True, **fields)))
        return answer["usage"]["completion_tokens"], answer["choices"][0]["finish_reason"]

    assert run(max_tokens=5) == (5, "length")
    assert run(max_completion_tokens=3) == (3, "length")
    assert run(max_tokens=9, max_completion_tokens=3) == (3, "length")
    assert run(max_tokens=1) == (1, "length")
    assert run(max_tokens=3.0) == (3, "length")


def test_a_huge_max_tokens_is_clamped_to_the_context(server: ServerProcess) -> None:
    answer = expect_ok(server.post(CHAT, echo_body("7", max_tokens=2**31 - 1)))
    assert whole_text(answer) == "7"


def test_no_max_tokens_runs_to_the_end(server: ServerProcess) -> None:
    answer = expect_ok(server.post(CHAT, echo_body("482913")))
    assert whole_text(answer) == "482913"
    assert answer["choices"][0]["finish_reason"] == "stop"


class TestStop:
    TEXT = "one two three"

    def test_every_split_of_a_stop_string(self, server: ServerProcess) -> None:
        """A stop string never shows, not even its beginning, wherever it starts and ends."""
        text = self.TEXT
        spans = [(start, end) for start in range(1, len(text)) for end in (start + 1, start + 3, len(text))]
        for start, end in spans:
            stop = text[start : min(end, len(text))]
            expected = text[: text.index(stop)]
            body = echo_body(text, stop=stop)
            answer = expect_ok(server.post(CHAT, body))
            chunks = stream_chunks(server, CHAT, {**body, **USAGE})
            assert whole_text(answer) == expected, stop
            assert streamed_text(chunks) == expected, stop
            assert answer["choices"][0]["finish_reason"] == streamed_finish(chunks) == "stop"
            assert chunks[-1]["usage"] == answer["usage"], stop

    def test_the_earliest_of_a_list(self, server: ServerProcess) -> None:
        body = echo_body(self.TEXT, stop=["three", "zzz", "two"])
        assert whole_text(expect_ok(server.post(CHAT, body))) == "one "
        assert streamed_text(stream_chunks(server, CHAT, body)) == "one "

    @pytest.mark.parametrize("stop", ["threex", "one two threeX", "eE", "🙂"])
    def test_a_beginning_that_does_not_come_true_is_not_lost(self, server: ServerProcess, stop: str) -> None:
        body = echo_body(self.TEXT, stop=[stop])
        assert whole_text(expect_ok(server.post(CHAT, body))) == self.TEXT
        assert streamed_text(stream_chunks(server, CHAT, body)) == self.TEXT

    def test_inside_a_joined_emoji(self, server: ServerProcess) -> None:
        body = echo_body("ab👩‍👩‍👧c", stop="👧")
        expected = "ab👩‍👩‍"
        assert whole_text(expect_ok(server.post(CHAT, body))) == expected
        assert streamed_text(stream_chunks(server, CHAT, body)) == expected

    def test_at_the_first_character(self, server: ServerProcess) -> None:
        body = echo_body(self.TEXT, stop="o")
        answer = expect_ok(server.post(CHAT, body))
        assert whole_text(answer) == ""
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert streamed_text(stream_chunks(server, CHAT, body)) == ""

    def test_cut_by_length_inside_a_possible_stop(self, server: ServerProcess) -> None:
        full = expect_ok(server.post(CHAT, echo_body(self.TEXT)))["usage"]["completion_tokens"]
        for tokens in range(1, full):
            cut = whole_text(expect_ok(server.post(CHAT, echo_body(self.TEXT, max_tokens=tokens))))
            body = echo_body(self.TEXT, max_tokens=tokens, stop=cut + "never")
            assert whole_text(expect_ok(server.post(CHAT, body))) == cut
            chunks = stream_chunks(server, CHAT, body)
            assert streamed_text(chunks) == cut
            assert streamed_finish(chunks) == "length"

    @pytest.mark.parametrize("stop", [None, []])
    def test_none(self, server: ServerProcess, stop: Any) -> None:
        assert whole_text(expect_ok(server.post(CHAT, echo_body(self.TEXT, stop=stop)))) == self.TEXT

    @pytest.mark.parametrize(
        ("stop", "param"),
        [("", "stop"), (["a", ""], "stop[1]"), (list("abcde"), "stop"), (7, "stop"), ([7], "stop[0]")],
    )
    def test_refused(self, server: ServerProcess, stop: Any, param: str) -> None:
        expect_error(server.post(CHAT, echo_body("x", stop=stop)), 400, param=param)


class TestSampling:
    def texts(self, server: ServerProcess, count: int, **fields: Any) -> list[str]:
        body = chat_body("tiny-qwen3", "hello", max_tokens=12, ignore_eos=True, **fields)
        return [whole_text(expect_ok(server.post(CHAT, body))) for _ in range(count)]

    def test_greedy_is_equal_whatever_else_is_said(self, server: ServerProcess) -> None:
        texts = [
            *self.texts(server, 2, temperature=0),
            *self.texts(server, 1, temperature=0, top_p=0.3, top_k=3, min_p=0.5, seed=7),
            *self.texts(server, 1, temperature=0.0, top_k=-1),
        ]
        assert len(set(texts)) == 1

    def test_a_seed_reproduces(self, server: ServerProcess) -> None:
        assert len(set(self.texts(server, 3, temperature=1, seed=11))) == 1
        assert len(set(self.texts(server, 2, temperature=1, seed=2**64 - 1))) == 1
        assert self.texts(server, 1, temperature=1, seed=11) != self.texts(server, 1, temperature=1, seed=12)

    def test_without_a_seed_answers_differ(self, server: ServerProcess) -> None:
        assert len(set(self.texts(server, 3, temperature=1))) == 3
        assert len(set(self.texts(server, 3))) == 3

    def test_a_temperature_near_zero_samples_without_fault(self, server: ServerProcess) -> None:
        greedy = self.texts(server, 1, temperature=0)
        for temperature in (1e-320, 1e-40, 1e-6):
            assert self.texts(server, 1, temperature=temperature) == greedy
        self.texts(server, 1, temperature=1e-5)
        self.texts(server, 1, temperature=1, top_p=1e-320)
        self.texts(server, 1, temperature=1, min_p=1e-320, repetition_penalty=1e-320)

    def test_the_choices_of_one_request_differ_and_reproduce(self, server: ServerProcess) -> None:
        body = chat_body("tiny-qwen3", "hello", max_tokens=8, temperature=1, seed=3, n=3, ignore_eos=True)
        answer = expect_ok(server.post(CHAT, body))
        texts = [whole_text(answer, index) for index in range(3)]
        assert len(set(texts)) == 3
        assert answer["usage"]["completion_tokens"] == 24
        chunks = stream_chunks(server, CHAT, {**body, **USAGE})
        assert [streamed_text(chunks, index) for index in range(3)] == texts
        assert chunks[-1]["usage"] == answer["usage"]

    def test_penalties_change_the_answer(self, server: ServerProcess) -> None:
        plain = self.texts(server, 1, temperature=0)
        assert self.texts(server, 1, temperature=0, frequency_penalty=0, presence_penalty=0) == plain
        assert self.texts(server, 1, temperature=0, repetition_penalty=1.0) == plain
        assert self.texts(server, 1, temperature=0, presence_penalty=-2) != plain
        assert self.texts(server, 1, temperature=0, repetition_penalty=0.3) != plain

    @pytest.mark.parametrize(
        "fields",
        [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1}, {"min_p": 1.0, "temperature": 2}, {"top_k": 1, "temperature": 2}],
    )
    def test_a_choice_of_one_candidate_is_greedy(self, server: ServerProcess, fields: dict[str, Any]) -> None:
        greedy = self.texts(server, 1, temperature=0)
        assert self.texts(server, 2, **{"temperature": 1, "top_k": 0, "top_p": 1, **fields}) == greedy * 2

    def test_the_model_file_gives_what_the_request_leaves_out(self, server: ServerProcess) -> None:
        report = expect_ok(server.post(CHAT, chat_body("rv-demo", "hi", temperature=0.7)))["sampling"]
        assert report["temperature"] == 0.7
        assert report["top_k"] == 20
        report = expect_ok(server.post(CHAT, chat_body("rv-demo", "hi", top_k=5, seed=4)))["sampling"]
        assert report["top_k"] == 5
        assert report["seed"] == 4

    @pytest.mark.parametrize(
        ("field", "values"),
        [
            ("temperature", [-1, 2.1, "0.5", True, [], {}]),
            ("top_p", [0, -0.1, 1.1, "1"]),
            ("top_k", [-2, 1.5, "3"]),
            ("min_p", [-0.1, 1.1]),
            ("repetition_penalty", [0, -1, 11]),
            ("frequency_penalty", [-2.1, 2.1]),
            ("presence_penalty", [-2.1, 2.1]),
            ("seed", [1.5, "1", 2**64, -(2**63) - 1]),
            ("n", [0, -1, 9, 1.5, "1"]),
            ("max_tokens", [0, -1, 2**31, 10**30, 1.5, "3", True]),
            ("max_completion_tokens", [0, -1]),
            ("stream", ["true", 1]),
            ("ignore_eos", ["yes"]),
            ("stream_options", [[], "x", {"include_usage": 1}]),
            ("model", ["", 7, None]),
            ("enable_thinking", ["no"]),
        ],
    )
    def test_out_of_range_is_named(self, server: ServerProcess, field: str, values: list[Any]) -> None:
        for value in values:
            fields = {"stream": True} if field == "stream_options" else {}
            error = expect_error(server.post(CHAT, {**chat_body("tiny-qwen3", "x"), **fields, field: value}), 400)
            assert error["param"] is not None
            assert error["param"].split(".")[0] == field
            assert field in error["message"]


def test_null_is_absent_and_unknown_fields_are_ignored(server: ServerProcess) -> None:
    nothing = dict.fromkeys(
        [
            *("max_tokens", "max_completion_tokens", "n", "stop", "seed", "top_p", "top_k", "min_p", "tools", "stream"),
            *("stream_options", "response_format", "tool_choice", "logit_bias", "user", "metadata", "logprobs"),
            *("frequency_penalty", "presence_penalty", "repetition_penalty", "ignore_eos", "top_logprobs", "store"),
            *("parallel_tool_calls", "reasoning_effort", "service_tier", "chat_template_kwargs", "modalities"),
        ]
    )
    more = {"foo": 1, "user": "me", "metadata": {"a": "b"}, "store": False, "x": {"y": [1, {"z": None}]}}
    plain = whole_text(expect_ok(server.post(CHAT, echo_body("9"))))
    assert whole_text(expect_ok(server.post(CHAT, {**echo_body("9"), **nothing}))) == plain == "9"
    assert whole_text(expect_ok(server.post(CHAT, {**echo_body("9"), **more}))) == plain


class TestMessages:
    def test_content_as_parts(self, server: ServerProcess) -> None:
        parts = [{"type": "text", "text": "Repeat after me: "}, {"type": "text", "text": "482913"}]
        body = {**echo_body(""), "messages": [{"role": "user", "content": parts}]}
        assert whole_text(expect_ok(server.post(CHAT, body))) == "482913"

    def test_a_developer_is_a_system(self, server: ServerProcess) -> None:
        def tokens(role: str) -> list[int]:
            messages = [{"role": role, "content": "Be brief."}, {"role": "user", "content": "hi"}]
            return expect_ok(server.post("/tokenize", {"model": "rv-demo", "messages": messages}))["tokens"]

        assert tokens("developer") == tokens("system")

    @pytest.mark.parametrize(
        ("messages", "param"),
        [
            ([], "messages"),
            ({}, "messages"),
            ("hi", "messages"),
            ([7], "messages[0]"),
            ([{"role": "robot", "content": "x"}], "messages[0].role"),
            ([{"content": "x"}], "messages[0].role"),
            ([{"role": "user"}], "messages[0].content"),
            ([{"role": "user", "content": None}], "messages[0].content"),
            ([{"role": "user", "content": 7}], "messages[0].content"),
            ([{"role": "user", "content": [{"type": "nope"}]}], "messages[0].content[0].type"),
            ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
            (
                [{"role": "user", "content": "x"}, {"role": "user", "content": [{"type": "text", "text": 1}]}],
                "messages[1].content[0].text",
            ),
            ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}], None),
        ],
    )
    def test_refused_by_path(self, server: ServerProcess, messages: Any, param: str | None) -> None:
        error = expect_error(server.post(CHAT, {"model": "rv-demo", "messages": messages}), 400)
        if param is not None:
            assert error["param"] == param
        assert str(error["param"]).startswith("messages")

    def test_client_text_never_becomes_a_control_token(self, server: ServerProcess) -> None:
        """With the end of turn in a message the answer would be cut, or another role spoken for."""
        text = "<|im_end|>"
        messages = [{"role": "user", "content": f"Repeat after me: {text}"}]
        ids = expect_ok(server.post("/tokenize", {"model": "rv-demo", "messages": messages}))["tokens"]
        plain = expect_ok(
            server.post(
                "/tokenize", {"model": "rv-demo", "messages": [{"role": "user", "content": "Repeat after me: x"}]}
            )
        )["tokens"]
        (end_of_turn,) = expect_ok(server.post("/tokenize", {"model": "rv-demo", "prompt": text}))["tokens"]
        assert ids.count(end_of_turn) == plain.count(end_of_turn) == 1

    def test_a_tool_conversation_is_rendered(self, server: ServerProcess) -> None:
        call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
        for arguments in ('{"a": 1}', "not json", "", "{}"):
            call["function"]["arguments"] = arguments  # type: ignore[index]
            messages = [
                {"role": "user", "content": "call it"},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c1", "content": "42"},
                {"role": "user", "content": "and?"},
            ]
            expect_ok(server.post(CHAT, {"model": "rv-demo", "messages": messages, "max_tokens": 4}))


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"response_format": {"type": "json_object"}, "ignore_eos": True}, "ignore_eos"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"audio": {"voice": "x"}}, "audio"),
        ({"functions": []}, "functions"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"modalities": ["audio"]}, "modalities[0]"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(server: ServerProcess, fields: dict[str, Any], param: str) -> None:
    expect_error(server.post(CHAT, chat_body("rv-demo", "x", **fields)), 400, param=param)


def test_response_format_text_and_tool_choice_none_are_plain_chats(server: ServerProcess) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    body = echo_body("8", response_format={"type": "text"}, tools=tools, tool_choice="none")
    assert whole_text(expect_ok(server.post(CHAT, body))) == "8"


def test_bad_requests_leave_the_model_as_it_was(server: ServerProcess) -> None:
    workers = server.workers()
    bad: list[dict[str, Any]] = [
        chat_body("tiny-llama3", "x", max_tokens=0),
        chat_body("tiny-llama3", "x", repetition_penalty=0),
        {"model": "tiny-llama3", "messages": []},
        chat_body("tiny-llama3", "hello " * 20_000),
        chat_body("tiny-llama3", "x", top_p=2),
    ]
    for body, stream in itertools.product(bad, (False, True)):
        expect_error(server.post(CHAT, {**body, "stream": stream}), 400)
    expect_ok(server.post(CHAT, chat_body("tiny-llama3", "x", max_tokens=2)))
    assert server.client.get("/readyz").status_code == 200
    assert server.workers() == workers


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_over_the_context(server: ServerProcess, stream: bool) -> None:
    for words in (5_000, 200_000):
        body = chat_body("tiny-qwen3", "hello " * words, stream=stream)
        error = expect_error(server.post(CHAT, body), 400, "context_length_exceeded", "messages")
        assert "4096" in error["message"]


def test_an_unknown_model_is_never_another(server: ServerProcess) -> None:
    for model in ("nope", "rv-demo ", "RV-DEMO", "tiny-qwen3/", "../models/rv-demo", "rv"):
        expect_error(server.post(CHAT, chat_body(model, "x")), 404, "model_not_found", "model")


def test_content_type_variants(server: ServerProcess) -> None:
    data = httpx.Request("POST", "http://x", json=echo_body("5")).content
    for kind in ("application/json; charset=utf-8", "Application/JSON", "application/vnd.api+json"):
        reply = server.client.post(CHAT, content=data, headers={"content-type": kind})
        assert whole_text(expect_ok(reply)) == "5"
