"""Time to the first token with and without the prefix cache, for prompts that share a long head.

python -m benchmarks.prefix_cache MODEL_FOLDER --head 1024 --tail 32
"""

import argparse
import random
import statistics
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks.measure import MILLI, NANOS, load_average, percentile, table
from benchmarks.speculative import OPTIONS
from benchmarks.target import vocabulary_of
from rustedvino.engines.text import TextEngine


def load(model: Path, step_tokens: int, *, caching: bool) -> TextEngine:
    """An engine with or without a prefix cache."""
    engine = TextEngine()
    engine.load(
        {
            "path": str(model),
            "device": "CPU",
            "properties": {"KV_CACHE_PRECISION": "u8"},
            "num_kv_blocks": 512,
            "max_num_batched_tokens": step_tokens,
            "max_num_seqs": 16,
            "enable_prefix_caching": caching,
            "warmup_prompt": [5, 6],
            "probe_strings": [],
        }
    )
    return engine


def first_token_ns(engine: TextEngine, number: int, ids: list[int]) -> int:
    """Run one prompt for one token."""
    prompt = np.asarray(ids, "<i4").tobytes()
    started = time.perf_counter_ns()
    engine.submit(number, prompt, {**OPTIONS, "max_new_tokens": 1})
    while not any(delta[1] for delta in engine.step()[0]):
        pass
    took = time.perf_counter_ns() - started
    while engine.busy:
        engine.step()
    return took


def main(arguments: list[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="time to the first token with and without the prefix cache")
    parser.add_argument("model", type=Path)
    parser.add_argument("--head", type=int, default=1024)
    parser.add_argument("--tail", type=int, default=32)
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--step-tokens", type=int, default=512)
    options = parser.parse_args(arguments)
    generator = random.Random(1)
    vocabulary = vocabulary_of(options.model) * 9 // 10

    def ids(count: int) -> list[int]:
        return [generator.randrange(3, vocabulary) for _ in range(count)]

    head = ids(options.head)
    prompts = [head + ids(options.tail) for _ in range(options.prompts + 1)]
    rows = []
    for caching in (False, True):
        engine = load(options.model.resolve(), options.step_tokens, caching=caching)
        times = [first_token_ns(engine, number, prompt) * NANOS * MILLI for number, prompt in enumerate(prompts)][1:]
        rows.append(("on" if caching else "off", f"{statistics.median(times):.1f}", f"{percentile(times, 0.95):.1f}"))
    print(table(("prefix cache", "TTFT p50 ms", "TTFT p95 ms"), rows))
    print(f"load average {load_average():.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
