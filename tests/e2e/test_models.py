"""The list of models, tokens of a text and back, and the health pages."""

import json
from typing import Any

import pytest

from tests.support.answers import expect_error, expect_ok
from tests.support.server import ServerProcess

MODELS = ["rv-demo", "tiny-qwen3", "tiny-qwen3-chat", "tiny-llama3"]
TEXTS = [
    "Hello world",
    " two  spaces ",
    "漢字 🙂 👩‍👩‍👧",
    "a\r\n\tb",
    "e\u0301",
    "\u0000\u007f",
    "<|im_end|>",
    "[INST]",
]


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len(dict(pairs)) == len(pairs), pairs
    return dict(pairs)


class TestModels:
    def test_list_and_retrieve_agree(self, server: ServerProcess) -> None:
        reply = server.client.get("/v1/models")
        expect_ok(reply)
        listing = json.loads(reply.text, object_pairs_hook=unique)
        assert listing["object"] == "list"
        assert [card["id"] for card in listing["data"]] == MODELS
        for card in listing["data"]:
            assert card["object"] == "model"
            assert isinstance(card["created"], int)
            assert card["created"] > 1_500_000_000
            assert card["owned_by"]
            assert card["state"] == "ready"
            assert expect_ok(server.client.get(f"/v1/models/{card['id']}")) == card

    @pytest.mark.parametrize("name", ["nope", "rv-dem", "RV-DEMO", "rv-demo%20", "a/b", "%ff", "..", "rv-demo%2f"])
    def test_unknown(self, server: ServerProcess, name: str) -> None:
        reply = server.client.get(f"/v1/models/{name}")
        assert expect_error(reply, 404)["code"] in ("model_not_found", "unknown_url")


class TestTokenize:
    @pytest.mark.parametrize("model", MODELS)
    def test_text_and_back(self, server: ServerProcess, model: str) -> None:
        for text in TEXTS:
            body = {"model": model, "prompt": text, "add_special_tokens": False, "parse_special": False}
            answer = expect_ok(server.post("/tokenize", body))
            assert answer["count"] == len(answer["tokens"])
            assert answer["max_model_len"] > 0
            back = expect_ok(server.post("/detokenize", {"model": model, "tokens": answer["tokens"]}))
            assert back == {"prompt": text}

    @pytest.mark.parametrize("model", MODELS)
    def test_a_chat(self, server: ServerProcess, model: str) -> None:
        messages = [{"role": "user", "content": "hi"}]
        with_prompt = expect_ok(server.post("/tokenize", {"model": model, "messages": messages}))
        without = expect_ok(
            server.post("/tokenize", {"model": model, "messages": messages, "add_generation_prompt": False})
        )
        assert with_prompt["tokens"][: without["count"]] == without["tokens"]
        assert with_prompt["count"] > without["count"]
        answer = expect_ok(server.post("/v1/chat/completions", {"model": model, "messages": messages, "max_tokens": 1}))
        assert answer["usage"]["prompt_tokens"] == with_prompt["count"]

    def test_a_prompt_counts_what_a_completion_counts(self, server: ServerProcess) -> None:
        for model in MODELS:
            count = expect_ok(server.post("/tokenize", {"model": model, "prompt": "Hello <|im_end|> x"}))["count"]
            body = {"model": model, "prompt": "Hello <|im_end|> x", "max_tokens": 1}
            assert expect_ok(server.post("/v1/completions", body))["usage"]["prompt_tokens"] == count

    def test_options(self, server: ServerProcess) -> None:
        def ids(**fields: Any) -> dict[str, Any]:
            return expect_ok(server.post("/tokenize", {"model": "tiny-llama3", "prompt": "hi <|eot_id|>", **fields}))

        plain = ids()
        assert ids(add_special_tokens=True) == plain
        assert ids(add_special_tokens=False)["tokens"] == plain["tokens"][1:]
        assert ids(parse_special=False)["count"] > plain["count"]
        strings = ids(return_token_strs=True)
        assert len(strings["token_strs"]) == strings["count"]
        assert strings["token_strs"][-1] == "<|eot_id|>"

    def test_nothing(self, server: ServerProcess) -> None:
        answer = expect_ok(server.post("/tokenize", {"model": "rv-demo", "prompt": ""}))
        assert (answer["count"], answer["tokens"]) == (0, [])
        assert expect_ok(server.post("/detokenize", {"model": "rv-demo", "tokens": []})) == {"prompt": ""}

    def test_a_long_text(self, server: ServerProcess) -> None:
        text = "Hello 🙂 " * 20_000
        answer = expect_ok(server.post("/tokenize", {"model": "rv-demo", "prompt": text}))
        assert answer["count"] > 40_000
        back = expect_ok(server.post("/detokenize", {"model": "rv-demo", "tokens": answer["tokens"]}))
        assert back["prompt"] == text

    @pytest.mark.parametrize(
        ("body", "param"),
        [
            ({}, "prompt"),
            ({"prompt": "x", "messages": [{"role": "user", "content": "x"}]}, "messages"),
            ({"prompt": ["x"]}, "prompt"),
            ({"prompt": 7}, "prompt"),
            ({"messages": []}, "messages"),
            ({"messages": [{"role": "x", "content": ""}]}, "messages[0].role"),
        ],
    )
    def test_refused(self, server: ServerProcess, body: dict[str, Any], param: str) -> None:
        expect_error(server.post("/tokenize", {"model": "rv-demo", **body}), 400, param=param)

    @pytest.mark.parametrize(
        ("tokens", "param"),
        [
            (None, "tokens"),
            ("x", "tokens"),
            ([[]], "tokens[0]"),
            ([[], ["x"], []], "tokens[0]"),
            ([1, "a"], "tokens[1]"),
            ([-1], "tokens[0]"),
            ([1, 2, 99_999], "tokens[2]"),
            ([2**31 - 1], "tokens[0]"),
            ([2**64], "tokens[0]"),
            ([1.5], "tokens[0]"),
            ([True], "tokens[0]"),
        ],
    )
    def test_no_tokens(self, server: ServerProcess, tokens: Any, param: str) -> None:
        expect_error(server.post("/detokenize", {"model": "rv-demo", "tokens": tokens}), 400, param=param)

    def test_which_model(self, server: ServerProcess) -> None:
        for path, body in (("/tokenize", {"prompt": "x"}), ("/detokenize", {"tokens": [1]})):
            expect_error(server.post(path, body), 400, param="model")
            expect_error(server.post(path, {**body, "model": "nope"}), 404, "model_not_found", "model")


class TestHealth:
    def test_health(self, server: ServerProcess) -> None:
        answer = expect_ok(server.client.get("/health"))
        assert set(answer) == {"status", "version", "git_hash"}
        assert answer["status"] == "ok"

    def test_readyz(self, server: ServerProcess) -> None:
        assert expect_ok(server.client.get("/readyz"))["status"] == "ready"

    @pytest.mark.parametrize("model", MODELS)
    def test_health_generate(self, server: ServerProcess, model: str) -> None:
        answer = expect_ok(server.client.get("/health_generate", params={"model": model}))
        assert answer["model"] == model
        assert answer["tokens"] == 1
        assert answer["duration_ms"] > 0

    def test_health_generate_chooses(self, server: ServerProcess) -> None:
        assert expect_ok(server.client.get("/health_generate"))["model"] in MODELS

    def test_health_generate_of_none(self, server: ServerProcess) -> None:
        for name in ("nope", ""):
            reply = server.client.get("/health_generate", params={"model": name})
            expect_error(reply, 404, "model_not_found", "model")
