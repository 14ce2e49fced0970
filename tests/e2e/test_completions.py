"""Raw completions over HTTP, streamed and whole."""

from typing import Any

import pytest

from tests.support.answers import (
    completion_body,
    expect_error,
    expect_ok,
    stream_chunks,
    streamed_finish,
    streamed_text,
    whole_text,
)
from tests.support.server import ServerProcess

COMPLETIONS = "/v1/completions"
USAGE = {"stream_options": {"include_usage": True}}


def greedy(prompt: Any, model: str = "tiny-qwen3", **fields: Any) -> dict[str, Any]:
    return completion_body(model, prompt, **{"temperature": 0, "max_tokens": 8, "ignore_eos": True, **fields})


def prompt_ids(server: ServerProcess, text: str, model: str = "tiny-qwen3") -> list[int]:
    ids = expect_ok(server.post("/tokenize", {"model": model, "prompt": text}))["tokens"]
    assert isinstance(ids, list)
    return ids


class TestPromptForms:
    TEXTS = ("Hello world", "def f(", "日本語 🙂")

    def test_all_forms_of_a_prompt_give_the_same_answer(self, server: ServerProcess) -> None:
        alone = [expect_ok(server.post(COMPLETIONS, greedy(text))) for text in self.TEXTS]
        expected = [whole_text(answer) for answer in alone]
        assert len(set(expected)) == len(expected)
        ids = [prompt_ids(server, text) for text in self.TEXTS]
        for text, own_ids in zip(expected, ids, strict=True):
            assert whole_text(expect_ok(server.post(COMPLETIONS, greedy(own_ids)))) == text
        for several in (list(self.TEXTS), ids):
            answer = expect_ok(server.post(COMPLETIONS, greedy(several)))
            assert [whole_text(answer, index) for index in range(3)] == expected
            for count in ("prompt_tokens", "completion_tokens", "total_tokens"):
                assert answer["usage"][count] == sum(one["usage"][count] for one in alone)
            chunks = stream_chunks(server, COMPLETIONS, greedy(several, **USAGE))
            assert [streamed_text(chunks, index) for index in range(3)] == expected
            assert chunks[-1]["usage"] == answer["usage"]

    def test_an_array_of_one(self, server: ServerProcess) -> None:
        one = whole_text(expect_ok(server.post(COMPLETIONS, greedy("Hello"))))
        assert whole_text(expect_ok(server.post(COMPLETIONS, greedy(["Hello"])))) == one

    def test_choices_are_numbered_by_prompt_then_by_n(self, server: ServerProcess) -> None:
        body = completion_body("tiny-qwen3", ["a", "b"], temperature=1, seed=5, n=2, max_tokens=6, ignore_eos=True)
        answer = expect_ok(server.post(COMPLETIONS, body))
        texts = [whole_text(answer, index) for index in range(4)]
        alone = [
            whole_text(expect_ok(server.post(COMPLETIONS, {**body, "prompt": prompt})), index)
            for prompt in ("a", "b")
            for index in range(2)
        ]
        assert texts == alone
        assert len(set(texts)) == 4
        chunks = stream_chunks(server, COMPLETIONS, body)
        assert [streamed_text(chunks, index) for index in range(4)] == texts

    @pytest.mark.parametrize(
        ("prompt", "param"),
        [
            ("", "prompt"),
            ([], "prompt"),
            ([[]], "prompt[0]"),
            ([""], "prompt[0]"),
            (["a", ""], "prompt[1]"),
            ([[1], []], "prompt[1]"),
            ([[], ["x"], []], "prompt[0]"),
            ([[[[[]]]]], "prompt[0][0]"),
            ([["x"]], "prompt[0][0]"),
            (["a", [1]], "prompt[1]"),
            ([1, "a"], "prompt[1]"),
            ([1.5], "prompt[0]"),
            ([-1], "prompt[0]"),
            ([True], "prompt[0]"),
            ([None], "prompt[0]"),
            ({}, "prompt"),
            (7, "prompt"),
            (None, "prompt"),
            ([5, 100_000], "prompt"),
            ([[5], [100_000]], "prompt[1]"),
            ([2**31], "prompt[0]"),
            (["a"] * 17, "prompt"),
        ],
    )
    def test_refused(self, server: ServerProcess, prompt: Any, param: str) -> None:
        expect_error(server.post(COMPLETIONS, completion_body("tiny-qwen3", prompt)), 400, param=param)


class TestContext:
    """tiny-qwen3 has a context of 4096 tokens."""

    @pytest.mark.parametrize("stream", [False, True])
    def test_a_prompt_that_leaves_no_room(self, server: ServerProcess, stream: bool) -> None:
        body = greedy([5] * 4096, stream=stream)
        expect_error(server.post(COMPLETIONS, body), 400, "context_length_exceeded", "prompt")
        body = greedy(["x", "hello " * 20_000], stream=stream)
        expect_error(server.post(COMPLETIONS, body), 400, "context_length_exceeded", "prompt[1]")

    def test_the_longest_prompt_gets_one_token(self, server: ServerProcess) -> None:
        answer = expect_ok(server.post(COMPLETIONS, greedy([5] * 4095, max_tokens=20)))
        assert answer["usage"] == {"prompt_tokens": 4095, "completion_tokens": 1, "total_tokens": 4096}
        assert answer["choices"][0]["finish_reason"] == "length"

    def test_tokens_are_clamped_to_what_is_left(self, server: ServerProcess) -> None:
        for fields in ({"max_tokens": 2000}, {"max_tokens": None}):
            answer = expect_ok(server.post(COMPLETIONS, greedy([5] * 4090, **fields)))
            assert answer["usage"]["completion_tokens"] == 6

    def test_text_that_is_too_long_is_refused_at_once(self, server: ServerProcess) -> None:
        """Tens of megabytes of text must not be tokenized to find out."""
        body = greedy("x" * 30_000_000)
        expect_error(server.post(COMPLETIONS, body), 400, "context_length_exceeded", "prompt")


class TestEnd:
    def prompt(self, server: ServerProcess) -> str:
        """A conversation of the demo model that lacks only the end of its turn."""
        messages = [{"role": "user", "content": "Repeat after me: 4829"}]
        body = {"model": "rv-demo", "messages": messages, "enable_thinking": False}
        ids = expect_ok(server.post("/tokenize", body))["tokens"]
        text = expect_ok(server.post("/detokenize", {"model": "rv-demo", "tokens": ids}))["prompt"]
        return str(text) + "4829"

    def test_the_end_as_first_token_is_an_empty_answer(self, server: ServerProcess) -> None:
        body = completion_body("rv-demo", self.prompt(server), temperature=0, max_tokens=5)
        answer = expect_ok(server.post(COMPLETIONS, body))
        assert whole_text(answer) == ""
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert answer["usage"]["completion_tokens"] == 1
        chunks = stream_chunks(server, COMPLETIONS, {**body, **USAGE})
        assert len(chunks) == 2
        assert streamed_finish(chunks) == "stop"
        assert chunks[-1]["usage"] == answer["usage"]

    def test_ignore_eos_goes_on(self, server: ServerProcess) -> None:
        body = completion_body("rv-demo", self.prompt(server), temperature=0, max_tokens=9, ignore_eos=True)
        answer = expect_ok(server.post(COMPLETIONS, body))
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"]["completion_tokens"] == 9

    def test_a_natural_end(self, server: ServerProcess) -> None:
        body = completion_body("rv-demo", "Hello world", temperature=0, max_tokens=50)
        answer = expect_ok(server.post(COMPLETIONS, body))
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert answer["usage"]["completion_tokens"] < 50
        assert "<|" not in whole_text(answer)

    def test_stop_strings(self, server: ServerProcess) -> None:
        full = whole_text(expect_ok(server.post(COMPLETIONS, greedy("Hello", max_tokens=20))))
        stop = full[len(full) // 2 : len(full) // 2 + 3]
        expected = full[: full.index(stop)]
        for form in (stop, [stop], ["\0never", stop]):
            body = greedy("Hello", max_tokens=20, stop=form)
            answer = expect_ok(server.post(COMPLETIONS, body))
            assert whole_text(answer) == expected
            assert answer["choices"][0]["finish_reason"] == "stop"
            assert streamed_text(stream_chunks(server, COMPLETIONS, body)) == expected

    def test_max_tokens_is_exact(self, server: ServerProcess) -> None:
        for tokens in (1, 2, 17):
            answer = expect_ok(server.post(COMPLETIONS, greedy("Hello", max_tokens=tokens)))
            assert answer["usage"]["completion_tokens"] == tokens
            assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("model", ["tiny-qwen3", "tiny-llama3", "rv-demo"])
@pytest.mark.parametrize("prompt", ["Hello 🙂", "漢字 漢字", "👩‍👩‍👧", "a\r\nb\tc", "é"])
def test_a_stream_equals_the_whole_answer(server: ServerProcess, model: str, prompt: str) -> None:
    body = greedy(prompt, model, max_tokens=60)
    answer = expect_ok(server.post(COMPLETIONS, body))
    chunks = stream_chunks(server, COMPLETIONS, {**body, **USAGE})
    assert streamed_text(chunks) == whole_text(answer)
    assert chunks[-1]["usage"] == answer["usage"]


def test_a_prompt_that_ends_inside_a_character_is_continued(server: ServerProcess) -> None:
    """The first byte of a character in the prompt, the rest in the answer: no replacement for our own cut."""
    ids = prompt_ids(server, "Repeat after me: é", "rv-demo")
    for cut in range(1, len(ids) + 1):
        body = greedy(ids[:cut], "rv-demo", max_tokens=12)
        answer = expect_ok(server.post(COMPLETIONS, body))
        assert streamed_text(stream_chunks(server, COMPLETIONS, body)) == whole_text(answer)


def test_echo_repeats_the_prompt(server: ServerProcess) -> None:
    plain = whole_text(expect_ok(server.post(COMPLETIONS, greedy("Hello"))))
    body = greedy("Hello", echo=True)
    assert whole_text(expect_ok(server.post(COMPLETIONS, body))) == "Hello" + plain
    assert streamed_text(stream_chunks(server, COMPLETIONS, body)) == "Hello" + plain
    ids = prompt_ids(server, "Hello")
    assert whole_text(expect_ok(server.post(COMPLETIONS, greedy(ids, echo=True)))) == "Hello" + plain


def test_control_strings_in_a_raw_prompt(server: ServerProcess) -> None:
    text = "<|im_end|>"
    assert len(prompt_ids(server, text, "rv-demo")) == 1

    def prompt_tokens(**fields: Any) -> int:
        answer = expect_ok(server.post(COMPLETIONS, greedy(text, "rv-demo", max_tokens=1, **fields)))
        return int(answer["usage"]["prompt_tokens"])

    assert prompt_tokens() == 1
    assert prompt_tokens(parse_special=False) > 1


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
        ({"n": 9}, "n"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(server: ServerProcess, fields: dict[str, Any], param: str) -> None:
    expect_error(server.post(COMPLETIONS, greedy("x", **fields)), 400, param=param)


def test_the_shape_of_an_answer(server: ServerProcess) -> None:
    answer = expect_ok(server.post(COMPLETIONS, greedy("Hello")))
    assert answer["object"] == "text_completion"
    assert answer["id"].startswith("cmpl-")
    assert answer["model"] == "tiny-qwen3"
    assert set(answer["choices"][0]) == {"index", "text", "logprobs", "finish_reason"}
