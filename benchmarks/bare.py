"""The upper bound: the runtime's continuous-batching loop with nothing around it, in a process of its own.

python -m benchmarks.bare MODEL_FOLDER --streams 1,8,16 --tokens 128
"""

import argparse
import gc
import multiprocessing
import os
import random
import statistics
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import attrs

from benchmarks.measure import MILLI, NANOS, percentile
from benchmarks.target import bare_spec, prompts_of, settings_of, vocabulary_of, write_settings

NICENESS = 10  # that of a worker


@attrs.frozen(kw_only=True)
class BareResult:
    """One batch. Times in nanoseconds; ``ttft_ns`` by request, ``step_ns`` by step."""

    tokens: int
    window_ns: int
    ttft_ns: list[int]
    step_ns: list[int]
    cpu_ns: int

    @property
    def tokens_per_sec(self) -> float:
        """Aggregate throughput over the window, prefill included."""
        return self.tokens / (self.window_ns * NANOS)


class BareLoop:
    """The pipeline in this process. Imports the runtime."""

    def __init__(self, spec: dict[str, Any]) -> None:
        import openvino_genai as genai

        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = 0
        scheduler.num_kv_blocks = spec["num_kv_blocks"]
        scheduler.max_num_batched_tokens = spec["max_num_batched_tokens"]
        scheduler.max_num_seqs = spec["max_num_seqs"]
        scheduler.dynamic_split_fuse = True
        scheduler.enable_prefix_caching = spec["enable_prefix_caching"]
        self._pipeline: Any = genai.ContinuousBatchingPipeline(
            spec["path"], scheduler, spec["device"], spec["properties"]
        )
        self._requests = 0

    def run(self, prompts: list[list[int]], tokens: int) -> BareResult:
        """Generate exactly ``tokens`` tokens, greedily, for each prompt."""
        import numpy as np
        import openvino as ov
        import openvino_genai as genai

        config = genai.GenerationConfig()
        config.max_new_tokens = tokens
        config.ignore_eos = True
        config.repetition_penalty = 1.0
        inputs = [ov.Tensor(np.array([ids], dtype=np.int64)) for ids in prompts]
        pipeline, now_ns = self._pipeline, time.perf_counter_ns
        first_ns = [0] * len(inputs)
        step_ns: list[int] = []
        gc.collect()
        cpu_before = time.process_time_ns()
        started_ns = now_ns()
        handles = []
        for tensor in inputs:
            self._requests += 1  # an id may never repeat
            handles.append(pipeline.add_request(self._requests, tensor, config))
        silent = list(range(len(handles)))
        while pipeline.has_non_finished_requests():
            before = now_ns()
            pipeline.step()
            after = now_ns()
            step_ns.append(after - before)
            if silent:
                for number in silent:
                    if handles[number].can_read():
                        first_ns[number] = after
                silent = [number for number in silent if not first_ns[number]]
        ended_ns = now_ns()
        cpu_ns = time.process_time_ns() - cpu_before
        produced = 0
        for handle in handles:
            while handle.can_read():
                produced += sum(len(output.generated_ids) for output in handle.read().values())
        if produced != tokens * len(prompts):
            raise RuntimeError(f"the runtime gave {produced} tokens where {tokens * len(prompts)} were asked for")
        return BareResult(
            tokens=produced,
            window_ns=ended_ns - started_ns,
            ttft_ns=[at_ns - started_ns for at_ns in first_ns],
            step_ns=step_ns,
            cpu_ns=cpu_ns,
        )


class BareProcess:
    """A BareLoop in a process of its own, at a worker's priority. Idle between runs, it costs no CPU."""

    def __init__(self, spec: dict[str, Any]) -> None:
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, spec), daemon=True)
        self._process.start()
        theirs.close()
        self._answer()

    @property
    def pid(self) -> int:
        """Process id."""
        assert self._process.pid is not None
        return self._process.pid

    def run(self, prompts: list[list[int]], tokens: int) -> BareResult:
        """See BareLoop.run. Raises SystemExit when the process failed."""
        self._ours.send((prompts, tokens))
        result = self._answer()
        assert isinstance(result, BareResult)
        return result

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ours.close()
        self._process.join(30)
        if self._process.is_alive():
            self._process.kill()

    def _answer(self) -> Any:
        try:
            return self._ours.recv()
        except EOFError:
            raise SystemExit("the bare loop's process ended; its traceback is above") from None


def _serve(connection: Connection, spec: dict[str, Any]) -> None:
    os.nice(NICENESS)
    loop = BareLoop(spec)
    connection.send("ready")
    while True:
        try:
            prompts, tokens = connection.recv()
        except EOFError:
            os._exit(0)  # native threads may still run: an orderly end can crash in their destructors
        connection.send(loop.run(prompts, tokens))


def main(arguments: list[str] | None = None) -> int:
    """Print the bare loop's numbers."""
    parser = argparse.ArgumentParser(description="the bare runtime loop")
    parser.add_argument("folder", type=Path, metavar="MODEL_FOLDER")
    parser.add_argument("--streams", default="1,8,16")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--threads", type=int)
    options = parser.parse_args(arguments)
    folder = options.folder.resolve()
    generator = random.Random(time.time_ns())
    with tempfile.TemporaryDirectory() as scratch:
        config = write_settings(Path(scratch) / "config.json", settings_of(folder, threads=options.threads))
        spec = bare_spec(config, folder)
    vocabulary = vocabulary_of(folder)
    with BareProcess(spec) as bare:
        for streams in (int(word) for word in options.streams.split(",")):
            bare.run(prompts_of(generator, streams, options.prompt_tokens, vocabulary), 8)
            results = [
                bare.run(prompts_of(generator, streams, options.prompt_tokens, vocabulary), options.tokens)
                for _ in range(options.runs)
            ]
            middle = sorted(results, key=lambda result: result.tokens_per_sec)[len(results) // 2]
            ttft = percentile(middle.ttft_ns, 0.5) * NANOS * MILLI
            step = statistics.median(middle.step_ns) * NANOS * MILLI
            print(f"{streams} streams: {middle.tokens_per_sec:.1f} tok/s, TTFT p50 {ttft:.1f} ms, step {step:.2f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
