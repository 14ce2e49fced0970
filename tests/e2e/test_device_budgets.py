"""A device's budget over HTTP: shared fairly, held for a stream's whole life, and no way to lock up."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.answers import chat_body, completion_body, expect_error, expect_ok
from tests.support.disturb import CHAT, COMPLETIONS, Post, Stream, card, endless, eventually
from tests.support.server import ServerProcess, sse_chunks

A, B = "tiny-qwen3", "tiny-llama3"
STREAMS = 8
BUDGET = 6
STREAM_TOKENS = 48
WINDOW_TOKENS = 10 * STREAMS * STREAM_TOKENS
OPTIONS: dict[str, Any] = {"num_threads": 1, "spare_workers": 0, "max_queue_depth": 64, "shutdown_drain_secs": 0.2}


class Crowd:
    """Clients that each run one chat stream of STREAM_TOKENS after the other until told to stop."""

    def __init__(self, server: ServerProcess) -> None:
        self.over = threading.Event()
        self.served = {A: [0] * STREAMS, B: [0] * STREAMS}
        self._server = server

    def run(self, model: str, number: int) -> None:
        options: Any = {"max_tokens": STREAM_TOKENS, "ignore_eos": True, "stream": True, "enable_thinking": False}
        with httpx.Client(base_url=self._server.url, timeout=60, trust_env=False) as client:
            while not self.over.is_set():
                body = chat_body(model, f"tale {number} of {self.served[model][number]}", **options)
                reply = client.post(CHAT, json=body)
                assert reply.status_code == 200, reply.text
                assert sse_chunks(reply.text)[-1]["choices"][0]["finish_reason"] == "length"
                self.served[model][number] += 1


def generated(server: ServerProcess) -> dict[str, int]:
    """Tokens of both models at one moment; the budget must hold at it."""
    models = expect_ok(server.client.get("/v1/admin/models"))["models"]
    assert sum(model["running"] for model in models) <= BUDGET
    return {model["model_id"]: model["tokens_generated"] for model in models}


def test_two_models_share_a_budget_fairly(tmp_path: Path) -> None:
    """Eight streams each for six places, and one model had them all when the other came. Counted between two moments
    at which all sixteen clients are at it."""
    options = {**OPTIONS, "device_budgets": {"CPU": BUDGET}, "device_admission_queue_timeout_ms": 60_000}
    with (
        ServerProcess.serving(tmp_path, [A, B], **options) as server,
        ThreadPoolExecutor(2 * STREAMS) as pool,
    ):
        server.wait_ready()
        crowd = Crowd(server)
        try:
            clients = [pool.submit(crowd.run, A, number) for number in range(STREAMS)]
            eventually(server, lambda: card(server, A)["running"] == BUDGET, "the first model has all places")
            clients += [pool.submit(crowd.run, B, number) for number in range(STREAMS)]
            eventually(server, lambda: all(map(all, crowd.served.values())), "everybody was served once", 60)
            before = generated(server)

            def enough() -> bool:
                now = generated(server)
                return sum(now.values()) - sum(before.values()) >= WINDOW_TOKENS

            eventually(server, enough, "a window of tokens", 90)
            after = generated(server)
            assert not any(client.done() for client in clients)
        finally:
            crowd.over.set()
        for client in clients:
            client.result(60)
        tokens = {model: after[model] - before[model] for model in (A, B)}
        for model in (A, B):
            assert 0.35 <= tokens[model] / sum(tokens.values()) <= 0.65, tokens


@pytest.fixture(scope="module")
def one_place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server of two models and one place for both, with little patience."""
    options = {**OPTIONS, "device_budgets": {"CPU": 1}, "device_admission_queue_timeout_ms": 200}
    with ServerProcess.serving(tmp_path_factory.mktemp("one"), [A, B], **options) as server:
        yield server.wait_ready()


def test_a_chat_stream_holds_its_place_for_its_whole_life(one_place: ServerProcess) -> None:
    body = chat_body(A, "x", max_tokens=3900, ignore_eos=True, stream=True, enable_thinking=False)
    stream = Stream(one_place, body, CHAT).begun()
    short = {"max_tokens": 2, "ignore_eos": True}
    for model in (B, A):
        bodies = {CHAT: chat_body(model, "y", **short), COMPLETIONS: completion_body(model, "y", **short)}
        for path, other in bodies.items():
            error = expect_error(one_place.post(path, other), 429, "rate_limit_exceeded")
            assert "no place on CPU was free within 0.2 s" in error["message"]
            assert "device_budgets" in error["message"]
    assert not stream.ended
    assert (card(one_place, A)["running"], card(one_place, B)["running"]) == (1, 0)
    stream.leave()
    eventually(one_place, lambda: card(one_place, A)["running"] == 0, "its place is free")
    for model in (B, A):
        expect_ok(one_place.post(CHAT, chat_body(model, "y", **short)))


def test_two_models_with_one_place_never_lock_up(one_place: ServerProcess) -> None:
    """Requests of one and two choices, streams, and clients who leave, all at once: each ends with its answer or the
    429 of its wait, and afterwards the place is free."""
    posts, streams = [], []
    for number in range(8):
        for model in (A, B):
            body = completion_body(model, f"{number}", max_tokens=5, ignore_eos=True, n=1 + number % 2)
            posts.append(Post(one_place, body))
            streams.append(Stream(one_place, endless(model, f"{number}", 5 if number % 2 else 3900)))
    for stream in streams:
        if not stream.ended:
            stream.leave()
    for post in posts:
        post.wait()
        assert post.failure is None
        if post.status == 200:
            assert all(choice["finish_reason"] == "length" for choice in post.answer["choices"])
        else:
            post.error(429, "rate_limit_exceeded")
    for model in (A, B):
        eventually(one_place, lambda model=model: card(one_place, model)["running"] == 0, "nothing runs")
        expect_ok(one_place.post(COMPLETIONS, completion_body(model, "y", max_tokens=2)))
