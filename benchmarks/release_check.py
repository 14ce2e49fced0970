"""The regression guard of a release: the ratios and costs that must hold. Ends with 1 when one does not.

    python -m benchmarks.release_check --large LARGE_FOLDER --small SMALL_FOLDER

``--large`` is the 0.6 B model, ``--small`` the 60 M one; one of them alone checks its own targets. Run it on an
otherwise idle machine: above one runnable task per core the numbers say more of the neighbours than of the server.
"""

import argparse
import json
import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

from benchmarks import latency, worker_overhead
from benchmarks.compare import add_options, compare, render
from benchmarks.measure import load_average, table

THROUGHPUT_LARGE = 0.97
LARGE_STREAMS = (1, 8, 16)
THROUGHPUT_SMALL = 0.90
TTFT_RATIO = 1.15
CPU_US_BY_STREAMS = {16: 100.0, 8: 130.0}
CPU_US_ONE_LARGE = 600.0
CPU_US_ONE_SMALL = 350.0
CHUNKS_PER_TOKEN = 0.95
OVERHEAD_SHARE = 0.03
HEALTH_P99_MS = 20.0
TOKENIZE_P99_MS = 50.0
HEALTH_GAP_MS = 50.0
NEIGHBOUR_P99_RATIO = 3.0
LONG_TTFT_RATIO = 1.5


@attrs.frozen
class Target:
    """One number and its bound; ``at_least`` says on which side of the bound it must be."""

    name: str
    value: float
    bound: float
    at_least: bool = False

    @property
    def met(self) -> bool:
        """Whether it holds; a number that could not be measured does not."""
        if math.isnan(self.value):
            return False
        return self.value >= self.bound if self.at_least else self.value <= self.bound

    def row(self) -> tuple[str, str, str, str]:
        """A line of the report."""
        sign = "≥" if self.at_least else "≤"
        return self.name, f"{self.value:.4g}", f"{sign} {self.bound:g}", "ok" if self.met else "MISSED"


def comparison_targets(result: dict[str, Any], *, large: bool) -> Iterator[Target]:
    """Targets of a comparison with the bare loop."""
    for streams, entry in result["streams"].items():
        row, name = entry["medians"], f"{result['model']}, {streams} streams"
        if streams in (LARGE_STREAMS if large else (16,)):
            bound = THROUGHPUT_LARGE if large else THROUGHPUT_SMALL
            yield Target(f"{name}: tokens/s over bare", row["throughput_ratio"], bound, at_least=True)
        if streams == 16:
            yield Target(f"{name}: TTFT p50 over bare", row["ttft_p50_ratio"], TTFT_RATIO)
            yield Target(f"{name}: TTFT max over bare", row["ttft_max_ratio"], TTFT_RATIO)
        one = CPU_US_ONE_LARGE if large else CPU_US_ONE_SMALL
        cpu_bound = one if streams == 1 else CPU_US_BY_STREAMS.get(streams)
        if cpu_bound is not None:
            yield Target(f"{name}: server µs/token", row["server_cpu_us"], cpu_bound)
        yield Target(f"{name}: chunks/token", row["chunks_per_token"], CHUNKS_PER_TOKEN, at_least=True)


def overhead_targets(model: str, results: list[worker_overhead.Overhead]) -> Iterator[Target]:
    """Targets of the worker's own work."""
    for each in results:
        yield Target(f"{model}, {each.streams} streams: worker outside the runtime", each.loop_share, OVERHEAD_SHARE)


def latency_targets(result: dict[str, Any]) -> Iterator[Target]:
    """Targets of small requests and of neighbours."""
    model, small = result["model"], result["small_requests"]
    yield Target(f"{model}: /health p99 ms beside 16 streams", _answered(small["health"], "p99_ms"), HEALTH_P99_MS)
    yield Target(
        f"{model}: /tokenize p99 ms beside 16 streams", _answered(small["tokenize"], "p99_ms"), TOKENIZE_P99_MS
    )
    for name in ("prompt_2_mb", "objects_49_mib"):
        gap = result["big_bodies"][name]["largest_gap_ms"]
        yield Target(f"{model}: largest gap of /health in ms, {name}", gap, HEALTH_GAP_MS)
    beside = result["long_prompt"]
    yield Target(f"{model}: p99 gap beside a long prompt over without", beside["p99_ratio"], NEIGHBOUR_P99_RATIO)
    yield Target(f"{model}: TTFT of a long prompt beside 8 streams over alone", beside["ttft_ratio"], LONG_TTFT_RATIO)


def _answered(entry: dict[str, Any], name: str) -> float:
    """The number, if every answer was a 200: the speed of refusals is no speed."""
    return float(entry[name]) if entry["statuses"] == [200] else float("nan")


def check(folder: Path, options: argparse.Namespace, *, large: bool) -> tuple[list[Target], dict[str, Any]]:
    """Measure one model; its targets and everything that was measured."""
    streams = [int(word) for word in options.streams.split(",")]
    compared = compare(
        folder,
        streams,
        runs=options.runs,
        tokens=options.tokens,
        prompt_tokens=options.prompt_tokens,
        threads=options.threads,
        seed=options.seed,
    )
    print(render(compared))
    outside = worker_overhead.measure(folder, streams, tokens=options.tokens, threads=options.threads)
    print(worker_overhead.render(outside) + "\n")
    targets = [*comparison_targets(compared, large=large), *overhead_targets(folder.name, outside)]
    measured: dict[str, Any] = {"compare": compared, "overhead": [attrs.asdict(each) for each in outside]}
    if options.latency:
        measured["latency"] = latency.run(folder, secs=20.0, runs=options.runs, threads=options.threads)
        targets += latency_targets(measured["latency"])
    return targets, measured


def main(arguments: list[str] | None = None) -> int:
    """Measure, print the verdicts, and return 1 when a target was missed."""
    parser = argparse.ArgumentParser(description="what must hold for a release")
    parser.add_argument("--large", type=Path, metavar="MODEL_FOLDER", help="the 0.6 B model")
    parser.add_argument("--small", type=Path, metavar="MODEL_FOLDER", help="the 60 M model")
    parser.add_argument("--latency", action="store_true", help="also the latencies beside running streams")
    add_options(parser, streams="1,8,16")
    options = parser.parse_args(arguments)
    if options.large is None and options.small is None:
        parser.error("at least one of --large and --small is needed")
    cores = len(os.sched_getaffinity(0))
    if load_average() > cores:
        print(f"the load average is {load_average():.1f} on {cores} cores: this machine is not idle", file=sys.stderr)
    targets: list[Target] = []
    measured: dict[str, Any] = {}
    for folder, large in ((options.large, True), (options.small, False)):
        if folder is not None:
            more, measured[folder.name] = check(folder.resolve(), options, large=large)
            targets += more
    print(table(("target", "measured", "bound", ""), [target.row() for target in targets]))
    if options.json is not None:
        options.json.write_text(json.dumps(measured, indent=2))
    return 0 if all(target.met for target in targets) else 1


if __name__ == "__main__":
    sys.exit(main())
