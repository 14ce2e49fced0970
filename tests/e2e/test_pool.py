"""A KV pool smaller than the model's context: what can never fit is refused, the rest takes turns."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rustedvino.config.types import gb_to_bytes
from rustedvino.hub.model_files import inspect_folder
from rustedvino.hub.pool import BLOCK_SIZE_CPU
from tests.support.answers import completion_body, expect_error, expect_ok, stream_chunks, streamed_text, whole_text
from tests.support.server import F32, ServerProcess, model_source

COMPLETIONS = "/v1/completions"
POOL_BLOCKS = 24


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    shape = inspect_folder(model_source("tiny-qwen3")).kv_shape
    assert shape is not None
    pool_bytes = (POOL_BLOCKS + 0.5) * shape.block_bytes(BLOCK_SIZE_CPU, "f32")
    models = {"tiny-qwen3": {**F32, "kv_cache_gb": pool_bytes / gb_to_bytes(1)}}
    options: dict[str, Any] = {"num_threads": 1, "spare_workers": 0, "admission_queue_timeout_ms": 60_000}
    with ServerProcess.serving(tmp_path_factory.mktemp("pool"), models, **options) as process:
        yield process.wait_ready()


def body(prompt: Any, **fields: Any) -> dict[str, Any]:
    return completion_body("tiny-qwen3", prompt, **{"temperature": 0, "ignore_eos": True, **fields})


def pool_tokens(server: ServerProcess) -> int:
    """How many tokens the pool holds, by what it leaves to an answer without max_tokens."""
    answer = expect_ok(server.post(COMPLETIONS, body([5])))
    assert answer["choices"][0]["finish_reason"] == "length"
    return int(answer["usage"]["total_tokens"])


def test_an_answer_without_a_limit_gets_what_the_pool_holds(small: ServerProcess) -> None:
    assert pool_tokens(small) == POOL_BLOCKS * BLOCK_SIZE_CPU


@pytest.mark.parametrize("stream", [False, True])
def test_what_can_never_fit_is_refused(small: ServerProcess, stream: bool) -> None:
    size = pool_tokens(small)
    error = expect_error(small.post(COMPLETIONS, body([5] * (size + 64), stream=stream)), 400)
    assert str(size) in error["message"]
    expect_error(small.post(COMPLETIONS, body([5], max_tokens=size + 64, stream=stream)), 400, param="max_tokens")
    expect_error(small.post(COMPLETIONS, body([5], n=8, max_tokens=size // 4, stream=stream)), 400)
    assert expect_ok(small.post(COMPLETIONS, body([5], max_tokens=2)))["usage"]["completion_tokens"] == 2


def test_requests_that_fit_alone_take_turns(small: ServerProcess) -> None:
    size = pool_tokens(small)
    tokens = size * 2 // 3
    bodies = [body([5 + index], max_tokens=tokens) for index in range(6)]
    alone = [whole_text(expect_ok(small.post(COMPLETIONS, one))) for one in bodies]
    with ThreadPoolExecutor(6) as threads:
        together = list(threads.map(lambda one: streamed_text(stream_chunks(small, COMPLETIONS, one)), bodies))
    assert together == alone


def test_the_prompts_of_one_request_take_turns(small: ServerProcess) -> None:
    tokens = pool_tokens(small) * 2 // 3
    answer = expect_ok(small.post(COMPLETIONS, body([[5], [6], [7]], max_tokens=tokens)))
    assert answer["usage"]["completion_tokens"] == 3 * tokens
