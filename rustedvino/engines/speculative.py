"""Text generation with a draft model: it proposes tokens, the model checks several of them in one step.

What this version of the runtime does wrongly with a draft, each shown by a test, and what is done about it:

- A prompt that is not processed whole in one step gives wrong text: the draft runs ahead, and its proposals are checked
  before the prompt is complete. So prompts wait here, in line, and enter the batch in a step that has room for all of
  them and for the proposals of every running sequence; they are at most ``max_prompt_tokens`` long.
- With prefix caching, requests that begin alike now and then get wrong text. So there is none.
- Sampled tokens follow neither the model's distribution nor the draft's. So only greedy requests are taken.
- A request without a number of proposals makes a step raise, and the pipeline is lost. So every request, the warm-up's
  too, is given one.

Penalties, log-probabilities, constraints, ends and cancels are right, as the tests compare.
"""

from pathlib import Path
from typing import Any, Final

import numpy as np
import openvino as ov
import openvino_genai as genai
from tokenizers import Tokenizer

from rustedvino.engines.faults import EngineFault
from rustedvino.engines.text import TextEngine, Waiting, generation_config

MAX_PREFILL_TOKENS: Final = 8192
"""Longest prompt with a draft. It is processed in one step, during which every other stream stands still."""

VERIFY_TEXTS: Final = (
    "The quick brown fox jumps over the lazy dog. Then",
    "One, two, three, four, five, six, seven,",
    '{"name": "Anna", "age": 31, "city": "',
    "def add(first, second):\n    return",
    "Heute ist ein schöner Tag, und wir gehen",
    "1 2 3 1 2 3 1 2 3 1 2 3 1 2",
)
VERIFY_NEW_TOKENS: Final = 32
VERIFY_BLOCKS: Final = 64
_EXACT: Final = {"INFERENCE_PRECISION_HINT": "f32"}
_EXACT_ON_CPU: Final = {**_EXACT, "KV_CACHE_PRECISION": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
"""Below full precision, two tokens of nearly the same probability may change places with the shape of a batch."""

REFUSED: Final = {
    "temperature": "a model with a draft generates greedily: the runtime cannot sample there, the temperature must be 0"
}
"""Submit options that must not be set, and why."""


class SpeculativeEngine(TextEngine):
    """A TextEngine with a draft model. Sequences enter the batch in ``step``, in the order of their submits."""

    def __init__(self) -> None:
        super().__init__()
        self._draft: dict[str, Any] = {}
        self._max_prompt_tokens = 0
        self._prefill_tokens = 0

    def load(self, spec: dict[str, Any]) -> dict[str, Any]:
        """See TextEngine. ``spec["draft"]``: ``path``, ``device``, ``num_assistant_tokens`` (proposals per step) and
        ``verify`` (bool: first compare texts with and without the draft); ``context_tokens`` (null: unknown).

        Also returns ``max_sequences``, ``max_prompt_tokens`` and ``refuses``: submit options that are refused, and why.
        Raises EngineFault when the vocabularies or the texts differ.
        """
        self._draft = draft = spec["draft"]
        check_vocabularies(Path(spec["path"]), Path(draft["path"]))
        if draft["verify"]:
            verify(spec)
        pool_tokens = spec["num_kv_blocks"] * spec["block_size"]
        self._max_prompt_tokens = min(MAX_PREFILL_TOKENS, pool_tokens, spec["context_tokens"] or MAX_PREFILL_TOKENS)
        self._prefill_tokens = spec["max_num_batched_tokens"]
        facts = super().load(spec | {"max_num_batched_tokens": self._step_tokens(spec), "enable_prefix_caching": False})
        return facts | {
            "max_sequences": spec["max_num_seqs"],
            "max_prompt_tokens": self._max_prompt_tokens,
            "refuses": REFUSED,
        }

    def submit(self, sequence: int, prompt: bytes, options: dict[str, Any]) -> bool | None:
        """See TextEngine. Refuses what REFUSED names."""
        for name, reason in REFUSED.items():
            if options.get(name):
                raise EngineFault("bad_input", f"{name}: {reason}")
        waiting = Waiting(sequence, prompt, options)
        if len(prompt) % 4 or not 0 < waiting.prompt_tokens <= self._max_prompt_tokens:
            raise EngineFault(
                "bad_input",
                f"with a draft model a prompt has 1 to {self._max_prompt_tokens} tokens, not {waiting.prompt_tokens}",
            )
        self._check(sequence, options)
        self._config(options).validate()
        self._waiting.append(waiting)
        return None

    def _let_in(self) -> None:
        """Let prompts in: as many as a step may have tokens, and at least one."""
        tokens = 0
        while self._waiting and (not tokens or tokens + self._waiting[0].prompt_tokens <= self._prefill_tokens):
            waiting = self._waiting.popleft()
            tokens += waiting.prompt_tokens
            self._start(waiting)

    def _step_tokens(self, spec: dict[str, Any]) -> int:
        """Tokens of a step, so that its prompts and every running sequence's proposals surely fit."""
        proposals: int = spec["max_num_seqs"] * (self._draft["num_assistant_tokens"] + 1)
        return proposals + max(self._prefill_tokens, self._max_prompt_tokens)

    def _open(self, folder: Path, scheduler: Any, spec: dict[str, Any]) -> Any:
        return open_pipeline(folder, scheduler, spec, dict(spec["properties"]))

    def _config(self, options: dict[str, Any]) -> Any:
        return self._with_proposals(generation_config(options))

    def _warmup_config(self) -> Any:
        return self._with_proposals(super()._warmup_config())

    def _with_proposals(self, config: Any) -> Any:
        # A request without it would make the next step raise, and the pipeline be lost.
        config.num_assistant_tokens = self._draft["num_assistant_tokens"]
        return config


def open_pipeline(folder: Path, scheduler: Any, spec: dict[str, Any], properties: dict[str, Any]) -> Any:
    """The runtime's pipeline of a model and its draft. Raises what the runtime raises."""
    draft = spec["draft"]
    # Without a scheduler of its own the draft gets as many blocks as the model, which is what its sequences need.
    model = genai.draft_model(draft["path"], draft["device"], **properties)
    return genai.ContinuousBatchingPipeline(
        str(folder), genai.Tokenizer(str(folder)), scheduler, spec["device"], draft_model=model, **properties
    )


def check_vocabularies(model: Path, draft: Path) -> None:
    """Raise EngineFault unless both tokenizers give every token the same id: only ids pass between the models."""
    ours, theirs = _vocabulary(model), _vocabulary(draft)
    if ours == theirs:
        return
    differing = sorted(set(ours.items()) ^ set(theirs.items()), key=lambda item: (item[1], item[0]))
    token, number = differing[0]
    raise EngineFault(
        "bad_input",
        f"the draft model {draft.name} has another vocabulary than {model.name}: {len(ours)} and {len(theirs)} tokens, "
        f"the first difference is token {number} ({token!r})",
    )


def _vocabulary(folder: Path) -> dict[str, int]:
    try:
        vocabulary: dict[str, int] = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab(
            with_added_tokens=True
        )
    except Exception as error:  # the library raises plain Exception
        raise EngineFault(
            "bad_input",
            f"the vocabulary of {folder.name} cannot be read from its tokenizer.json, so no draft can be used: {error}",
        ) from error
    return vocabulary


def verify(spec: dict[str, Any]) -> None:
    """Compare greedy texts with and without the draft at full precision. Raises EngineFault when they differ.

    Both pipelines are made for this only, one after the other, before the one that serves: at the precision of that
    one, right texts may differ too. It takes two more loads, and as much memory as full precision needs.
    """
    folder = Path(spec["path"])
    exact = _EXACT_ON_CPU if spec["device"].startswith("CPU") else _EXACT
    properties = {**spec["properties"], **exact}
    scheduler = genai.SchedulerConfig()
    scheduler.cache_size = 0
    scheduler.num_kv_blocks = VERIFY_BLOCKS
    scheduler.enable_prefix_caching = False
    pipeline = genai.ContinuousBatchingPipeline(str(folder), scheduler, spec["device"], properties)
    tokenizer = pipeline.get_tokenizer()
    prompts = [tokenizer.encode(text, add_special_tokens=False).input_ids.data[0].tolist() for text in VERIFY_TEXTS]
    plain = _generate(pipeline, prompts, 0)
    del pipeline, tokenizer
    with_draft = _generate(
        open_pipeline(folder, scheduler, spec, properties), prompts, spec["draft"]["num_assistant_tokens"]
    )
    for text, ours, theirs in zip(VERIFY_TEXTS, plain, with_draft, strict=True):
        if ours != theirs:
            place = next((at for at, pair in enumerate(zip(ours, theirs, strict=False)) if pair[0] != pair[1]), 0)
            raise EngineFault(
                "unknown",
                f"text with and without the draft model {Path(spec['draft']['path']).name} differs from token {place} "
                f"after {text!r} (speculative.verify_on_load)",
            )


def _generate(pipeline: Any, prompts: list[list[int]], proposals: int) -> list[list[int]]:
    config = genai.GenerationConfig()
    config.max_new_tokens = VERIFY_NEW_TOKENS
    config.ignore_eos = True
    config.do_sample = False
    config.repetition_penalty = 1.0
    if proposals:
        config.num_assistant_tokens = proposals
    tensors = [ov.Tensor(np.array([ids], dtype=np.int64)) for ids in prompts]
    return [result.m_generation_ids[0] for result in pipeline.generate(tensors, [config] * len(tensors))]
