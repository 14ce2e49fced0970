"""Many users at once: everybody gets what is theirs, nobody hangs, who leaves makes room."""

import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from tests.support.answers import (
    chat_body,
    completion_body,
    echo_body,
    expect_error,
    expect_ok,
    stream_chunks,
    streamed_text,
    whole_text,
)
from tests.support.server import F32, ServerProcess, model_source

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
USERS = 16


def ask(server: ServerProcess, path: str, body: dict[str, Any], *, stream: bool) -> str:
    """The text of an answer, over a connection of the caller's own thread."""
    if stream:
        return streamed_text(stream_chunks(server, path, body))
    return whole_text(expect_ok(server.post(path, body)))


def leave_early(server: ServerProcess, path: str, body: dict[str, Any], chunks: int) -> None:
    """Start a stream and close its connection after that many pieces."""
    with (
        httpx.Client(base_url=server.url, timeout=60, trust_env=False) as client,
        client.stream("POST", path, json={**body, "stream": True}) as reply,
    ):
        assert reply.status_code == 200
        pieces = reply.iter_raw()
        for _ in range(chunks):
            next(pieces, None)


def test_everybody_gets_their_own_answer(server: ServerProcess) -> None:
    """16 users on each of two models. On the demo model each has an id repeated; on the random model, where one token
    of a neighbour would change all that follow, each answer must equal the one it gets alone."""
    rng = random.Random(7)
    ids = [f"{rng.randrange(10**6):06d}" for _ in range(USERS)]
    echoes = [echo_body(f"user {number}") for number in ids]
    alone = [ask(server, CHAT, body, stream=False) for body in echoes]
    for number, text in zip(ids, alone, strict=True):
        assert number in text, "the demo model does not repeat this id"
    prompts = [
        completion_body(
            "tiny-qwen3",
            f"{number} " * rng.randrange(1, 40),
            temperature=0 if index % 2 else 1,
            seed=index,
            max_tokens=rng.randrange(5, 200),
            ignore_eos=True,
        )
        for index, number in enumerate(ids)
    ]
    expected = [ask(server, COMPLETIONS, body, stream=False) for body in prompts]
    assert len(set(expected)) == USERS
    noise = {
        CHAT: chat_body("rv-demo", "Tell me a story.", max_tokens=400, ignore_eos=True),
        COMPLETIONS: completion_body("tiny-qwen3", "noise", max_tokens=2000, ignore_eos=True),
    }
    starting = threading.Barrier(2 * USERS)

    def user(index: int, path: str, body: dict[str, Any]) -> list[str]:
        own = random.Random(f"{index}{path}")
        starting.wait(60)
        texts = []
        for round_number in range(3):
            texts.append(ask(server, path, body, stream=own.random() < 0.5))
            if own.random() < 0.6:
                leave_early(server, path, {**noise[path], "seed": round_number}, own.randrange(5))
        return texts

    with ThreadPoolExecutor(2 * USERS) as pool:
        on_demo = [pool.submit(user, index, CHAT, body) for index, body in enumerate(echoes)]
        on_tiny = [pool.submit(user, index, COMPLETIONS, body) for index, body in enumerate(prompts)]
        for got, number in zip(on_demo, ids, strict=True):
            for text in got.result(120):
                assert number in text
                assert not any(other in text for other in ids if other != number)
        for got, text in zip(on_tiny, expected, strict=True):
            assert got.result(120) == [text] * 3


def test_eight_at_once_each_get_a_whole_answer(server: ServerProcess) -> None:
    body = chat_body("tiny-qwen3-chat", "hello", max_tokens=30, ignore_eos=True, stream=True)
    with ThreadPoolExecutor(8) as pool:
        texts = list(pool.map(lambda _: ask(server, CHAT, body, stream=True), range(8)))
    assert all(texts)


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Models of few slots: "one" has 1, "eight" has 8, and whoever waits may wait for long."""
    folder = tmp_path_factory.mktemp("narrow")
    models = {"one": {**F32, "max_concurrent_streams": 1}, "eight": {**F32, "max_concurrent_streams": 8}}
    sources = {name: model_source("tiny-qwen3") for name in models}
    options: dict[str, Any] = {"admission_queue_timeout_ms": 60_000, "spare_workers": 0, "num_threads": 1}
    with ServerProcess.serving(folder, models, sources=sources, **options) as process:
        yield process.wait_ready()


async def test_200_at_once_on_a_line_of_128(narrow: ServerProcess) -> None:
    """While all slots are taken, 128 wait and 72 are told to come back, each at once. Then all who wait are served."""
    blocker = chat_body("eight", "x", n=8, max_tokens=4000, ignore_eos=True, stream=True)
    body = chat_body("eight", "x", max_tokens=1)
    refused: list[httpx.Response] = []
    served: list[httpx.Response] = []
    all_refused = trio.Event()
    limits = httpx.Limits(max_connections=None)

    async with httpx.AsyncClient(base_url=narrow.url, timeout=60, limits=limits, trust_env=False) as client:

        async def one() -> None:
            reply = await client.post(CHAT, json=body)
            (served if reply.status_code == 200 else refused).append(reply)
            if len(refused) == 72:
                all_refused.set()

        with trio.fail_after(90):
            async with trio.open_nursery() as nursery, client.stream("POST", CHAT, json=blocker) as holding:
                assert holding.status_code == 200
                for _ in range(200):
                    nursery.start_soon(one)
                await all_refused.wait()
                assert served == []
    assert len(served) == 128
    assert len(refused) == 72
    for reply in refused:
        error = expect_error(reply, 429, "rate_limit_exceeded")
        assert error["type"] == "rate_limit_error"
    for reply in served:
        assert expect_ok(reply)["usage"]["completion_tokens"] == 1


def long_body(**fields: Any) -> dict[str, Any]:
    return {**completion_body("one", "x", max_tokens=4000, ignore_eos=True, temperature=0), **fields}


@pytest.fixture(scope="module")
def full_secs(narrow: ServerProcess) -> float:
    """How long the only slot of "one" is taken by a long request that nobody gives up."""
    started = time.monotonic()
    expect_ok(narrow.post(COMPLETIONS, long_body()))
    return time.monotonic() - started


def stop_mid_stream(server: ServerProcess) -> None:
    leave_early(server, COMPLETIONS, long_body(), 2)


def stop_before_the_first_token(server: ServerProcess) -> None:
    leave_early(server, COMPLETIONS, long_body(prompt=[5] * 4000, max_tokens=90), 0)


def stop_a_whole_answer(server: ServerProcess) -> None:
    patience = httpx.Timeout(60, read=0.2)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(server.url + COMPLETIONS, json=long_body(), timeout=patience, trust_env=False)


def stop_several_choices(server: ServerProcess) -> None:
    leave_early(server, COMPLETIONS, long_body(prompt=["x", "y", "z"]), 3)


def stop_in_the_line(server: ServerProcess) -> None:
    """Three who wait go away before it is their turn: they must not be served first."""
    with (
        httpx.Client(base_url=server.url, timeout=60, trust_env=False) as client,
        client.stream("POST", COMPLETIONS, json=long_body(stream=True)) as holder,
    ):
        assert holder.status_code == 200
        for _ in range(3):
            stop_a_whole_answer(server)


@pytest.mark.parametrize(
    "leave",
    [stop_mid_stream, stop_before_the_first_token, stop_a_whole_answer, stop_several_choices, stop_in_the_line],
)
def test_who_leaves_makes_room(narrow: ServerProcess, full_secs: float, leave: Callable[[ServerProcess], None]) -> None:
    for _ in range(2):
        leave(narrow)
        started = time.monotonic()
        expect_ok(narrow.post(COMPLETIONS, long_body(max_tokens=1)))
        assert time.monotonic() - started < max(1.0, full_secs / 2)


def test_a_stop_string_makes_room(narrow: ServerProcess, full_secs: float) -> None:
    full = whole_text(expect_ok(narrow.post(COMPLETIONS, long_body(max_tokens=20))))
    started = time.monotonic()
    answer = expect_ok(narrow.post(COMPLETIONS, long_body(stop=full[5:8])))
    expect_ok(narrow.post(COMPLETIONS, long_body(max_tokens=1)))
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert time.monotonic() - started < max(1.0, full_secs / 2)


def test_connections_that_break_before_a_request_is_whole(narrow: ServerProcess) -> None:
    head = f"POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 500\r\n"
    for piece in ("", "POST", head, head + "\r\n", head + '\r\n{"model":', head + '\r\n{"model": "one", "messages": ['):
        for _ in range(5):
            with socket.create_connection(("127.0.0.1", narrow.port), timeout=10) as connection:
                connection.sendall(piece.encode())
    expect_ok(narrow.post(COMPLETIONS, long_body(max_tokens=1)))
    assert narrow.client.get("/readyz").status_code == 200


def test_many_streams_leave_no_descriptor_behind(narrow: ServerProcess) -> None:
    body = completion_body("eight", "x", max_tokens=1, stream=True)
    descriptors = Path(f"/proc/{narrow.pid}/fd")

    def some(count: int) -> None:
        with httpx.Client(base_url=narrow.url, timeout=60, trust_env=False) as client:
            for _ in range(count):
                assert client.post(COMPLETIONS, json=body).text.endswith("data: [DONE]\n\n")

    some(20)
    before = len(list(descriptors.iterdir()))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(some, [75] * 4))
    narrow.wait_for(lambda: len(list(descriptors.iterdir())) <= before + 4, "descriptors closed", 10)


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A model of one slot and a short line in which nobody waits for long."""
    models = {"one": {**F32, "max_concurrent_streams": 1}}
    options: dict[str, Any] = {"admission_queue_timeout_ms": 1, "max_queue_depth": 2, "spare_workers": 0}
    sources = {"one": model_source("tiny-qwen3")}
    with ServerProcess.serving(tmp_path_factory.mktemp("hasty"), models, sources=sources, **options) as process:
        yield process.wait_ready()


def test_a_wait_that_is_too_long_ends_with_429(hasty: ServerProcess) -> None:
    with hasty.client.stream("POST", COMPLETIONS, json=long_body(stream=True)) as holding:
        assert holding.status_code == 200
        for stream in (False, True):
            body = long_body(max_tokens=1, stream=stream)
            reply = httpx.post(hasty.url + COMPLETIONS, json=body, timeout=60, trust_env=False)
            expect_error(reply, 429, "rate_limit_exceeded")


def test_the_prompts_of_one_request_wait_for_each_other(hasty: ServerProcess) -> None:
    """A request that waits for its own prompts is not refused for being too slow, nor for filling the line."""
    body = long_body(prompt=list("abcde"), max_tokens=40)
    answers = [whole_text(hasty_answer(hasty, {**body, "prompt": prompt})) for prompt in "abcde"]
    together = hasty_answer(hasty, body)
    assert [whole_text(together, index) for index in range(5)] == answers
    chunks = stream_chunks(hasty, COMPLETIONS, body)
    assert [streamed_text(chunks, index) for index in range(5)] == answers
    expect_error(hasty.post(COMPLETIONS, long_body(n=2)), 400, param="n")


def hasty_answer(server: ServerProcess, body: dict[str, Any]) -> dict[str, Any]:
    """An answer, once whoever came before has left the only slot."""
    answers: list[httpx.Response] = []

    def answered() -> bool:
        answers.append(server.post(COMPLETIONS, body))
        return answers[-1].status_code != 429

    server.wait_for(answered, "the slot", 20)
    return expect_ok(answers[-1])
