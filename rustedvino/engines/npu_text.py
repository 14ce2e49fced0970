"""Text generation on an NPU: one sequence at a time, in a model compiled for fixed lengths.

The runtime's pipeline there runs a whole generation in one call. The call is made in a thread of its own, which
releases the GIL inside it; tokens come out through a queue, so that the worker goes on reading messages.
"""

import queue
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any, Final

import numpy as np
import openvino as ov
import openvino_genai as genai
from attrs import define

from rustedvino.engines.faults import EngineFault
from rustedvino.engines.text import TextEngine
from rustedvino.engines.weights import check_weights
from rustedvino.worker.loop import Delta

DEFAULT_MAX_PROMPT_LEN: Final = 1024
DEFAULT_MIN_RESPONSE_LEN: Final = 128
"""What the runtime takes when it is not told."""
TOKEN_WAIT_SECS: Final = 0.02
"""How long a step waits for a token before the worker looks for messages."""

REFUSED: Final = {"logprobs": "the runtime gives no log-probabilities on an NPU"}
"""Submit options that must not be set, and why."""

_REASONS: Final = {genai.GenerationFinishReason.STOP: "stop"}


@define(eq=False)
class _Job:
    """A sequence that runs or waits. ``cancelled`` is set by the worker's thread and read by the generating one."""

    sequence: int
    prompt: Any
    config: Any
    prompt_tokens: int
    delivered: int = 0
    cancelled: bool = False


@define(eq=False)
class _News:
    """New tokens of a job, and how it ended: a finish, or the exception of the call."""

    job: _Job
    ids: list[int]
    finish: str | None = None
    error: Exception | None = None


class NpuTextEngine(TextEngine):
    """A TextEngine without a batch. Sequences that come while one runs wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._news: queue.SimpleQueue[_News] = queue.SimpleQueue()
        self._pending: deque[_Job] = deque()
        self._max_prompt_len = 0
        self._context = 0

    @property
    def busy(self) -> bool:
        """See TextEngine."""
        return bool(self._pending)

    def load(self, spec: dict[str, Any]) -> dict[str, Any]:
        """Compile ``spec["path"]`` for ``max_prompt_len`` and ``min_response_len`` (tokens; null: the runtime's own).

        Returns what TextEngine returns, its blocks of one token each, and ``max_sequences``, ``max_prompt_tokens``,
        ``context_tokens`` (prompt and response together) and ``refuses`` (see REFUSED).
        """
        folder = Path(spec["path"])
        check_weights(folder)
        self._max_prompt_len = spec["max_prompt_len"] or DEFAULT_MAX_PROMPT_LEN
        response = spec["min_response_len"] or DEFAULT_MIN_RESPONSE_LEN
        self._context = self._max_prompt_len + response
        lengths = {"MAX_PROMPT_LEN": self._max_prompt_len, "MIN_RESPONSE_LEN": response}
        started = time.perf_counter()
        self._pipeline = genai.LLMPipeline(str(folder), spec["device"], **spec["properties"], **lengths)
        loaded = time.perf_counter()
        threading.Thread(target=self._work, name="generation", daemon=True).start()
        self._warm_up(spec["warmup_prompt"])
        warm = time.perf_counter()
        return {
            "block_size": 1,
            "num_kv_blocks": self._context,
            "kv_cache_bytes": 0,  # part of the compiled model
            "load_secs": loaded - started,
            "warmup_secs": warm - loaded,
            "probe_ids": [self._probe(text) for text in spec["probe_strings"]],
            "max_sequences": 1,
            "max_prompt_tokens": self._max_prompt_len,
            "max_prompt_setting": "max_prompt_len",
            "context_tokens": self._context,
            "refuses": REFUSED,
        }

    def submit(self, sequence: int, prompt: bytes, options: dict[str, Any]) -> bool | None:
        """See TextEngine. Refuses what REFUSED names. A generation that fills the cache ends with ``length``."""
        for name, reason in REFUSED.items():
            if options.get(name):
                raise EngineFault("bad_input", f"{name}: {reason}")
        if any(job.sequence == sequence for job in self._pending):
            raise EngineFault("bad_input", f"sequence {sequence} is running already")
        self._check(sequence, options)
        ids = np.frombuffer(prompt, dtype="<i4").astype(np.int64)
        if not 0 < len(ids) <= self._max_prompt_len:
            raise EngineFault(
                "bad_input",
                f"the prompt has {len(ids)} tokens; the model was compiled for 1 to {self._max_prompt_len} "
                "(max_prompt_len)",
            )
        config = self._config(options)
        config.validate()
        self._put(sequence, ids, config)
        return None

    def cancel(self, sequence: int) -> None:
        """See TextEngine. Takes effect at the next token, behind the prompt at the earliest."""
        for job in self._pending:
            if job.sequence == sequence:
                job.cancelled = True

    def step(self) -> tuple[list[Delta], list[Any]]:
        """What has come meanwhile. Without tokens for TOKEN_WAIT_SECS nothing is returned, no stats either."""
        started = time.perf_counter_ns()
        try:
            news = [self._news.get(timeout=TOKEN_WAIT_SECS)]
        except queue.Empty:
            return [], []
        inside_us = (time.perf_counter_ns() - started) // 1000
        while not self._news.empty():  # this thread alone takes from it
            news.append(self._news.get())
        deltas = [self._delta(each) for each in news]
        last = news[-1].job
        used = last.prompt_tokens + last.delivered if self._pending else 0
        return deltas, [100 * used / self._context, inside_us]

    def _delta(self, news: _News) -> Delta:
        job = news.job
        if news.error is not None:
            raise news.error
        if news.finish is not None:
            self._pending.remove(job)
        if job.cancelled:
            return job.sequence, [], "cancelled" if news.finish is not None else None, None
        return job.sequence, news.ids, news.finish, None

    def _put(self, sequence: int, ids: Any, config: Any) -> None:
        tensor = ov.Tensor(ids.reshape(1, -1))
        inputs = genai.TokenizedInputs(tensor, ov.Tensor(np.ones((1, len(ids)), dtype=np.int64)))
        job = _Job(sequence, inputs, config, len(ids))
        self._pending.append(job)
        self._jobs.put(job)

    def _warm_up(self, prompt: list[int]) -> None:
        """Generate a little, in the thread that will generate: its first call compiles what is left."""
        self._put(0, np.array(prompt[: self._max_prompt_len], dtype=np.int64), self._warmup_config())
        produced = 0
        while self.busy:
            produced += sum(len(ids) for _, ids, _, _ in self.step()[0])
        if produced != self._warmup_config().max_new_tokens:
            raise EngineFault("unknown", f"the warm-up generation gave {produced} tokens")

    def _work(self) -> None:
        """The generating thread."""
        while True:
            job = self._jobs.get()
            try:
                self._news.put(self._generate(job))
            except Exception as error:
                self._news.put(_News(job, [], error=error))

    def _generate(self, job: _Job) -> _News:
        if job.cancelled:
            return _News(job, [], "cancelled")
        result = self._pipeline.generate(job.prompt, job.config, _Streamer(job, self._news))
        ids: list[int] = list(result.tokens[0])
        # Neither a stop nor the asked-for length: the cache is full.
        finish = _REASONS.get(result.finish_reasons[0], "length")
        rest = ids[job.delivered :]
        job.delivered = len(ids)
        return _News(job, rest, finish)


class _Streamer(genai.StreamerBase):  # type: ignore[misc]
    """Passes tokens on. An exception in it would be swallowed and the generation go on."""

    def __init__(self, job: _Job, news: "queue.SimpleQueue[_News]") -> None:
        super().__init__()
        self._job = job
        self._news = news

    def write(self, token: int | list[int]) -> Any:
        """Called by the runtime with every token. Returns whether to go on."""
        ids = [token] if isinstance(token, int) else list(token)
        self._job.delivered += len(ids)
        self._news.put(_News(self._job, ids))
        if self._job.cancelled:
            return genai.StreamingStatus.CANCEL
        return genai.StreamingStatus.RUNNING

    def end(self) -> None:
        """Called by the runtime when no more tokens come."""
