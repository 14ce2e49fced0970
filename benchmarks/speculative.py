"""Tokens per second with and without a draft model, on the engines alone.

python -m benchmarks.speculative MODEL_FOLDER DRAFT_FOLDER --streams 1,4 --proposals 3,5
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from benchmarks.measure import NANOS, load_average, table
from rustedvino.engines.speculative import SpeculativeEngine
from rustedvino.engines.text import TextEngine

TEXTS = (
    "Once upon a time there was a small boat on a wide river.",
    "Question: What is the capital of France? Answer:",
    "To make tea, first boil the water. Then",
    "The days of the week are Monday, Tuesday,",
)
OPTIONS: dict[str, Any] = {
    "temperature": 0.0,
    "ignore_eos": True,
    "eos_token_ids": [],
    "repetition_penalty": 1.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "logprobs": False,
}


@attrs.frozen(kw_only=True)
class Result:
    """One batch: wall and CPU time, and how many tokens a sequence got per step that gave it any."""

    proposals: int
    streams: int
    tokens_per_sec: float
    tokens_per_cpu_sec: float
    tokens_per_step: float


def load(model: Path, draft: Path, proposals: int) -> TextEngine:
    """An engine; no proposals, no draft."""
    engine = SpeculativeEngine() if proposals else TextEngine()
    engine.load(
        {
            "path": str(model),
            "device": "CPU",
            "properties": {"KV_CACHE_PRECISION": "u8"},
            "num_kv_blocks": 512,
            "block_size": 32,
            "context_tokens": None,
            "max_num_batched_tokens": 512,
            "max_num_seqs": 16,
            "enable_prefix_caching": False,
            "warmup_prompt": [5, 6],
            "probe_strings": [],
            "draft": {"path": str(draft), "device": "CPU", "num_assistant_tokens": proposals, "verify": False},
        }
    )
    return engine


def run(engine: TextEngine, proposals: int, streams: int, tokens: int) -> Result:
    """Generate ``tokens`` tokens on each of the streams."""
    prompts = engine.call("encode", {"texts": list(TEXTS), "add_special_tokens": False})
    for number in range(streams):
        ids = np.asarray(prompts[number % len(prompts)], "<i4").tobytes()
        engine.submit(number, ids, {**OPTIONS, "max_new_tokens": tokens})
    reads = 0
    cpu, wall = time.process_time_ns(), time.perf_counter_ns()
    while engine.busy:
        reads += sum(bool(ids) for _, ids, _, _ in engine.step()[0])
    cpu, wall = time.process_time_ns() - cpu, time.perf_counter_ns() - wall
    total = streams * tokens
    return Result(
        proposals=proposals,
        streams=streams,
        tokens_per_sec=total / (wall * NANOS),
        tokens_per_cpu_sec=total / (cpu * NANOS),
        tokens_per_step=total / reads,
    )


def main(arguments: list[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="tokens per second with and without a draft model")
    parser.add_argument("model", type=Path)
    parser.add_argument("draft", type=Path)
    parser.add_argument("--streams", default="1,4")
    parser.add_argument("--proposals", default="3,5")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3, help="the best of so many counts")
    options = parser.parse_args(arguments)
    rows = []
    for proposals in (0, *(int(word) for word in options.proposals.split(","))):
        engine = load(options.model.resolve(), options.draft.resolve(), proposals)
        for streams in (int(word) for word in options.streams.split(",")):
            rounds = [run(engine, proposals, streams, options.tokens) for _ in range(options.rounds)]
            best = max(rounds, key=lambda each: each.tokens_per_sec)
            rows.append(
                (
                    str(proposals) if proposals else "no draft",
                    str(streams),
                    f"{best.tokens_per_sec:.0f}",
                    f"{best.tokens_per_cpu_sec:.0f}",
                    f"{best.tokens_per_step:.2f}",
                )
            )
    print(table(("proposals", "streams", "tokens/s", "tokens/CPU s", "tokens per step"), rows))
    print(f"load average {load_average():.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
