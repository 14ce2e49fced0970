"""Text generation on the runtime's continuous-batching pipeline."""

import time
from array import array
from collections import deque
from pathlib import Path
from typing import Any, Final

import numpy as np
import openvino as ov
import openvino_genai as genai
from attrs import define, field

from rustedvino.engines.constraints import constrain
from rustedvino.engines.faults import EngineFault
from rustedvino.engines.prefix_guard import TOKEN_BYTES, PrefixGuard
from rustedvino.engines.weights import check_weights
from rustedvino.worker.loop import Delta, unknown_method

# Tokens per KV block, fixed by the runtime's attention kernels per device family.
BLOCK_SIZE_CPU: Final = 32
BLOCK_SIZE_GPU: Final = 16
WARMUP_NEW_TOKENS: Final = 2

_NONE: Final = genai.GenerationFinishReason.NONE
_STOP: Final = genai.GenerationFinishReason.STOP
_RUNNING: Final = genai.GenerationStatus.RUNNING


@define(eq=False)
class _Running:
    handle: Any  # dropping it would stop the request
    prompt: bytes
    tokens: "array[int]" = field(factory=lambda: array("i"))
    new: bool = True  # no step has seen it
    cancelled: bool = False
    logprobs: bool = False

    @property
    def content(self) -> bytes:
        return self.prompt + self.tokens.tobytes()


@define(eq=False)
class Waiting:
    """A sequence that was taken and is not in the batch yet."""

    sequence: int
    prompt: bytes
    options: dict[str, Any]

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt."""
        return len(self.prompt) // TOKEN_BYTES


class TextEngine:
    """One pipeline, driven step by step; sequences join and leave between steps.

    Every sequence is one request of the runtime: ``n`` choices of a prompt are ``n`` sequences whose prompt
    blocks the prefix cache shares.
    """

    def __init__(self) -> None:
        self._running: dict[int, _Running] = {}
        self._waiting: deque[Waiting] = deque()
        self._given_up: list[int] = []
        self._guard: PrefixGuard | None = None
        self._pipeline: Any = None
        self._tokenizer: Any = None
        self._requests = 0
        self._tokens_listed: bool | None = None

    @property
    def busy(self) -> bool:
        """Whether a step has something to do. After a cancel one more step frees the blocks."""
        return bool(self._running or self._waiting or self._given_up) or (
            self._pipeline is not None and self._pipeline.has_non_finished_requests()
        )

    def load(self, spec: dict[str, Any]) -> dict[str, Any]:
        """Load ``spec["path"]`` on ``spec["device"]`` and run one short generation.

        ``spec`` also has ``properties`` (of the runtime), ``num_kv_blocks``, ``max_num_batched_tokens``,
        ``enable_prefix_caching``, ``warmup_prompt`` (token ids) and ``probe_strings``.
        Returns ``block_size`` (tokens), ``num_kv_blocks``, ``kv_cache_bytes``, ``load_secs``, ``warmup_secs``,
        ``probe_ids`` (the runtime's encoding of each probe string; null where it has none).
        """
        folder = Path(spec["path"])
        check_weights(folder)
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = 0  # GiB; the pool is given in blocks instead, which is exact
        scheduler.num_kv_blocks = spec["num_kv_blocks"]
        scheduler.max_num_batched_tokens = spec["max_num_batched_tokens"]
        # The server admits no more than this; the runtime's own limit binds only without split-fuse.
        scheduler.max_num_seqs = spec["max_num_seqs"]
        scheduler.dynamic_split_fuse = True
        scheduler.enable_prefix_caching = spec["enable_prefix_caching"]
        started = time.perf_counter()
        self._pipeline = self._open(folder, scheduler, spec)
        loaded = time.perf_counter()
        block_size = BLOCK_SIZE_GPU if spec["device"].startswith("GPU") else BLOCK_SIZE_CPU
        if spec["enable_prefix_caching"]:
            self._guard = PrefixGuard(block_size, spec["num_kv_blocks"])
        self._warm_up(spec["warmup_prompt"])
        warm = time.perf_counter()
        return {
            "block_size": block_size,
            "num_kv_blocks": spec["num_kv_blocks"],
            "kv_cache_bytes": self._pipeline.get_metrics().kv_cache_size_in_bytes,
            "load_secs": loaded - started,
            "warmup_secs": warm - loaded,
            "probe_ids": [self._probe(text) for text in spec["probe_strings"]],
        }

    def submit(self, sequence: int, prompt: bytes, options: dict[str, Any]) -> bool | None:
        """Add a sequence. ``prompt``: int32 little-endian token ids.

        ``options``: ``max_new_tokens``, ``eos_token_ids``, ``ignore_eos``, ``logprobs`` (bool) and, when sampled,
        ``temperature`` (> 0), ``top_p``, ``top_k`` (0 = off), ``min_p``, ``seed``; penalties always. A ``constraint``
        (see text.constraints), if there is one, must have been proven: one that does not compile ends the pipeline.
        """
        self._check(sequence, options)
        waiting = Waiting(sequence, prompt, options)
        if self._must_wait(prompt):
            self._config(options).validate()
            self._waiting.append(waiting)
        else:
            self._start(waiting)
        return None

    def cancel(self, sequence: int) -> None:
        """Give a sequence up. It leaves with the next step; with a prefix cache, not before its prompt is processed,
        unless that has not begun."""
        for waiting in self._waiting:
            if waiting.sequence == sequence:
                self._waiting.remove(waiting)
                self._given_up.append(sequence)
                return
        running = self._running.get(sequence)
        if running is not None and not running.cancelled:
            running.cancelled = True
            if not self._spoils_cache(running):
                running.handle.cancel()

    def step(self) -> tuple[list[Delta], list[Any]]:
        """One step of the pipeline. Stats: KV use in percent, microseconds inside the runtime."""
        given_up: list[Delta] = [(sequence, [], "cancelled", None) for sequence in self._given_up]
        self._given_up.clear()
        if self._waiting:
            self._let_in()
        started = time.perf_counter_ns()
        self._pipeline.step()
        inside_us = (time.perf_counter_ns() - started) // 1000
        deltas = [
            delta for sequence, running in self._running.items() if (delta := self._read(sequence, running)) is not None
        ]
        for sequence, ids, finish, _ in deltas:
            self._running[sequence].tokens.extend(ids)
            if finish is not None:
                self._left(self._running.pop(sequence))
        if not self._running:
            # The runtime's figures are those before its step freed anything; the last ones stand while it is idle.
            self._pipeline.step()
        return given_up + deltas, [self._pipeline.get_metrics().cache_usage, inside_us]

    def call(self, method: str, arguments: dict[str, Any]) -> Any:
        """``encode``: ``texts`` → list of ids; ``decode``: ``ids`` → text, special tokens kept; ``vocabulary``: the
        bytes of each token inside a text, and whether a text loses the space of its first token."""
        if method == "encode":
            special = arguments["add_special_tokens"]
            return [self._encode(text, add_special_tokens=special) for text in arguments["texts"]]
        if method == "decode":
            return self._pipeline.get_tokenizer().decode(arguments["ids"], skip_special_tokens=False)
        if method == "vocabulary":
            return self._vocabulary()
        raise unknown_method(method)

    def _open(self, folder: Path, scheduler: Any, spec: dict[str, Any]) -> Any:
        """The runtime's pipeline."""
        return genai.ContinuousBatchingPipeline(str(folder), scheduler, spec["device"], dict(spec["properties"]))

    def _check(self, sequence: int, options: dict[str, Any]) -> None:
        """Raise EngineFault for what the runtime would not notice, or too late."""
        if sequence in self._running or any(waiting.sequence == sequence for waiting in self._waiting):
            raise EngineFault("bad_input", f"sequence {sequence} is running already")
        if options.get("constraint") is not None and not self._lists_tokens():
            raise EngineFault(
                "bad_input", "output cannot be constrained: the model's tokenizer does not list its tokens"
            )

    def _start(self, waiting: Waiting) -> None:
        """Put a sequence into the batch."""
        handle = self._add(waiting.prompt, waiting.options)
        self._running[waiting.sequence] = _Running(
            handle, waiting.prompt, logprobs=bool(waiting.options.get("logprobs"))
        )

    def _must_wait(self, prompt: bytes) -> bool:
        """Whether a sequence cannot join the batch before the next step."""
        if self._guard is None:
            return False
        running = [each.content for each in self._running.values() if not each.new]
        new = [each.prompt for each in self._running.values() if each.new]
        return self._guard.must_wait(prompt, running, [*new, *(waiting.prompt for waiting in self._waiting)])

    def _let_in(self) -> None:
        """Put those that need not wait any longer into the batch."""
        waiting, self._waiting = self._waiting, deque()
        for each in waiting:
            if self._must_wait(each.prompt):
                self._waiting.append(each)
            else:
                self._start(each)

    def _spoils_cache(self, running: _Running) -> bool:
        """Whether a sequence must not be given up now: its prompt is not processed to the end, but the prefix cache
        has the last block of what is as if it were whole, and would give it to the next prompt that begins alike."""
        return self._guard is not None and not running.new and not running.tokens

    def _left(self, running: _Running) -> None:
        """A sequence has left the batch; its blocks may be found in the cache."""
        if self._guard is not None:
            self._guard.remember(running.content, len(running.prompt) // TOKEN_BYTES)

    def _config(self, options: dict[str, Any]) -> Any:
        """The runtime's configuration of a sequence."""
        return generation_config(options)

    def _warmup_config(self) -> Any:
        """The runtime's configuration of the warm-up."""
        return warmup_config()

    def _add(self, prompt: bytes, options: dict[str, Any]) -> Any:
        """Hand a prompt to the runtime and return its handle."""
        ids = np.frombuffer(prompt, dtype="<i4").astype(np.int64).reshape(1, -1)
        return self._pipeline.add_request(self._new_request(), ov.Tensor(ids), self._config(options))

    def _new_request(self) -> int:
        """An id for the runtime, which must never repeat: its step would raise for good."""
        self._requests += 1
        return self._requests

    def _read(self, sequence: int, running: _Running) -> Delta | None:
        handle = running.handle
        running.new = False
        if running.cancelled:
            if self._spoils_cache(running):
                if not handle.can_read() and handle.get_status() == _RUNNING:
                    return None
                handle.cancel()
            return sequence, [], "cancelled", None
        ids: list[int] = []
        logprobs: list[float] | None = [] if running.logprobs else None
        finish = _NONE
        while handle.can_read():  # read() on an empty queue never returns
            for output in handle.read().values():
                ids += output.generated_ids
                if logprobs is not None:
                    logprobs += output.generated_log_probs
                finish = output.finish_reason
        if finish != _NONE:
            return sequence, ids, "stop" if finish == _STOP else "length", logprobs
        if not ids:
            if handle.get_status() != _RUNNING:
                return sequence, [], "ignored", None  # whatever the runtime calls it: nothing more will come
            return None
        return sequence, ids, None, logprobs

    def _warm_up(self, prompt: list[int]) -> None:
        ids = np.array([prompt], dtype=np.int64)
        handle = self._pipeline.add_request(self._new_request(), ov.Tensor(ids), self._warmup_config())
        running = _Running(handle, ids.astype("<i4").tobytes())
        running.tokens.extend(self._run_alone(handle))
        self._left(running)

    def _run_alone(self, handle: Any) -> list[int]:
        """Step until a warm-up request is done; its tokens. Raises EngineFault when it gave not all of them."""
        produced: list[int] = []
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            while handle.can_read():
                for output in handle.read().values():
                    produced += output.generated_ids
        if len(produced) != WARMUP_NEW_TOKENS:
            raise EngineFault("unknown", f"the warm-up generation gave {len(produced)} tokens of {WARMUP_NEW_TOKENS}")
        return produced

    def _lists_tokens(self) -> bool:
        """Whether the runtime knows the texts of the tokens. It would find out in a step, and the pipeline be lost."""
        if self._tokens_listed is None:
            self._tokens_listed = bool(self._pipeline.get_tokenizer().get_vocab())
        return self._tokens_listed

    def _vocabulary(self) -> dict[str, Any]:
        tokenizer = self._pipeline.get_tokenizer()
        by_token = tokenizer.get_vocab()
        tokens = [b""] * (max(by_token.values(), default=-1) + 1)
        for token, number in by_token.items():
            tokens[number] = token
        spaced = next(
            (number for number, token in enumerate(tokens) if token[:1] == b" " and token[1:].isalpha()), None
        )
        strips = spaced is not None and not tokenizer.decode([spaced]).startswith(" ")
        return {"tokens": tokens, "strips_first_space": strips}

    def _probe(self, text: str) -> list[int] | None:
        try:
            return self._encode(text, add_special_tokens=False)
        except RuntimeError:
            return None  # no tokenizer in the runtime's form: there is nothing to compare with

    def _encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        if not text:
            return []  # the runtime refuses an empty string
        encoded = self._pipeline.get_tokenizer().encode(text, add_special_tokens=add_special_tokens)
        ids: list[int] = encoded.input_ids.data[0].tolist()
        return ids


def warmup_config() -> Any:
    """Configuration of a warm-up request."""
    config = genai.GenerationConfig()
    config.max_new_tokens = WARMUP_NEW_TOKENS
    config.ignore_eos = True
    return config


def generation_config(options: dict[str, Any]) -> Any:
    """Build the runtime's configuration from submit options; nothing is left to the model's own file."""
    config = genai.GenerationConfig()
    config.max_new_tokens = options["max_new_tokens"]
    config.ignore_eos = options["ignore_eos"]
    eos = options["eos_token_ids"]
    if eos:
        config.set_eos_token_id(eos[0])
        config.stop_token_ids = set(eos)
    config.repetition_penalty = options["repetition_penalty"]
    config.frequency_penalty = options["frequency_penalty"]
    config.presence_penalty = options["presence_penalty"]
    if options["temperature"] > 0:
        config.do_sample = True
        config.temperature = options["temperature"]
        config.top_p = options["top_p"]
        if options["top_k"] > 0:
            config.top_k = options["top_k"]
        config.min_p = options["min_p"]
        config.rng_seed = options["seed"]
    if options["logprobs"]:
        config.logprobs = 1
    constrain(config, options)
    return config
