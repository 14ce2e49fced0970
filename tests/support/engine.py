"""The runtime's pipeline of a tiny model without a worker, to see what constraints make of its answers."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai
import pytest

from rustedvino.engines.text import generation_config

MODEL = Path(__file__).resolve().parents[1] / "models" / "tiny-qwen3-chat"
END_IDS = json.loads((MODEL / "generation_config.json").read_text())["eos_token_id"]


class TinyModel:
    """Samples answers under constraints; its weights know little of JSON, so that it tries what it may."""

    def __init__(self) -> None:
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = 0
        scheduler.num_kv_blocks = 512
        self.pipeline = genai.ContinuousBatchingPipeline(
            str(MODEL), scheduler, "CPU", {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"}
        )
        self.tokenizer = self.pipeline.get_tokenizer()

    def answers(
        self, constraints: Sequence[dict[str, Any] | None], *, max_new_tokens: int = 400, temperature: float = 1.3
    ) -> list[tuple[str, bool]]:
        """One answer for each constraint: its text, and whether it came to its end by itself."""
        prompt = ov.Tensor(np.array([[5, 6, 7]], dtype=np.int64))
        configs = [
            generation_config(options(constraint, max_new_tokens, temperature, seed))
            for seed, constraint in enumerate(constraints)
        ]
        results = self.pipeline.generate([prompt] * len(configs), configs)
        return [self._read(result.m_generation_ids[0]) for result in results]

    def _read(self, ids: list[int]) -> tuple[str, bool]:
        ended = bool(ids) and ids[-1] in END_IDS
        text = self.tokenizer.decode(ids[:-1] if ended else ids, skip_special_tokens=False)
        return text, ended


def options(constraint: dict[str, Any] | None, max_new_tokens: int, temperature: float, seed: int) -> dict[str, Any]:
    """Submit options of a sampled request."""
    return {
        "max_new_tokens": max_new_tokens,
        "eos_token_ids": END_IDS,
        "ignore_eos": False,
        "repetition_penalty": 1.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "temperature": temperature,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "seed": seed,
        "logprobs": False,
        "constraint": constraint,
    }


@pytest.fixture(scope="session")
def tiny_model() -> TinyModel:
    """One pipeline for all tests."""
    return TinyModel()
