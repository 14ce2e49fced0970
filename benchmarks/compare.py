"""The server against the bare runtime loop, in turn, on the same model, prompts and sampling parameters.

    python -m benchmarks.compare MODEL_FOLDER --streams 1,8,16,32 --runs 6 --json result.json

Each run is a pair: both sides get the same fresh prompts, one after the other, the order changing from run to run.
Ratios are taken within a pair, so that what else the machine does hits both alike; the median of the pairs is shown.
Each run has processes of its own, for which pages of memory one got makes it up to 2 % faster or slower for its life;
the one that was loaded last is mostly the faster one, so the order of loading changes too. An even number of runs is
therefore a fair one.
"""

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import attrs

from benchmarks.bare import BareProcess, BareResult
from benchmarks.loadgen import Batch, Call, completion_call, run_batch
from benchmarks.measure import MICRO, MILLI, NANOS, cpu_ns, load_average, percentile, pss_bytes, table
from benchmarks.target import ServerProcess, bare_spec, prompts_of, settings_of, vocabulary_of, write_settings

WARM_UP_TOKENS = 16


@attrs.frozen(kw_only=True)
class Pair:
    """One run of both sides with the same prompts. CPU times in µs per token, other times in ms."""

    bare_tokens_per_sec: float
    server_tokens_per_sec: float
    bare_ttft_p50_ms: float
    server_ttft_p50_ms: float
    bare_ttft_max_ms: float
    server_ttft_max_ms: float
    bare_step_p50_ms: float
    bare_cpu_us: float
    gap_p50_ms: float
    gap_p99_ms: float
    gap_max_ms: float
    chunks_per_token: float
    server_cpu_us: float
    worker_cpu_us: float
    generator_cpu_us: float
    load_average: float

    @property
    def throughput_ratio(self) -> float:
        """Server over bare; 1 is the bound."""
        return self.server_tokens_per_sec / self.bare_tokens_per_sec

    @property
    def ttft_p50_ratio(self) -> float:
        """Server over bare, median of the streams."""
        return self.server_ttft_p50_ms / self.bare_ttft_p50_ms

    @property
    def ttft_max_ratio(self) -> float:
        """Server over bare, last of the streams."""
        return self.server_ttft_max_ms / self.bare_ttft_max_ms


NUMBERS = (
    *(field.name for field in attrs.fields(Pair)),
    "throughput_ratio",
    "ttft_p50_ratio",
    "ttft_max_ratio",
)


class Comparison:
    """Both sides, loaded and idle, for one model."""

    def __init__(self, server: ServerProcess, bare: BareProcess, vocabulary: int, seed: int) -> None:
        self._server = server
        self._bare = bare
        self._vocabulary = vocabulary
        self._random = random.Random(seed)

    def warm_up(self, streams: int, prompt_tokens: int) -> None:
        """A short batch on both sides: buffers grow to this batch size, the token table fills."""
        prompts = prompts_of(self._random, streams, prompt_tokens, self._vocabulary)
        self._bare.run(prompts, WARM_UP_TOKENS)
        self._serve(prompts, WARM_UP_TOKENS)

    def pair(self, streams: int, prompt_tokens: int, tokens: int, *, server_first: bool) -> Pair:
        """One run of both sides. Raises SystemExit when a stream failed."""
        prompts = prompts_of(self._random, streams, prompt_tokens, self._vocabulary)
        load = load_average()
        if server_first:
            batch, server_ns, worker_ns = self._serve(prompts, tokens)
            bare = self._bare.run(prompts, tokens)
        else:
            bare = self._bare.run(prompts, tokens)
            batch, server_ns, worker_ns = self._serve(prompts, tokens)
        return _pair(bare, batch, server_ns, worker_ns, load)

    def memory(self) -> dict[str, float]:
        """PSS in MiB of all processes."""
        return {
            "server_pss_mib": pss_bytes(self._server.pid) / 2**20,
            "worker_pss_mib": pss_bytes(self._server.worker_pid) / 2**20,
            "bare_pss_mib": pss_bytes(self._bare.pid) / 2**20,
        }

    def _serve(self, prompts: list[list[int]], tokens: int) -> tuple[Batch, int, int]:
        calls: list[Call] = [completion_call(self._server.model, ids, tokens) for ids in prompts]
        server, worker = self._server.pid, self._server.worker_pid
        before = cpu_ns(server), cpu_ns(worker)
        batch = run_batch(self._server.port, calls)
        after = cpu_ns(server), cpu_ns(worker)
        if batch.errors or batch.tokens != tokens * len(prompts):
            raise SystemExit(f"{batch.tokens} tokens of {tokens * len(prompts)}; {batch.errors[:1]}")
        return batch, after[0] - before[0], after[1] - before[1]


def _pair(bare: BareResult, batch: Batch, server_ns: int, worker_ns: int, load: float) -> Pair:
    summary = batch.summary()
    to_ms, to_us = NANOS * MILLI, NANOS * MICRO
    return Pair(
        bare_tokens_per_sec=bare.tokens_per_sec,
        server_tokens_per_sec=batch.tokens_per_sec,
        bare_ttft_p50_ms=percentile(bare.ttft_ns, 0.5) * to_ms,
        server_ttft_p50_ms=summary["ttft_p50_ms"],
        bare_ttft_max_ms=max(bare.ttft_ns) * to_ms,
        server_ttft_max_ms=summary["ttft_max_ms"],
        bare_step_p50_ms=statistics.median(bare.step_ns) * to_ms,
        bare_cpu_us=bare.cpu_ns * to_us / bare.tokens,
        gap_p50_ms=summary["gap_p50_ms"],
        gap_p99_ms=summary["gap_p99_ms"],
        gap_max_ms=summary["gap_max_ms"],
        chunks_per_token=summary["chunks_per_token"],
        server_cpu_us=server_ns * to_us / batch.tokens,
        worker_cpu_us=worker_ns * to_us / batch.tokens,
        generator_cpu_us=batch.generator_cpu_ns * to_us / batch.tokens,
        load_average=load,
    )


def compare(
    folder: Path,
    streams: Sequence[int],
    *,
    runs: int,
    tokens: int,
    prompt_tokens: int,
    threads: int | None = None,
    seed: int | None = None,
    report: Callable[[str], None] = lambda line: print(line, file=sys.stderr, flush=True),
) -> dict[str, Any]:
    """Run everything for one model. The result is JSON: settings, memory, and per number of streams the medians
    and all pairs."""
    seed = time.time_ns() if seed is None else seed
    result: dict[str, Any] = {
        "model": folder.name,
        "runs": runs,
        "tokens": tokens,
        "prompt_tokens": prompt_tokens,
        "threads": threads,
    }
    pairs: dict[int, list[Pair]] = {count: [] for count in streams}
    with tempfile.TemporaryDirectory() as scratch:
        spec = bare_spec(write_settings(Path(scratch) / "config.json", settings_of(folder, threads=threads)), folder)
    for run in range(runs):
        with ExitStack() as stack:
            if run % 2:
                server = stack.enter_context(ServerProcess(folder, threads=threads))
                bare = stack.enter_context(BareProcess(spec))
            else:
                bare = stack.enter_context(BareProcess(spec))
                server = stack.enter_context(ServerProcess(folder, threads=threads))
            comparison = Comparison(server, bare, vocabulary_of(folder), seed + run)
            comparison.warm_up(max(streams), prompt_tokens)
            for count in streams:
                comparison.warm_up(count, prompt_tokens)
                pair = comparison.pair(count, prompt_tokens, tokens, server_first=run % 4 in (1, 2))
                pairs[count].append(pair)
                report(
                    f"{folder.name} {count} streams, run {run + 1}: bare {pair.bare_tokens_per_sec:.0f} tok/s, "
                    f"ratio {pair.throughput_ratio:.3f}, TTFT ratio {pair.ttft_p50_ratio:.3f}, "
                    f"server {pair.server_cpu_us:.0f} µs/token, load {pair.load_average:.1f}"
                )
            result["memory"] = comparison.memory()
    result["streams"] = {
        count: {
            "medians": {name: statistics.median(getattr(pair, name) for pair in found) for name in NUMBERS},
            "pairs": [attrs.asdict(pair) for pair in found],
        }
        for count, found in pairs.items()
    }
    return result


def render(result: dict[str, Any]) -> str:
    """The result as Markdown."""
    medians = {count: entry["medians"] for count, entry in result["streams"].items()}
    head = ("streams", "bare tok/s", "server tok/s", "ratio", "TTFT p50 / max ms", "bare", "ratio p50 / max")
    speed = [
        (
            str(count),
            f"{row['bare_tokens_per_sec']:.1f}",
            f"{row['server_tokens_per_sec']:.1f}",
            f"{row['throughput_ratio']:.3f}",
            f"{row['server_ttft_p50_ms']:.1f} / {row['server_ttft_max_ms']:.1f}",
            f"{row['bare_ttft_p50_ms']:.1f} / {row['bare_ttft_max_ms']:.1f}",
            f"{row['ttft_p50_ratio']:.3f} / {row['ttft_max_ratio']:.3f}",
        )
        for count, row in medians.items()
    ]
    costs_head = (
        "streams",
        "gap p50 / p99 / max ms",
        "bare step ms",
        "chunks/token",
        "server µs/token",
        "worker µs/token",
        "bare µs/token",
        "generator µs/token",
        "load average",
    )
    costs = [
        (
            str(count),
            f"{row['gap_p50_ms']:.2f} / {row['gap_p99_ms']:.2f} / {row['gap_max_ms']:.1f}",
            f"{row['bare_step_p50_ms']:.2f}",
            f"{row['chunks_per_token']:.3f}",
            f"{row['server_cpu_us']:.0f}",
            f"{row['worker_cpu_us']:.0f}",
            f"{row['bare_cpu_us']:.0f}",
            f"{row['generator_cpu_us']:.0f}",
            f"{row['load_average']:.1f}",
        )
        for count, row in medians.items()
    ]
    memory = result["memory"]
    title = (
        f"{result['model']}: {result['prompt_tokens']} prompt tokens, {result['tokens']} new tokens, "
        f"median of {result['runs']} pairs"
    )
    sizes = ", ".join(f"{side} {memory[f'{side}_pss_mib']:.0f} MiB" for side in ("server", "worker", "bare"))
    return f"{title}\n\n{table(head, speed)}\n\n{table(costs_head, costs)}\n\nPSS: {sizes}\n"


def add_options(parser: argparse.ArgumentParser, *, streams: str) -> None:
    """The options that compare and release_check share."""
    parser.add_argument("--streams", default=streams, help="numbers of streams, separated by commas")
    parser.add_argument("--runs", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--prompt-tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, help="CPU threads of both sides")
    parser.add_argument("--seed", type=int, help="of the prompts")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there")


def main(arguments: list[str] | None = None) -> int:
    """Compare and print."""
    parser = argparse.ArgumentParser(description="the server against the bare runtime loop")
    parser.add_argument("folder", type=Path, metavar="MODEL_FOLDER")
    add_options(parser, streams="1,8,16,32")
    options = parser.parse_args(arguments)
    result = compare(
        options.folder.resolve(),
        [int(word) for word in options.streams.split(",")],
        runs=options.runs,
        tokens=options.tokens,
        prompt_tokens=options.prompt_tokens,
        threads=options.threads,
        seed=options.seed,
    )
    print(render(result))
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
