"""Everything a server writes, over a session full of secrets: no key, no part of one, no prompt."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tests.support.answers import chat_body, expect_ok
from tests.support.disturb import card, misbehaving
from tests.support.server import F32, ServerProcess

USER: Final = "qz7Vw2Kd9Lm4Xr1Tb8Ns"
ADMIN: Final = "hp3Jc6Yf0Gu5Ea2Ro9Wi"
WRONG: Final = "tx8Zk4Bv7Qd1Mh6Sg3Ln"
PART_CHARS: Final = 8
"""As much of a key as must not be seen anywhere; metrics show six."""
MODEL: Final = "tiny-qwen3-chat"
CHAT: Final = "/v1/chat/completions"


class Words:
    """Words that no program has of its own, each a part of some prompt."""

    def __init__(self) -> None:
        self.given: list[str] = []

    def __call__(self) -> str:
        self.given.append(f"wombat{len(self.given):03d}x")
        return self.given[-1]


def parts(key: str) -> Iterator[str]:
    return (key[start : start + PART_CHARS] for start in range(len(key) - PART_CHARS + 1))


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def serving(folder: Path, **settings: Any) -> ServerProcess:
    (folder / "config.keys.json").write_text(json.dumps({"api_keys": [USER], "admin_api_keys": [ADMIN]}))
    (folder / "config.keys.json").chmod(0o600)
    environment = misbehaving(f"step_error={folder / 'trigger'}")
    settings = {"num_threads": 1, "spare_workers": 0, "supervisor": {"backoff_base_secs": 0.1}, **settings}
    return ServerProcess.serving(folder, {MODEL: F32}, environment=environment, **settings)


def conversation(word: Words, **fields: Any) -> dict[str, Any]:
    """A chat with a word in every text of it."""
    call = {"id": "c1", "type": "function", "function": {"name": f"f_{word()}", "arguments": f'{{"a": "{word()}"}}'}}
    properties = {f"p_{word()}": {"type": "string", "enum": [word()]}}
    parameters = {"type": "object", "properties": properties}
    return {
        "model": MODEL,
        "messages": [
            {"role": "system", "content": word()},
            {"role": "user", "content": [{"type": "text", "text": word()}]},
            {"role": "assistant", "content": word(), "reasoning_content": word(), "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": word()},
            {"role": "user", "name": word(), "content": word()},
        ],
        "tools": [{"type": "function", "function": {"name": "g", "description": word(), "parameters": parameters}}],
        "stop": [word()],
        "user": word(),
        "max_tokens": 4,
        **fields,
    }


def good_and_bad(word: Words) -> list[tuple[str, Any]]:
    """Requests of an inference key: right ones, and wrong ones of many kinds. Bytes are sent as they are."""
    schema = {"type": "object", "properties": {word(): {"const": word()}}}
    named = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    refused = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"not": {"const": word()}}}}
    return [
        (CHAT, conversation(word)),
        (CHAT, conversation(word, stream=True)),
        (CHAT, conversation(word, temperature=word())),
        (CHAT, chat_body(MODEL, word(), response_format=named, max_tokens=2)),
        (CHAT, chat_body(MODEL, word(), response_format=refused)),
        (CHAT, chat_body(MODEL, [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{word()}"}}])),
        (CHAT, {"model": MODEL, "messages": [{"role": word(), "content": word()}]}),
        (CHAT, chat_body(MODEL, word() * 9000)),
        (CHAT, chat_body(MODEL, word(), chat_template_kwargs={word(): word()}, max_tokens=2)),
        (CHAT, f'{{"model": "{MODEL}", "messages": [{{"role": "user", "content": "{word()}"'.encode()),
        (CHAT, f'"{word()}"'.encode()),
        ("/v1/completions", {"model": MODEL, "prompt": [word(), word()], "max_tokens": 2, "echo": True}),
        ("/v1/completions", {"model": MODEL, "prompt": word(), "max_tokens": 2, "stream": True}),
        ("/v1/completions", {"model": MODEL, "prompt": {"text": word()}}),
        ("/v1/responses", {"model": MODEL, "input": word(), "instructions": word(), "max_output_tokens": 2}),
        ("/v1/responses", {"model": MODEL, "input": [{"role": "user", "content": word(), "type": word()}]}),
        ("/tokenize", {"model": MODEL, "prompt": word()}),
        ("/tokenize", {"model": MODEL, "messages": [{"role": "user", "content": word()}]}),
    ]


def test_no_secret_and_no_prompt_is_written(tmp_path: Path) -> None:
    word = Words()
    replies: list[str] = []

    def ask(method: str, path: str, *, json_type: bool = False, **options: Any) -> None:
        if json_type:
            options["headers"] = {"content-type": "application/json", **options["headers"]}
        reply = server.client.request(method, path, **options)
        replies.append(f"{reply.status_code} {reply.headers} {reply.text}")

    def ask_all() -> None:
        for path, body in good_and_bad(word):
            content = body if isinstance(body, bytes) else json.dumps(body).encode()
            ask("POST", path, json_type=True, content=content, headers=bearer(USER))

    with serving(tmp_path, log_level="debug") as server:
        server.wait_ready()
        ask_all()
        # Keys in every place but a path, alone and among other things.
        for key in (USER, ADMIN, WRONG):
            for headers in (
                bearer(key),
                {"x-api-key": key},
                {"authorization": f"Basic {key}"},
                {"authorization": f"{key} {key}"},
                {"cookie": f"session={key}", **bearer(USER)},
                {"user-agent": f"curl {key}", "referer": f"http://x/?k={key}", **bearer(USER)},
                {"x-forwarded-for": key, "accept": f"text/{key}", **bearer(USER)},
            ):
                ask("POST", f"{CHAT}?api_key={key}", content=b"{}", headers=headers)
                ask("GET", f"/v1/models?token={key}", headers=headers)
            ask("POST", CHAT, json=chat_body(MODEL, f"my key is {key}", max_tokens=1), headers=bearer(USER))
            ask("POST", CHAT, json={"api_key": key, "messages": []}, headers=bearer(USER))
            ask("POST", CHAT, json_type=True, content=f'{{"key": "{key}"'.encode(), headers=bearer(USER))
            for path in (f"/v1/admin/models/{MODEL}", f"/v1/admin/models/{MODEL}/load"):
                ask("PATCH", path, json={"priority": 1, "api_key": key}, headers=bearer(ADMIN))
        # Workers that die by themselves and from outside, in the middle of a prompt.
        (tmp_path / "trigger").write_text("[GPU] CL_OUT_OF_RESOURCES")
        ask("POST", CHAT, json=chat_body(MODEL, word(), max_tokens=50), headers=bearer(USER))
        assert '"code":"gpu_poisoned"' in replies[-1]
        ask("POST", CHAT, json=chat_body(MODEL, word(), max_tokens=1), headers=bearer(USER))
        server.client.headers.update(bearer(ADMIN))
        os.kill(card(server, MODEL)["worker_pid"], signal.SIGKILL)
        ask_all()
        ask("PATCH", f"/v1/admin/models/{MODEL}", json={"priority": 7, "capabilities": ["x"]}, headers=bearer(ADMIN))
        written = {
            "metrics": server.client.get("/metrics").text,
            "log tail": server.client.get("/v1/admin/logs/tail?lines=10000").text,
            "config": (tmp_path / "config.json").read_text(),
        }
        server.stop()
        written["standard output and error"] = server.log
    assert '"priority": 7' in written["config"]
    assert "signal SIGKILL" in written["log tail"]
    for line in (f"POST {CHAT} 200", f"POST {CHAT} 400", f"POST {CHAT} 401", "POST /v1/responses 200", "DEBUG"):
        assert line in written["standard output and error"]
    assert f'key_suffix="{USER[-6:]}"' in written["metrics"]
    for place, text in written.items():
        for given in word.given:
            assert given not in text, (place, given)
    for place, text in [*written.items(), *(("an answer", reply) for reply in replies)]:
        for key in (USER, ADMIN, WRONG):
            for part in parts(key):
                if place == "an answer" and "my key is" in text:
                    continue  # a model may say what it was told
                assert part not in text, (place, part, text[max(0, text.find(part) - 200) :][:400])


def test_prompts_are_logged_where_that_is_wanted(tmp_path: Path) -> None:
    word = Words()
    with serving(tmp_path, log_prompts=True, log_format="json") as server:
        server.wait_ready()
        server.client.headers.update(bearer(ADMIN))
        ids = expect_ok(server.post("/tokenize", {"model": MODEL, "prompt": f"ids {word()}"}))["tokens"]
        chat = {
            "model": MODEL,
            "messages": [{"role": "system", "content": word()}, {"role": "user", "content": word()}],
        }
        asked = {
            "chat": (CHAT, {**chat, "max_tokens": 1}),
            "stream": (CHAT, {**chat_body(MODEL, f"my key is {USER}, {word()}"), "max_tokens": 1, "stream": True}),
            "raw": ("/v1/completions", {"model": MODEL, "prompt": word(), "max_tokens": 1}),
            "ids": ("/v1/completions", {"model": MODEL, "prompt": ids, "max_tokens": 1}),
            "responses": ("/v1/responses", {"model": MODEL, "input": word(), "max_output_tokens": 1}),
        }
        for name, (path, body) in asked.items():
            assert server.post(path, body, headers={"x-request-id": f"number-{name}"}).status_code == 200
        lines = [json.loads(line) for line in server.client.get("/v1/admin/logs/tail?lines=10000").json()["lines"]]
        prompts = {line["request_id"]: line for line in lines if line["logger"] == "rustedvino.prompts"}
        assert set(prompts) == {f"number-{name}" for name in asked}
        for line in prompts.values():
            assert line["model"] == MODEL
            assert line["level"] == "info"
        assert "<|im_start|>" in prompts["number-chat"]["message"]
        assert "my key is ***, " in prompts["number-stream"]["message"]
        assert "ids " in prompts["number-ids"]["message"]
        text = json.dumps(lines)
        assert [given for given in word.given if given not in text] == []
        server.stop()
        for part in parts(USER):
            assert part not in server.log
