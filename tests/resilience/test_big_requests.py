"""Requests that are large beside streams that are not. How fast it is: benchmarks/latency.py."""

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.answers import completion_body, expect_error, expect_ok, whole_text
from tests.support.disturb import COMPLETIONS, HealthWatch, Post, card, endless, eventually, idle, streams
from tests.support.server import F32, ServerProcess

MODEL = "tiny-qwen3"
MIB = 1024 * 1024


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    options: dict[str, Any] = {"num_threads": 1, "spare_workers": 0, "max_num_batched_tokens": 64}
    models = {MODEL: {**F32, "max_concurrent_streams": 17}}
    with ServerProcess.serving(tmp_path_factory.mktemp("big"), models, **options) as process:
        yield process.wait_ready()


def small_objects(size_bytes: int) -> bytes:
    frame = b'{"model":"tiny-qwen3","prompt":"x","max_tokens":1,"extra":[%b{}]}'
    item = b'{"a":1},'
    return frame % (item * ((size_bytes - len(frame)) // len(item)))


def test_a_huge_prompt_and_a_huge_body_beside_sixteen_streams(server: ServerProcess) -> None:
    """Both are refused by name; the streams miss nothing and /health answers all the while."""
    bodies = [endless(MODEL, f"x {number:02}", 800) for number in range(16)]
    expected = [whole_text(expect_ok(server.post(COMPLETIONS, {**body, "stream": False}))) for body in bodies[:3]]
    text = "a long story about the sea " * (2 * MIB // 27)
    prompt = json.dumps(completion_body(MODEL, text, max_tokens=1)).encode()
    objects = small_objects(49 * MIB)
    refused: dict[str, Any] = {}

    def send(name: str, content: bytes) -> None:
        refused[name] = server.client.post(
            COMPLETIONS, content=content, headers={"content-type": "application/json"}, timeout=60
        )

    with HealthWatch(server):
        running = streams(server, bodies)
        senders = [threading.Thread(target=send, args=pair) for pair in (("prompt", prompt), ("objects", objects))]
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join(90)
        assert any(not stream.ended for stream in running), "they were not beside each other"
        texts = [stream.whole() for stream in running]
    expect_error(refused["prompt"], 400, "context_length_exceeded", "prompt")
    expect_error(refused["objects"], 413)
    assert texts[:3] == expected
    assert len(set(texts)) > 1
    assert idle(server, MODEL)


def test_a_long_prompt_beside_eight_streams(server: ServerProcess) -> None:
    """It is cut into steps that the streams share: all get what they get alone."""
    bodies = [endless(MODEL, f"y {number}", 250) for number in range(8)]
    long_body = completion_body(MODEL, [5 + position % 900 for position in range(1500)], max_tokens=12, temperature=0)
    alone = whole_text(expect_ok(server.post(COMPLETIONS, long_body)))
    expected = [whole_text(expect_ok(server.post(COMPLETIONS, {**body, "stream": False}))) for body in bodies]
    long_body["prompt"] = list(long_body["prompt"])
    running = streams(server, bodies)
    guest = Post(server, long_body)
    assert whole_text(guest.result()) == alone
    assert [stream.whole() for stream in running] == expected
    eventually(server, lambda: idle(server, MODEL), "idle")
    assert card(server, MODEL)["restarts"] == 0
