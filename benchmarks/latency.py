"""How the server answers small requests while it is busy, and what a long prompt does to its neighbours.

    python -m benchmarks.latency MODEL_FOLDER

1. /health and /tokenize, asked in turn while 16 streams run.
2. /health, asked without pause while 16 streams run and a 2 MB prompt and a 49 MiB body of small objects arrive.
3. Eight streams, a 1,500-token prompt beside them, and that prompt alone.
"""

import argparse
import contextlib
import itertools
import json
import random
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.loadgen import HOST, Batch, Call, completion_call, random_ids, run_batch
from benchmarks.measure import MILLI, NANOS, load_average, percentile
from benchmarks.target import ServerProcess, vocabulary_of

STREAMS = 16
PROBE_PAUSE_SECS = 0.005
GAP_PAUSE_SECS = 0.001
SHORT_STREAMS = 8
SHORT_TOKENS = 192
LONG_PROMPT_TOKENS = 1500
LONG_ANSWER_TOKENS = 16
BIG_PROMPT_BYTES = 2_000_000
BIG_BODY_BYTES = 49 * 2**20
SETTLE_SECS = 2.0


class Probe:
    """One kept-alive connection that asks and waits for the whole answer."""

    def __init__(self, port: int) -> None:
        self._sock = socket.create_connection((HOST, port), timeout=60)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, request: bytes) -> tuple[int, float]:
        """Status and the time to the last byte in ms. Raises OSError for a connection that is cut."""
        started = time.perf_counter_ns()
        self._sock.sendall(request)
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += self._some()
        head, _, body = answer.partition(b"\r\n\r\n")
        length = next(
            int(line.partition(b":")[2]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")
        )
        while len(body) < length:
            body += self._some()
        return int(head[9:12]), (time.perf_counter_ns() - started) * NANOS * MILLI

    def close(self) -> None:
        """Close the connection."""
        self._sock.close()

    def _some(self) -> bytes:
        data = self._sock.recv(65536)
        if not data:
            raise OSError("the connection was closed")
        return data


def get(path: str) -> bytes:
    """A GET as bytes."""
    return f"GET {path} HTTP/1.1\r\nhost: {HOST}\r\n\r\n".encode()


def post(path: str, body: bytes) -> bytes:
    """A POST of JSON as bytes."""
    head = f"POST {path} HTTP/1.1\r\nhost: {HOST}\r\ncontent-type: application/json\r\n"
    return head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body


@contextlib.contextmanager
def background_streams(server: ServerProcess, streams: int, vocabulary: int) -> Iterator[None]:
    """Keep streams running, by a load generator in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.loadgen", "--port", str(server.port), "--model", server.model]
    command += ["--streams", str(streams), "--tokens", "400", "--rounds", "1000", "--vocabulary", str(vocabulary)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        time.sleep(SETTLE_SECS)
        yield
        if process.poll() is not None:
            raise SystemExit("the background streams ended early: their numbers would be of an idle server")
    finally:
        process.terminate()
        process.wait()
        time.sleep(SETTLE_SECS)  # its streams are cancelled; what follows should not see them


def small_requests(server: ServerProcess, vocabulary: int, secs: float) -> dict[str, Any]:
    """Latency of /health and /tokenize in ms while 16 streams run."""
    requests = {
        "health": get("/health"),
        "tokenize": post(
            "/tokenize",
            json.dumps({"model": server.model, "prompt": "The quick brown fox jumps over the lazy dog. " * 4}).encode(),
        ),
    }
    result: dict[str, Any] = {}
    with background_streams(server, STREAMS, vocabulary):
        probe = Probe(server.port)
        times: dict[str, list[float]] = {name: [] for name in requests}
        statuses: dict[str, set[int]] = {name: set() for name in requests}
        until = time.monotonic() + secs
        while time.monotonic() < until:
            for name, request in requests.items():
                status, took_ms = probe.ask(request)
                statuses[name].add(status)
                times[name].append(took_ms)
                time.sleep(PROBE_PAUSE_SECS)
        probe.close()
    for name, taken in times.items():
        result[name] = {**_spread(taken), "asked": len(taken), "statuses": sorted(statuses[name])}
    return result


def big_bodies(server: ServerProcess, vocabulary: int) -> dict[str, Any]:
    """Largest time in ms without an answer of /health, while each of the big bodies arrives and is dealt with."""
    model = server.model
    text = ("a long story about the sea " * (BIG_PROMPT_BYTES // 27 + 1))[:BIG_PROMPT_BYTES]
    prompt = json.dumps({"model": model, "prompt": text, "max_tokens": 1}).encode()
    item = b'{"a":1},'
    frame = b'{"model":"%b","max_tokens":1,"prompt":"x","extra":[%b{}]}'
    room = BIG_BODY_BYTES - len(frame) - len(model)
    objects = frame % (model.encode(), item * (room // len(item)))
    result: dict[str, Any] = {}
    with background_streams(server, STREAMS, vocabulary):
        result["nothing"] = _gaps(server.port, None)
        result["prompt_2_mb"] = _gaps(server.port, post("/v1/completions", prompt))
        result["objects_49_mib"] = _gaps(server.port, post("/v1/completions", objects))
    return result


def _gaps(port: int, request: bytes | None) -> dict[str, Any]:
    """Ask /health all the time while ``request`` is sent by another thread; without one, for some seconds."""
    outcome: dict[str, Any] = {"status": None, "answered_after_ms": None}

    def send() -> None:
        if request is None:
            time.sleep(5.0)
            return
        probe = Probe(port)
        try:
            outcome["status"], outcome["answered_after_ms"] = probe.ask(request)
        except OSError as error:
            outcome["status"] = str(error)
        probe.close()

    probe, ask = Probe(port), get("/health")
    sender = threading.Thread(target=send)
    times: list[float] = []
    answered: list[int] = []
    for _ in range(50):
        probe.ask(ask)
    sender.start()
    while sender.is_alive():
        times.append(probe.ask(ask)[1])
        answered.append(time.perf_counter_ns())
        time.sleep(GAP_PAUSE_SECS)
    sender.join()
    probe.close()
    gaps = [(later - earlier) * NANOS * MILLI for earlier, later in itertools.pairwise(answered)]
    return {**_spread(times), "largest_gap_ms": max(gaps, default=0.0), **outcome}


def long_prompt(server: ServerProcess, vocabulary: int, runs: int) -> dict[str, Any]:
    """Gaps of eight streams alone and beside a long prompt, and the prompt's TTFT beside them and alone; in ms,
    medians of the runs. The window is from the prompt's request to its first text."""
    generator = random.Random(time.time_ns())
    model = server.model

    def short() -> list[Call]:
        return [
            completion_call(model, random_ids(generator, 32, vocabulary), SHORT_TOKENS) for _ in range(SHORT_STREAMS)
        ]

    def long(delay_secs: float) -> Call:
        ids = random_ids(generator, LONG_PROMPT_TOKENS, vocabulary)
        return completion_call(model, ids, LONG_ANSWER_TOKENS, delay_secs=delay_secs)

    rows = []
    for _ in range(runs):
        quiet = _checked(run_batch(server.port, short()))
        alone = _checked(run_batch(server.port, [long(0.0)]))
        delay_secs = quiet.window_ns * NANOS / 3
        both = _checked(run_batch(server.port, [*short(), long(delay_secs)]))
        guest = max(both.streams, key=lambda stream: stream.prompt_tokens)
        hosts = [stream for stream in both.streams if stream is not guest]
        assert guest.ttft_ns is not None
        assert alone.streams[0].ttft_ns is not None
        begin, end = guest.sent_ns, guest.content_ns[0]
        within = [
            (later - earlier) * NANOS * MILLI
            for stream in hosts
            for earlier, later in itertools.pairwise(stream.content_ns)
            if later >= begin and earlier <= end
        ]
        rows.append(
            {
                "quiet_p99_ms": _gap_p99(quiet.streams),
                "beside_p99_ms": _gap_p99(hosts),
                "window_p99_ms": percentile(within, 0.99),
                "window_max_ms": max(within, default=float("nan")),
                "ttft_alone_ms": alone.streams[0].ttft_ns * NANOS * MILLI,
                "ttft_beside_ms": guest.ttft_ns * NANOS * MILLI,
            }
        )
    result = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
    for name, over, under in (
        ("p99_ratio", "beside_p99_ms", "quiet_p99_ms"),
        ("window_p99_ratio", "window_p99_ms", "quiet_p99_ms"),
        ("ttft_ratio", "ttft_beside_ms", "ttft_alone_ms"),
    ):
        result[name] = statistics.median(row[over] / row[under] for row in rows)
    return result


def _gap_p99(streams: list[Any]) -> float:
    return percentile([gap * NANOS * MILLI for stream in streams for gap in stream.gaps_ns], 0.99)


def _checked(batch: Batch) -> Batch:
    if batch.errors:
        raise SystemExit(batch.errors[0])
    return batch


def _spread(values: list[float]) -> dict[str, float]:
    return {
        "p50_ms": percentile(values, 0.5),
        "p99_ms": percentile(values, 0.99),
        "max_ms": max(values, default=float("nan")),
    }


def run(folder: Path, *, secs: float, runs: int, threads: int | None = None) -> dict[str, Any]:
    """All three parts for one model."""
    vocabulary = vocabulary_of(folder)
    with ServerProcess(folder, threads=threads) as server:
        return {
            "model": folder.name,
            "load_average": load_average(),
            "small_requests": small_requests(server, vocabulary, secs),
            "big_bodies": big_bodies(server, vocabulary),
            "long_prompt": long_prompt(server, vocabulary, runs),
        }


def main(arguments: list[str] | None = None) -> int:
    """Measure and print as JSON."""
    parser = argparse.ArgumentParser(description="latency beside running streams")
    parser.add_argument("folder", type=Path, metavar="MODEL_FOLDER")
    parser.add_argument("--secs", type=float, default=20.0, help="duration of the first part")
    parser.add_argument("--runs", type=int, default=5, help="repetitions of the third part")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    result = run(options.folder.resolve(), secs=options.secs, runs=options.runs, threads=options.threads)
    text = json.dumps(_rounded(result), indent=2)
    print(text)
    if options.json is not None:
        options.json.write_text(text)
    return 0


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 3)
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    return value


if __name__ == "__main__":
    sys.exit(main())
