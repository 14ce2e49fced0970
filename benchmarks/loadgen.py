"""A load generator for streamed completions that disturbs what it measures as little as it can.

One thread, epoll, one ``recv`` and one clock reading per arrival; nothing is parsed before the last stream has
ended. Loopback only.

    python -m benchmarks.loadgen --port 11437 --model ID --streams 16 --tokens 128
"""

import argparse
import gc
import itertools
import json
import random
import re
import select
import socket
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

import attrs

from benchmarks.measure import MICRO, MILLI, NANOS, percentile

HOST = "127.0.0.1"
RECEIVE_BYTES = 64 * 1024
SILENCE_SECS = 5.0
LAST_CHUNK = b"0\r\n\r\n"
EVENT = re.compile(rb"data: (.*?)\n\n", re.DOTALL)

WORDS = (
    *("anchor", "birch", "copper", "dune", "ember", "fjord", "glacier", "harvest", "island", "juniper"),
    *("kettle", "lagoon", "meadow", "nettle", "orchard", "pebble", "quarry", "raven", "saddle", "timber"),
)


@attrs.frozen(kw_only=True)
class Call:
    """One streamed request: its path, its JSON body, and when it is sent after the first."""

    path: str
    body: dict[str, Any]
    delay_secs: float = 0.0

    def head_and_body(self) -> bytes:
        """The request as bytes."""
        data = json.dumps(self.body).encode()
        head = f"POST {self.path} HTTP/1.1\r\nhost: {HOST}\r\ncontent-type: application/json\r\n"
        return head.encode() + b"content-length: %d\r\n\r\n" % len(data) + data


@attrs.define(eq=False)
class Stream:
    """What came back for one call. Times are of ``time.perf_counter_ns``."""

    sent_ns: int = 0
    arrivals: list[tuple[int, bytes]] = attrs.field(factory=list)
    error: str | None = None
    content_ns: list[int] = attrs.field(factory=list)
    """Arrival of each event that carries text."""
    last_ns: int = 0
    """Arrival of the last event of a choice, the one with the finish reason included."""
    tokens: int = 0
    prompt_tokens: int = 0
    finish: str | None = None

    @property
    def ttft_ns(self) -> int | None:
        """Time from the request to the first text; None if there was none."""
        return self.content_ns[0] - self.sent_ns if self.content_ns else None

    @property
    def gaps_ns(self) -> list[int]:
        """Times between events with text."""
        return [later - earlier for earlier, later in itertools.pairwise(self.content_ns)]

    def read(self) -> None:
        """Make sense of the bytes, once everything has come."""
        raw = b"".join(data for _, data in self.arrivals)
        status = raw[9:12].decode("ascii", "replace")
        if status != "200":
            body = raw.partition(b"\r\n\r\n")[2]
            self.error = self.error or f"status {status}: {body[:300]!r}"
            return
        ends = []
        total = 0
        for at_ns, data in self.arrivals:
            total += len(data)
            ends.append((total, at_ns))
        position, done = 0, False
        for match in EVENT.finditer(raw):
            while ends[position][0] < match.end():
                position += 1
            at_ns = ends[position][1]
            if match[1] == b"[DONE]":
                done = True
                continue
            self._take(json.loads(match[1]), at_ns)
        if not done and self.error is None:
            self.error = "the stream ended without [DONE]"
        self.arrivals.clear()

    def _take(self, event: dict[str, Any], at_ns: int) -> None:
        if "error" in event:
            self.error = f"error event: {event['error']}"
        usage = event.get("usage")
        if usage:
            self.tokens, self.prompt_tokens = usage["completion_tokens"], usage["prompt_tokens"]
        for choice in event.get("choices", ()):
            self.last_ns = at_ns
            delta = choice.get("delta") or choice
            if delta.get("text") or delta.get("content") or delta.get("reasoning_content"):
                self.content_ns.append(at_ns)
            self.finish = choice.get("finish_reason") or self.finish


@attrs.frozen(kw_only=True)
class Batch:
    """The streams of one run and the CPU time the generator itself took for them."""

    streams: list[Stream]
    generator_cpu_ns: int

    @property
    def errors(self) -> list[str]:
        """What went wrong, one text per failed stream."""
        return [stream.error for stream in self.streams if stream.error is not None]

    @property
    def tokens(self) -> int:
        """Generated tokens of all streams by the server's own count."""
        return sum(stream.tokens for stream in self.streams)

    @property
    def chunks(self) -> int:
        """Events with text."""
        return sum(len(stream.content_ns) for stream in self.streams)

    @property
    def window_ns(self) -> int:
        """From the first request to the last token."""
        return max(stream.last_ns for stream in self.streams) - min(stream.sent_ns for stream in self.streams)

    @property
    def tokens_per_sec(self) -> float:
        """Aggregate throughput over the window, prefill included."""
        return self.tokens / (self.window_ns * NANOS)

    def summary(self) -> dict[str, Any]:
        """The numbers people read; times in ms."""
        ttft = [stream.ttft_ns * NANOS * MILLI for stream in self.streams if stream.ttft_ns is not None]
        gaps = [gap * NANOS * MILLI for stream in self.streams for gap in stream.gaps_ns]
        return {
            "streams": len(self.streams),
            "tokens": self.tokens,
            "prompt_tokens": sum(stream.prompt_tokens for stream in self.streams),
            "tokens_per_sec": self.tokens_per_sec if self.tokens else 0.0,
            "chunks_per_token": self.chunks / self.tokens if self.tokens else float("nan"),
            "ttft_p50_ms": percentile(ttft, 0.5),
            "ttft_max_ms": max(ttft, default=float("nan")),
            "gap_p50_ms": percentile(gaps, 0.5),
            "gap_p99_ms": percentile(gaps, 0.99),
            "gap_max_ms": max(gaps, default=float("nan")),
            "generator_cpu_us_per_token": self.generator_cpu_ns * NANOS * MICRO / self.tokens if self.tokens else None,
            "errors": self.errors,
        }


def completion_call(
    model: str, prompt: Sequence[int] | str, tokens: int, *, delay_secs: float = 0.0, **more: Any
) -> Call:
    """A greedy raw completion of exactly ``tokens`` tokens."""
    prompt = prompt if isinstance(prompt, str) else list(prompt)
    return Call(
        path="/v1/completions", body={**_common(model, tokens), "prompt": prompt, **more}, delay_secs=delay_secs
    )


def chat_call(model: str, text: str, tokens: int, *, delay_secs: float = 0.0, **more: Any) -> Call:
    """A greedy chat answer of exactly ``tokens`` tokens."""
    messages = [{"role": "user", "content": text}]
    body = {**_common(model, tokens), "messages": messages, **more}
    return Call(path="/v1/chat/completions", body=body, delay_secs=delay_secs)


def _common(model: str, tokens: int) -> dict[str, Any]:
    return {
        "model": model,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": tokens,
        "ignore_eos": True,
        "temperature": 0,
        "repetition_penalty": 1.0,
    }


def random_ids(generator: random.Random, count: int, vocabulary: int) -> list[int]:
    """A prompt of ordinary tokens that no cache has seen. Control tokens are at the end of a vocabulary."""
    return [generator.randrange(300, vocabulary * 9 // 10) for _ in range(count)]


def random_text(generator: random.Random, words: int) -> str:
    """A prompt of words that no cache has seen beyond the template."""
    return " ".join(generator.choice(WORDS) for _ in range(words))


def run_batch(port: int, calls: Iterable[Call], *, timeout_secs: float = 600.0) -> Batch:
    """Run all calls at once and return what came back, parsed. Connections are opened before the clock starts."""
    pending = sorted(
        ((call.delay_secs, number, call.head_and_body()) for number, call in enumerate(calls)), reverse=True
    )
    streams = [Stream() for _ in pending]
    sockets = [socket.create_connection((HOST, port), timeout=10) for _ in pending]
    poll = select.epoll()
    by_fd: dict[int, tuple[socket.socket, Stream]] = {}
    for sock, stream in zip(sockets, streams, strict=True):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        by_fd[sock.fileno()] = sock, stream
        poll.register(sock.fileno(), select.EPOLLIN)
    time.sleep(0.05)  # the server accepts them before the first request comes
    gc.collect()
    gc.disable()
    cpu_before = time.process_time_ns()
    try:
        _exchange(poll, by_fd, pending, sockets, streams, timeout_secs)
    finally:
        gc.enable()
        for sock in sockets:
            sock.close()
        poll.close()
    cpu_ns = time.process_time_ns() - cpu_before
    for stream in streams:
        stream.read()
    return Batch(streams=streams, generator_cpu_ns=cpu_ns)


def _exchange(
    poll: select.epoll,
    by_fd: dict[int, tuple[socket.socket, Stream]],
    pending: list[tuple[float, int, bytes]],
    sockets: list[socket.socket],
    streams: list[Stream],
    timeout_secs: float,
) -> None:
    now_ns = time.perf_counter_ns
    started_ns = now_ns()
    deadline_ns = started_ns + int(timeout_secs / NANOS)
    open_streams = len(streams)
    while open_streams:
        while pending and now_ns() >= started_ns + int(pending[-1][0] / NANOS):
            _, number, data = pending.pop()
            streams[number].sent_ns = now_ns()
            sockets[number].sendall(data)
        if now_ns() > deadline_ns:
            for _, stream in by_fd.values():
                stream.error = f"no end within {timeout_secs:g} s"
            return
        wait_secs = SILENCE_SECS
        if pending:
            wait_secs = max(0.0, pending[-1][0] - (now_ns() - started_ns) * NANOS)
        for fd, _ in poll.poll(wait_secs):
            sock, stream = by_fd[fd]
            data = sock.recv(RECEIVE_BYTES)
            stream.arrivals.append((now_ns(), data))
            if data.endswith(LAST_CHUNK) or ((not data or len(stream.arrivals) == 1) and _ended(stream, data)):
                poll.unregister(fd)
                del by_fd[fd]
                open_streams -= 1


def _ended(stream: Stream, data: bytes) -> bool:
    """Whether the answer is over without a last chunk: a closed connection, or an answer that is no stream."""
    if not data:
        stream.error = "the connection was closed"
        return True
    first = stream.arrivals[0][1]
    return not first.startswith(b"HTTP/1.1 200")


def main(arguments: list[str] | None = None) -> int:
    """Run batches against a server that is up already and print their numbers."""
    parser = argparse.ArgumentParser(description="streamed completions against a running server")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--vocabulary", type=int, default=32000, help="prompts are drawn from the first 90%% of it")
    parser.add_argument("--endpoint", choices=["completions", "chat"], default="completions")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0, help="0 = another one each time")
    options = parser.parse_args(arguments)
    generator = random.Random(options.seed or time.time_ns())
    failed = False
    for _ in range(options.rounds):
        batch = run_batch(
            options.port,
            [
                make_call(
                    options.endpoint,
                    generator,
                    options.model,
                    options.prompt_tokens,
                    options.vocabulary,
                    options.tokens,
                )
                for _ in range(options.streams)
            ],
        )
        failed = failed or bool(batch.errors)
        print(json.dumps(batch.summary()), flush=True)
    return int(failed)


def make_call(
    endpoint: str, generator: random.Random, model: str, prompt_tokens: int, vocabulary: int, tokens: int
) -> Call:
    """A call with a fresh prompt of about (chat: a word is one to two tokens) ``prompt_tokens`` tokens."""
    if endpoint == "chat":
        return chat_call(model, random_text(generator, prompt_tokens), tokens)
    return completion_call(model, random_ids(generator, prompt_tokens, vocabulary), tokens)


if __name__ == "__main__":
    sys.exit(main())
