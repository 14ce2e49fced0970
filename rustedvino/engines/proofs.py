"""Trying constraints where nothing is lost when they fail: on the demo model, in the utility worker."""

import json
import re
import time
from pathlib import Path
from typing import Any, Final

from rustedvino.engines.faults import EngineFault, classify
from rustedvino.worker import platform

DEMO_MODEL: Final = Path(__file__).resolve().parents[1] / "models" / "rv-demo"
ADDRESS_SPACE_WHILE_LOADING_BYTES: Final = 64 << 30
"""The runtime maps far more than it uses when it is imported and starts its threads."""
PROOFS_PER_PIPELINE: Final = 64
"""The runtime keeps every grammar for as long as its pipeline lives."""
PROOF_TOKENS: Final = 8
_KV_BLOCKS: Final = 8
_PROMPT: Final = (5, 6, 7)
# The runtime begins its messages with the time and the place in its source.
_SOURCE_PLACE: Final = re.compile(r"^\[[\d:]+\] \S+:\d+: ")


class ConstraintProofs:
    """One small pipeline. Unlike ``step``, its ``generate`` cleans up after a constraint that does not compile."""

    def __init__(self, *, address_space_bytes: int) -> None:
        self._address_space_bytes = address_space_bytes
        self._pipeline: Any = None
        self._eos: list[int] = []
        self._proofs = 0

    def prepare(self) -> dict[str, Any]:
        """Import the runtime and load the demo model, unless that is done. Returns ``load_secs``."""
        started = time.perf_counter()
        if self._pipeline is None:
            platform.limit_resources(address_space_bytes=ADDRESS_SPACE_WHILE_LOADING_BYTES)
            try:
                self._load()
            finally:
                platform.limit_resources(address_space_bytes=self._address_space_bytes)
        return {"load_secs": time.perf_counter() - started}

    def prove(self, constraint: dict[str, Any]) -> dict[str, Any]:
        """Compile a constraint and generate under it. Raises EngineFault when it cannot be used.

        Returns ``ready``, false when ``prepare`` has to be called first, and ``compile_secs``.
        """
        if self._pipeline is None:
            return {"ready": False, "compile_secs": 0.0}
        started = time.perf_counter()
        try:
            self._generate(constraint)
        except Exception as error:
            fault = classify(error, otherwise="bad_input")
            if fault.kind != "bad_input":
                self._pipeline = None  # after a failed allocation nothing is sure about it
            raise EngineFault(fault.kind, _SOURCE_PLACE.sub("", fault.message)) from error
        compile_secs = time.perf_counter() - started
        self._proofs += 1
        if self._proofs >= PROOFS_PER_PIPELINE:
            self._pipeline = None
        return {"ready": True, "compile_secs": compile_secs}

    def _load(self) -> None:
        import openvino_genai as genai

        from rustedvino.engines.threads import cpu_properties

        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = 0
        scheduler.num_kv_blocks = _KV_BLOCKS
        scheduler.enable_prefix_caching = False
        self._eos = json.loads((DEMO_MODEL / "generation_config.json").read_text())["eos_token_id"]
        self._pipeline = genai.ContinuousBatchingPipeline(
            str(DEMO_MODEL), scheduler, "CPU", cpu_properties("CPU", {"INFERENCE_NUM_THREADS": 1})
        )
        self._proofs = 0
        # Starts the threads that compile grammars, whose stacks are mapped once.
        self._generate({"type": "grammar", "grammar": 'root ::= "{" [a-z]* "}"'})

    def _generate(self, constraint: dict[str, Any]) -> None:
        import numpy as np
        import openvino as ov

        from rustedvino.engines.text import generation_config

        config = generation_config(
            {
                "max_new_tokens": PROOF_TOKENS,
                "eos_token_ids": self._eos,
                "ignore_eos": False,
                "repetition_penalty": 1.0,
                "frequency_penalty": 0.0,
                "presence_penalty": 0.0,
                "temperature": 0.0,
                "logprobs": False,
                "constraint": constraint,
            }
        )
        self._pipeline.generate([ov.Tensor(np.array([_PROMPT], dtype=np.int64))], [config])
