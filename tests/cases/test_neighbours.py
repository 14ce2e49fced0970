"""One model's misfortune is nobody else's: lost workers, bad requests, bad folders, models that went to sleep."""

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.answers import chat_body, completion_body, echo_body, expect_error, expect_ok, whole_text
from tests.support.server import F32, ServerProcess, model_source, sse_data

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
VICTIM, OTHER = "tiny-qwen3", "tiny-llama3"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    models = {VICTIM: {**F32, "kv_cache_gb": 0.1}, OTHER: {**F32, "kv_cache_gb": 0.1}}
    options: dict[str, Any] = {"spare_workers": 0, "supervisor": {"backoff_base_secs": 0.1, "max_restarts": 20}}
    with ServerProcess.serving(tmp_path_factory.mktemp("pair"), models, num_threads=1, **options) as process:
        yield process.wait_ready()


def worker_of(server: ServerProcess, model: str) -> int:
    """Process id of the worker of a model: the one that has the model's weights open."""
    weights = f"/{model}/openvino_model.bin"
    (pid,) = [pid for pid in server.workers() if weights in Path(f"/proc/{pid}/maps").read_text()]
    return pid


def long_stream(server: ServerProcess, model: str, tokens: int, begun: threading.Event, prompt: str = "x") -> list[str]:
    request = completion_body(model, prompt, max_tokens=tokens, ignore_eos=True, temperature=0, stream=True)
    text = ""
    with (
        httpx.Client(base_url=server.url, timeout=60, trust_env=False) as client,
        client.stream("POST", COMPLETIONS, json=request) as reply,
    ):
        assert reply.status_code == 200
        for piece in reply.iter_text():
            text += piece
            if text.count("data: ") > 3:
                begun.set()
    return sse_data(text)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
def test_a_worker_that_dies_in_mid_stream(pair: ServerProcess, number: signal.Signals) -> None:
    """Its stream and its whole answer end at once with an error; the model beside it streams on; it comes back.

    The prompts differ: a request that was there at two deaths would be refused.
    """
    pair.wait_ready()
    expected = long_stream(pair, OTHER, 300, threading.Event())
    with ThreadPoolExecutor(3) as pool:
        events = [threading.Event(), threading.Event()]
        other = pool.submit(long_stream, pair, OTHER, 3000, events[0])
        victim = pool.submit(long_stream, pair, VICTIM, 4000, events[1], number.name)
        assert all(event.wait(30) for event in events)
        body = completion_body(VICTIM, f"y {number.name}", max_tokens=4000, ignore_eos=True)
        whole = pool.submit(httpx.post, pair.url + COMPLETIONS, json=body, timeout=60, trust_env=False)
        pair.wait_for(lambda: running(pair, VICTIM) == 2, "both run", 20)
        os.kill(worker_of(pair, VICTIM), number)
        killed = time.monotonic()
        expect_error(whole.result(20), 503, "worker_lost")
        lost = victim.result(20)
        assert time.monotonic() - killed < 10
        assert any(payload.startswith('{"error"') and '"worker_lost"' in payload for payload in lost[-2:])
        told = other.result(60)
    assert told[-1] == "[DONE]"
    assert [payload for payload in told if payload.startswith('{"error"')] == []
    assert texts(told)[:200] == texts(expected)[:200]
    pair.wait_ready()
    expect_ok(pair.post(COMPLETIONS, completion_body(VICTIM, "z", max_tokens=2)))


def running(server: ServerProcess, model: str) -> int:
    """How many requests the model's actor runs."""
    for line in server.client.get("/metrics").text.splitlines():
        if line.startswith("rustedvino_requests_running{") and f'model="{model}"' in line:
            return int(float(line.rsplit(" ", 1)[1]))
    return 0


def texts(payloads: list[str]) -> str:
    chunks = [json.loads(payload) for payload in payloads if payload != "[DONE]"]
    return "".join(chunk["choices"][0]["text"] for chunk in chunks if chunk.get("choices"))


def test_bad_requests_never_cost_a_model_its_worker(pair: ServerProcess) -> None:
    pair.wait_ready()
    before = {model: worker_of(pair, model) for model in (VICTIM, OTHER)}
    bad = [
        (CHAT, chat_body(VICTIM, "x", max_tokens=0)),
        (CHAT, chat_body(VICTIM, "x", repetition_penalty=0)),
        (CHAT, {"model": VICTIM, "messages": []}),
        (COMPLETIONS, completion_body(VICTIM, "")),
        (COMPLETIONS, completion_body(VICTIM, [])),
        (COMPLETIONS, completion_body(VICTIM, [[]])),
        (COMPLETIONS, completion_body(VICTIM, [[[[[]]]]])),
        (COMPLETIONS, completion_body(VICTIM, [[], ["x"], []])),
        (COMPLETIONS, completion_body(VICTIM, [-1])),
        (COMPLETIONS, completion_body(VICTIM, [2**31])),
        (COMPLETIONS, completion_body(VICTIM, "x" * 200_000)),
        (CHAT, chat_body(VICTIM, "x", temperature=-1)),
        (CHAT, chat_body(VICTIM, "x", top_p=2)),
        (CHAT, chat_body(VICTIM, "x", n=99)),
        ("/tokenize", {"model": VICTIM, "prompt": [[]]}),
    ]
    for path, request in bad:
        expect_error(pair.post(path, request), 400)
    for model in (VICTIM, OTHER):
        expect_ok(pair.post(CHAT, chat_body(model, "x", max_tokens=2)))
    assert {model: worker_of(pair, model) for model in (VICTIM, OTHER)} == before


def test_a_model_that_went_to_sleep_wakes_for_its_next_request(tmp_path: Path) -> None:
    models = {"rv-demo": {"load": "on_demand", "idle_unload_secs": 1}}
    with ServerProcess.serving(tmp_path, models, num_threads=1, spare_workers=0) as server:
        for stream in (False, True, False):
            reply = server.post(CHAT, echo_body("482913", stream=stream))
            assert reply.status_code == 200
            if not stream:
                assert whole_text(expect_ok(reply)) == "482913"
            else:
                assert sse_data(reply.text)[-1] == "[DONE]"
                assert "error" not in reply.text
            server.wait_states({"rv-demo": "not_loaded"}, 30)


def test_a_folder_that_was_put_right_can_be_loaded(tmp_path: Path) -> None:
    """A failed load leaves nothing behind that a later one would trip over."""
    broken = tmp_path / "models" / "mended"
    broken.mkdir(parents=True)
    options: dict[str, Any] = {"supervisor": {"max_restarts": 1, "backoff_base_secs": 0.1}}
    sources = {"mended": broken}
    server = ServerProcess.serving(
        tmp_path, {"mended": {"kind": "text_gen"}}, sources=sources, num_threads=1, spare_workers=0, **options
    )
    with server:
        server.wait_states({"mended": "failed"})
        expect_error(server.post(CHAT, chat_body("mended", "x")), 503, "model_failed")
        for path in model_source("tiny-qwen3").iterdir():
            (broken / path.name).symlink_to(path)
        reply = server.client.post("/v1/admin/models/mended/load", timeout=60)
        assert reply.status_code == 200, reply.text
        expect_ok(server.post(CHAT, chat_body("mended", "x", max_tokens=2)))


ILLEGAL_INSTRUCTION = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("openvino", "openvino_genai"):
            os.kill(os.getpid(), signal.SIGILL)

sys.meta_path.insert(0, Finder())
"""


def test_a_processor_the_runtime_cannot_run_on(tmp_path: Path) -> None:
    """Workers die of an illegal instruction: the server is up and says so."""
    hook = tmp_path / "hook"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(ILLEGAL_INSTRUCTION)
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, [str(hook), os.environ.get("PYTHONPATH")]))}
    options: dict[str, Any] = {"supervisor": {"max_restarts": 1, "backoff_base_secs": 0.1}}
    with ServerProcess.serving(tmp_path, ["rv-demo"], environment=environment, **options) as server:
        server.wait_states({"rv-demo": "failed"})
        error = expect_error(server.post(CHAT, echo_body("x")), 503, "model_failed")
        assert "SIGILL" in error["message"]
        assert expect_ok(server.client.get("/health"))["status"] == "ok"
        assert server.client.get("/readyz").status_code == 503
