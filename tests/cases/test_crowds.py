"""Thousands of small requests, and many users of one prefix: none is stuck, none gets another's answer."""

import json
import random
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.test_responses import picture
from tests.support.answers import chat_body, completion_body, expect_ok, whole_text
from tests.support.server import F32, ServerProcess, model_source, sse_chunks

COMPLETIONS = "/v1/completions"


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    models: dict[str, Any] = {
        "one": {**F32, "kv_cache_gb": 0.02, "max_concurrent_streams": 32},
        "tiny-vlm": {**F32, "load": "on_demand"},
    }
    sources = {"one": model_source("tiny-qwen3")}
    options: dict[str, Any] = {"num_threads": 1, "spare_workers": 0, "max_num_seqs": 32, "max_queue_depth": 1000}
    options["admission_queue_timeout_ms"] = 60_000
    with ServerProcess.serving(tmp_path_factory.mktemp("crowd"), models, sources=sources, **options) as process:
        yield process.wait_states({"one": "ready"})


def test_many_tiny_requests(crowd: ServerProcess) -> None:
    """Whole and streamed in turn over kept connections; every one is answered."""
    count, users = 2000, 8
    statuses: Counter[tuple[int, bool]] = Counter()
    lock = threading.Lock()

    def user(number: int) -> None:
        rng = random.Random(number)
        with httpx.Client(base_url=crowd.url, timeout=60, trust_env=False) as client:
            for _ in range(count // users):
                stream = rng.random() < 0.5
                body = completion_body("one", [rng.randrange(1000)], max_tokens=1, stream=stream)
                reply = client.post(COMPLETIONS, json=body)
                if stream and reply.status_code == 200:
                    assert sse_chunks(reply.text)[-1]["choices"][0]["finish_reason"] in ("stop", "length")
                with lock:
                    statuses[reply.status_code, stream] += 1

    with ThreadPoolExecutor(users) as pool:
        list(pool.map(user, range(users)))
    assert {status for status, _ in statuses} == {200}
    assert sum(statuses.values()) == count


def test_32_users_of_one_prefix(crowd: ServerProcess) -> None:
    """The blocks of a common head are shared and dropped under pressure, while some of the users leave."""
    rng = random.Random(3)
    head = [rng.randrange(4, 250) for _ in range(200)]
    prompts = [head[: rng.randrange(40, 200)] + [rng.randrange(4, 250) for _ in range(5)] for _ in range(32)]
    shared: dict[str, Any] = {"temperature": 0, "max_tokens": 24, "ignore_eos": True}
    alone = [whole_text(expect_ok(crowd.post(COMPLETIONS, completion_body("one", p, **shared)))) for p in prompts]

    def user(number: int) -> None:
        with httpx.Client(base_url=crowd.url, timeout=60, trust_env=False) as client:
            for turn in range(3):
                body = completion_body("one", prompts[number], **shared)
                if (number + turn) % 4 == 0:
                    with client.stream("POST", COMPLETIONS, json={**body, "stream": True}) as reply:
                        next(reply.iter_raw())
                    continue
                reply = client.post(COMPLETIONS, json=body)
                assert whole_text(expect_ok(reply)) == alone[number]

    pids = crowd.workers()
    with ThreadPoolExecutor(32) as pool:
        list(pool.map(user, range(32)))
    assert set(pids) <= set(crowd.workers()), "a worker died"


def test_two_at_once_on_a_vision_model(crowd: ServerProcess) -> None:
    """Both are answered, each as if it were alone."""
    parts = [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": picture()}}]
    bodies = [
        chat_body("tiny-vlm", content, temperature=0, max_tokens=12, ignore_eos=True)
        for content in (parts, "Hello", parts[::-1], [parts[0]])
    ]
    url = crowd.url + "/v1/chat/completions"

    def ask(body: dict[str, Any]) -> str:
        return whole_text(expect_ok(httpx.post(url, json=body, timeout=60, trust_env=False)))

    alone = [ask(body) for body in bodies]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, bodies * 2)) == alone * 2


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len({key for key, _ in pairs}) == len(pairs), pairs
    return dict(pairs)


def test_no_key_comes_twice(crowd: ServerProcess, tmp_path: Path) -> None:
    """Strict JSON readers refuse such objects."""
    chat = chat_body("one", "x", max_tokens=3, logprobs=True, n=2)
    replies = [
        *(crowd.client.get(path) for path in ("/health", "/readyz", "/v1/models", "/v1/models/one", "/nowhere")),
        crowd.client.get("/v1/admin/models"),
        crowd.post("/v1/chat/completions", chat),
        crowd.post(COMPLETIONS, completion_body("one", ["a", "b"], max_tokens=2)),
        crowd.post("/v1/responses", {"model": "one", "input": "x", "max_output_tokens": 2}),
        crowd.post("/tokenize", {"model": "one", "prompt": "x", "return_token_strs": True}),
        crowd.post("/v1/chat/completions", {**chat, "n": -1}),
    ]
    for reply in replies:
        json.loads(reply.text, object_pairs_hook=unique)
    for path, body in (("/v1/chat/completions", chat), ("/v1/responses", {"model": "one", "input": "x"})):
        text = crowd.post(path, {**body, "stream": True, "max_output_tokens": 2}).text
        for line in text.splitlines():
            if line.startswith("data: {"):
                json.loads(line.removeprefix("data: "), object_pairs_hook=unique)
