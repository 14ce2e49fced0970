"""What a worker adds to the runtime's step, measured on a real worker process with no server around it.

    python -m benchmarks.worker_overhead MODEL_FOLDER --streams 1,8,16

Two shares, each of the time of steady decode steps (every sequence running, no prompt in work):

  step   (total - inside) / total of the worker's own clock: reading the results of a step
  loop   all time between two frames that is not inside the runtime: the above, encoding and sending the frame,
         looking for messages, and whatever took the processor away meanwhile

The reader of the frames is at the lowest priority, below the worker: on two cores it would otherwise take its turn
from the worker at every frame, which is the server's cost and shows in the throughput of `benchmarks.compare`.
"""

import argparse
import itertools
import json
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import trio

from benchmarks.measure import MICRO, NANOS, percentile, table
from benchmarks.target import bare_spec, prompts_of, settings_of, vocabulary_of, write_settings
from rustedvino.hub.process import WorkerProcess

LOWEST = 19
GREEDY = {
    "temperature": 0.0,
    "ignore_eos": True,
    "eos_token_ids": [],
    "repetition_penalty": 1.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "logprobs": False,
}


@attrs.frozen(kw_only=True)
class Overhead:
    """Shares of the step and its median length."""

    streams: int
    steps: int
    step_share: float
    loop_share: float
    outside_p50_us: float
    step_p50_ms: float


@attrs.frozen(kw_only=True)
class _Frame:
    arrived_ns: int
    deltas: list[Any]
    inside_us: int
    total_us: int


@attrs.define(eq=False)
class _Recorder:
    """Takes the frames of one worker."""

    running: int = 0
    frames: list[_Frame] = attrs.field(factory=list)
    loaded: trio.Event = attrs.field(factory=trio.Event)
    finished: trio.Event = attrs.field(factory=trio.Event)
    failure: str | None = None

    def take(self, message: list[Any]) -> None:
        """The worker's handler."""
        arrived_ns = time.perf_counter_ns()
        match message:
            case ["step", deltas, [_, inside_us, total_us, *_]]:
                self.frames.append(_Frame(arrived_ns=arrived_ns, deltas=deltas, inside_us=inside_us, total_us=total_us))
                self.running -= sum(1 for delta in deltas if delta[2] is not None)
                if self.running <= 0:
                    self.finished.set()
            case ["loaded", _]:
                self.loaded.set()
            case [kind, *rest]:
                self.failure = f"{kind}: {rest}"
                self.loaded.set()
                self.finished.set()


def measure(folder: Path, streams: Sequence[int], *, tokens: int, threads: int | None = None) -> list[Overhead]:
    """Run one worker through batches of each size. Raises SystemExit when the worker fails."""

    async def run() -> list[Overhead]:
        return await _measure(folder, streams, tokens=tokens, threads=threads)

    # A thread cannot raise its priority again without rights: one of its own ends with it.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(trio.run, run).result()


async def _measure(folder: Path, streams: Sequence[int], *, tokens: int, threads: int | None) -> list[Overhead]:
    with tempfile.TemporaryDirectory() as scratch:
        config = write_settings(Path(scratch) / "config.json", settings_of(folder, threads=threads))
        spec = bare_spec(config, folder)
    recorder = _Recorder()
    worker = WorkerProcess(role="model", stall_secs=60.0)
    results: list[Overhead] = []
    async with trio.open_nursery() as nursery:
        await nursery.start(worker.run)
        await worker.hello()
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), LOWEST)  # after the worker has got its own
        worker.handler = recorder.take
        worker.begin_work(600.0)
        worker.send("load", {"kind": "text_gen", **spec, "warmup_prompt": [1, 2, 3, 4], "probe_strings": []})
        await recorder.loaded.wait()
        generator = random.Random(time.time_ns())
        number = 0
        for count in streams:
            prompts = prompts_of(generator, count, 64, vocabulary_of(folder))
            recorder.frames.clear()
            recorder.running, recorder.finished = count, trio.Event()
            for ids in prompts:
                number += 1
                prompt = np.asarray(ids, dtype="<i4").tobytes()
                worker.send("submit", number, prompt, {**GREEDY, "max_new_tokens": tokens})
            await recorder.finished.wait()
            if recorder.failure is not None:
                raise SystemExit(recorder.failure)
            results.append(_overhead(count, recorder.frames))
        worker.kill("killed", "the benchmark is over")
        await worker.ended.wait()
        nursery.cancel_scope.cancel()
    return results


def _overhead(streams: int, frames: list[_Frame]) -> Overhead:
    steady = [
        (before, frame)
        for before, frame in itertools.pairwise(frames)
        if len(before.deltas) == len(frame.deltas) == streams and all(delta[2] is None for delta in before.deltas)
    ]
    inside = sum(frame.inside_us for _, frame in steady)
    total = sum(frame.total_us for _, frame in steady)
    between = [(frame.arrived_ns - before.arrived_ns) * NANOS * MICRO for before, frame in steady]
    outside = [period - frame.inside_us for period, (_, frame) in zip(between, steady, strict=True)]
    return Overhead(
        streams=streams,
        steps=len(steady),
        step_share=(total - inside) / total,
        loop_share=1 - inside / sum(between),
        outside_p50_us=percentile(outside, 0.5),
        step_p50_ms=percentile([frame.inside_us for _, frame in steady], 0.5) / 1000,
    )


def render(results: Sequence[Overhead]) -> str:
    """The results as a Markdown table."""
    head = ("streams", "steps", "step ms p50", "outside µs p50", "share of step", "share of loop")
    rows = [
        (
            str(each.streams),
            str(each.steps),
            f"{each.step_p50_ms:.2f}",
            f"{each.outside_p50_us:.0f}",
            f"{each.step_share:.2%}",
            f"{each.loop_share:.2%}",
        )
        for each in results
    ]
    return table(head, rows)


def main(arguments: list[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="what a worker adds to the runtime's step")
    parser.add_argument("folder", type=Path, metavar="MODEL_FOLDER")
    parser.add_argument("--streams", default="1,8,16")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args(arguments)
    counts = [int(word) for word in options.streams.split(",")]
    results = measure(options.folder.resolve(), counts, tokens=options.tokens, threads=options.threads)
    print(render(results))
    if options.json is not None:
        options.json.write_text(json.dumps([attrs.asdict(each) for each in results], indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
