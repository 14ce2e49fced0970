"""CPU cost of one streamed chunk through the HTTP layer, beside plain Quart-Trio on Hypercorn.

    python benchmarks/http_chunk.py [--streams 1 8 16 32] [--chunks 400] [--runs 5] [--interval-ms 10]

The server runs in a process of its own, its clients in another. As in real use all streams get one chunk per tick
(a decode step), each by a wake-up of its own task. Printed is the server's CPU time (user and system) per chunk, the
median of alternating runs, for:

  bare     no HTTP: one task per stream wakes and calls socket.send; the floor
  stock    hypercorn.trio.serve, an async generator as body
  ours     rustedvino.http.serve, StreamingReply
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import threading
from functools import partial

import trio
import trio.testing
from hypercorn.config import Config
from hypercorn.trio import serve as hypercorn_serve
from quart import Response
from quart_trio import QuartTrio

from rustedvino.http.asgi import Send
from rustedvino.http.listener import open_listener
from rustedvino.http.options import ServeOptions
from rustedvino.http.serve import serve
from rustedvino.http.sse import sse_reply

EVENT = (
    b'data: {"id":"chatcmpl-0123456789","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":'
)
EVENT += b'[{"index":0,"delta":{"content":" token"},"finish_reason":null}]}\n\n'


class Ticker:
    """Wakes every stream once per tick and measures the CPU of the ticks."""

    def __init__(self, streams: int, chunks: int, interval_secs: float) -> None:
        self.streams, self.chunks, self.interval_secs = streams, chunks, interval_secs
        self.ready = 0
        self.full = trio.Event()
        self.events = [trio.Event() for _ in range(streams)]
        self.cpu_us_per_chunk = 0.0

    def join(self) -> int:
        self.ready += 1
        if self.ready == self.streams:
            self.full.set()
        return self.ready - 1

    async def run(self) -> None:
        await self.full.wait()
        before = resource.getrusage(resource.RUSAGE_SELF)
        for _ in range(self.chunks):
            await trio.sleep(self.interval_secs)
            events, self.events = self.events, [trio.Event() for _ in range(self.streams)]
            for event in events:
                event.set()
        await trio.testing.wait_all_tasks_blocked()
        after = resource.getrusage(resource.RUSAGE_SELF)
        cpu_secs = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
        self.cpu_us_per_chunk = 1e6 * cpu_secs / (self.chunks * self.streams)


def make_app(ticker: Ticker, kind: str) -> QuartTrio:
    app = QuartTrio("bench")
    app.config["RESPONSE_TIMEOUT"] = None

    @app.get("/")
    async def stream() -> Response:
        if kind == "stock":

            async def generate():
                i = ticker.join()
                for _ in range(ticker.chunks):
                    await ticker.events[i].wait()
                    yield EVENT

            return Response(generate(), content_type="text/event-stream")

        async def produce(send: Send) -> None:
            i = ticker.join()
            for _ in range(ticker.chunks):
                await ticker.events[i].wait()
                await send(EVENT)

        return sse_reply(produce, keepalive_secs=15 if kind == "ours" else 0)

    return app


async def serve_bare(ticker: Ticker, listener: socket.socket) -> None:
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"

    async def one(stream: trio.SocketStream) -> None:
        await stream.receive_some(65536)
        await stream.send_all(head)
        i = ticker.join()
        chunk = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
        for _ in range(ticker.chunks):
            await ticker.events[i].wait()
            await stream.socket.send(chunk)
        await stream.send_all(b"0\r\n\r\n")

    await trio.serve_listeners(one, [trio.SocketListener(trio.socket.from_stdlib_socket(listener))])


async def run_server(kind: str, streams: int, chunks: int, interval_secs: float) -> None:
    ticker = Ticker(streams, chunks, interval_secs)
    listener = open_listener("127.0.0.1", 0, client_stall_secs=60)
    print(listener.getsockname()[1], flush=True)
    async with trio.open_nursery() as nursery:
        if kind == "bare":
            nursery.start_soon(serve_bare, ticker, listener)
        elif kind == "stock":
            config = Config()
            config.bind = [f"fd://{listener.fileno()}"]
            config.errorlog = None
            nursery.start_soon(partial(hypercorn_serve, make_app(ticker, kind), config))
        else:
            nursery.start_soon(partial(serve, make_app(ticker, kind), [listener], options=ServeOptions()))
        await ticker.run()
        await trio.sleep(0.05)
        nursery.cancel_scope.cancel()
    print(json.dumps(ticker.cpu_us_per_chunk), flush=True)


def read_stream(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nhost: bench\r\n\r\n")
        tail = b""
        while not tail.endswith(b"0\r\n\r\n"):
            data = sock.recv(65536)
            if not data:
                return
            tail = (tail + data)[-5:]


def measure(kind: str, streams: int, chunks: int, interval_ms: float) -> float:
    command = [sys.executable, __file__, "--serve", kind, "--streams", str(streams), "--chunks", str(chunks)]
    command += ["--interval-ms", str(interval_ms)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        readers = [threading.Thread(target=read_stream, args=(port,)) for _ in range(streams)]
        for reader in readers:
            reader.start()
        result = float(process.stdout.readline())
        for reader in readers:
            reader.join()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 16, 32])
    parser.add_argument("--chunks", type=int, default=400)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--interval-ms", type=float, default=10.0)
    parser.add_argument("--serve", choices=["bare", "stock", "ours"])
    options = parser.parse_args()
    if options.serve:
        trio.run(run_server, options.serve, options.streams[0], options.chunks, options.interval_ms / 1000)
        return
    kinds = ["bare", "stock", "ours"]
    print(f"{os.cpu_count()} cores, {options.chunks} chunks per stream, a tick each {options.interval_ms} ms")
    print(f"{'streams':>8}" + "".join(f"{kind + ' µs':>12}" for kind in kinds) + f"{'ours/stock':>12}")
    for streams in options.streams:
        results: dict[str, list[float]] = {kind: [] for kind in kinds}
        for _ in range(options.runs):
            for kind in kinds:
                results[kind].append(measure(kind, streams, options.chunks, options.interval_ms))
        medians = {kind: statistics.median(values) for kind, values in results.items()}
        row = "".join(f"{medians[kind]:12.1f}" for kind in kinds)
        print(f"{streams:8}{row}{medians['ours'] / medians['stock']:12.2f}", flush=True)


if __name__ == "__main__":
    main()
