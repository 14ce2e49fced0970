"""One generation from prompt to answer: what chat and raw completions have in common."""

import hashlib
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

import trio
from attrs import define, frozen

from rustedvino.api import errors as api
from rustedvino.api.results import FinishReason, TokenLogprob, Usage
from rustedvino.api.sampling import SamplingRequest
from rustedvino.config.types import ModelKind, ServerSettings
from rustedvino.http.asgi import PieceSender, Send
from rustedvino.http.sampling import Sampling
from rustedvino.hub.hub import Model
from rustedvino.hub.lease import GenerationRequest, Lease, Sequence
from rustedvino.hub.runtime_tokenizer import RuntimeTokenizer
from rustedvino.hub.text_assets import TextAssets
from rustedvino.text.answer import AnswerReader
from rustedvino.text.tokenizer import ModelTokenizer
from rustedvino.text.tools.events import Event

MAX_CHOICES: Final = 8
T = TypeVar("T")

NO_CAP: Final = 2**31 - 1
_CONTAINER_CHARS: Final = 64
"""What rendering one message costs beyond its text, as characters."""


def check_kind(model: Model, assets: TextAssets, operation: str, *, also: tuple[ModelKind, ...] = ()) -> None:
    """Raise a 400 when the model's kind does not do this."""
    if assets.files.kind not in ("text_gen", *also):
        raise api.bad_request(
            f"the model {model.actor.model_id!r} is of kind {assets.files.kind} and does not support {operation}",
            "model",
        )


def plan(
    ids: list[int],
    request: SamplingRequest,
    sampling: Sampling,
    assets: TextAssets,
    settings: ServerSettings,
    *,
    param: str,
    logprobs: bool = False,
) -> GenerationRequest:
    """Check a prompt against the model and make the hub's request of it. ``param`` names the prompt's field.

    The requested number of tokens is clamped to ``max_tokens_cap`` and to what the context leaves. Raises ApiError.
    """
    if not ids:
        raise api.bad_request("the prompt has no tokens", param)
    if request.n > MAX_CHOICES:
        raise api.bad_request(f"'n' must be at most {MAX_CHOICES}", "n")
    vocab_size = assets.files.vocab_size
    if vocab_size is not None and max(ids) >= vocab_size:
        worst = max(ids)
        raise api.bad_request(f"token id {worst} is outside the model's vocabulary of {vocab_size}", param)
    context = assets.files.context_tokens
    room = NO_CAP if context is None else context - len(ids)
    if room < 1:
        assert context is not None
        raise api.context_length_exceeded(len(ids), context, param)
    cap = settings.max_tokens_cap or NO_CAP
    asked = request.max_new_tokens
    shared: dict[str, Any] = {
        "eos_token_ids": sorted(assets.eos_token_ids, key=assets.files.eos_token_ids.index),
        "ignore_eos": request.ignore_eos,
        "logprobs": logprobs,
    }
    prompt = struct.pack(f"<{len(ids)}i", *ids)
    max_new_tokens = min(room, cap, NO_CAP if asked is None else asked)
    return GenerationRequest(
        prompt=prompt,
        prompt_tokens=len(ids),
        max_new_tokens=max_new_tokens,
        shrinkable=asked is None,
        options=tuple({**shared, **sampling.options(index)} for index in range(request.n)),
        fingerprint=hashlib.blake2b(prompt + b"%d" % max_new_tokens, digest_size=16).digest(),
        prompt_field=param,
    )


def refuse_surely_too_long(assets: TextAssets, texts: Iterable[str], param: str) -> None:
    """Refuse by length alone what no tokenizing is needed for: it would take seconds. Raises ApiError."""
    context = assets.files.context_tokens
    if context is None:
        return
    for text in texts:
        if assets.tokenizer.too_long(text, context):
            raise api.bad_request(
                f"This model's maximum context length is {context} tokens; a text of {len(text)} characters "
                "has more tokens than that. Please shorten the prompt.",
                param,
                "context_length_exceeded",
            )


def weight(value: Any, limit: int) -> int:
    """About how much work nested JSON data is, in characters; counting stops beyond ``limit``."""
    total, rest = 0, [value]
    while rest and total <= limit:
        item = rest.pop()
        if isinstance(item, str):
            total += len(item)
        elif isinstance(item, Mapping):
            total += _CONTAINER_CHARS + sum(map(len, item))
            rest.extend(item.values())
        elif isinstance(item, (list, tuple)):
            total += _CONTAINER_CHARS
            rest.extend(item)
    return total


async def in_thread_if_long(size: int, limit: int, work: Callable[[], T]) -> T:
    """Run ``work`` here when the text is short, in a thread when it would hold up the event loop."""
    return await trio.to_thread.run_sync(work) if size > limit else work()


@frozen
class TokenReporter:
    """Names the tokens of an answer for its log-probabilities; the end of a turn is not among them."""

    tokenizer: ModelTokenizer | RuntimeTokenizer
    eos_token_ids: frozenset[int]

    def report(self, token: int, logprob: float) -> TokenLogprob | None:
        """The entry of one token."""
        if token in self.eos_token_ids:
            return None
        return TokenLogprob(self.tokenizer.token_text(token), logprob, self.tokenizer.token_bytes(token))


@define(eq=False)
class Choice:
    """One sequence with its reader. ``advance`` is called when something may have changed."""

    index: int
    sequence: Sequence
    lease: Lease
    reader: AnswerReader
    reporter: TokenReporter | None = None
    seen: int = 0
    ended: bool = False
    _reported: int = 0

    def advance(self) -> tuple[list[Event], FinishReason | None]:
        """New events, and the finish reason once there is one; nothing after that. Raises the HubError that ended the
        sequence."""
        if self.ended:
            return [], None
        sequence, reader = self.sequence, self.reader
        events: list[Event] = []
        tokens = sequence.tokens
        if self.seen < len(tokens):
            start, self.seen = self.seen, len(tokens)
            events = reader.read(tokens[start:] if start or len(tokens) > 1 else tokens)
        if reader.stopped:
            self.ended = True
            self.lease.cancel(sequence)
            return events, self._reason("stop")
        if sequence.failure is not None:
            raise sequence.failure
        if sequence.finish is not None:
            self.ended = True
            events += reader.end()
            return events, self._reason(sequence.finish)
        if sequence.cancelled:
            self.ended = True
        return events, None

    def take_logprobs(self) -> list[TokenLogprob]:
        """Entries of the tokens read since the last call."""
        assert self.reporter is not None
        start, self._reported = self._reported, self.reader.tokens_read
        entries = (
            self.reporter.report(self.sequence.tokens[position], self.sequence.logprobs[position])
            for position in range(start, self.reader.tokens_read)
        )
        return [entry for entry in entries if entry is not None]

    def _reason(self, finish: FinishReason) -> FinishReason:
        if self.reader.stopped:
            finish = "stop"
        return "tool_calls" if finish == "stop" and self.reader.tool_calls else finish


def usage(request: GenerationRequest, choices: Iterable[Choice]) -> Usage:
    """Exact counts: the prompt once, and every generated token up to the end or the stop string.

    Tokens of thinking are told of where there are any.
    """
    readers = [choice.reader for choice in choices]
    return Usage(
        prompt_tokens=request.prompt_tokens,
        completion_tokens=sum(reader.tokens_read for reader in readers),
        reasoning_tokens=sum(reader.reasoning_tokens for reader in readers) or None,
    )


async def stream(
    lease: Lease, choices: list[Choice], write: Callable[[Choice, list[Event], FinishReason | None], bytes], send: Send
) -> None:
    """Send what the choices get as it comes, one send per step and choice, until all have ended.

    As long as the client keeps up, pieces are sent within the step that brought their tokens, without waking this
    task. A client that lags gets what has gathered meanwhile in one piece. Raises HubError.
    """
    direct = send if isinstance(send, PieceSender) else None
    running = choices

    def news(choice: Choice) -> bytes:
        events, finish = choice.advance()
        return write(choice, events, finish) if events or finish is not None else b""

    def send_now() -> bool:
        assert direct is not None
        if not direct.is_clear:
            return False
        goes_on = True
        for choice in running:
            data = news(choice)
            if data and not direct.now(data):
                return False
            goes_on = goes_on and not choice.ended
        return goes_on

    while True:
        for choice in running:
            data = news(choice)
            if data:
                await send(data)
        running = [choice for choice in running if not choice.ended]
        if not running:
            return
        if direct is None:
            await lease.wait()
        else:
            await lease.wait(send_now)
            await direct.flush()


async def collect(lease: Lease, choices: list[Choice]) -> list[tuple[list[Event], FinishReason]]:
    """The whole answers, in order. Raises HubError."""
    gathered: list[tuple[list[Event], FinishReason]] = [([], "stop") for _ in choices]
    running = choices

    def take() -> bool:
        goes_on = True
        for choice in running:
            events, finish = choice.advance()
            gathered[choice.index][0].extend(events)
            if finish is not None:
                gathered[choice.index] = (gathered[choice.index][0], finish)
            goes_on = goes_on and not choice.ended
        return goes_on

    while True:
        if not take():
            running = [choice for choice in running if not choice.ended]
            if not running:
                return gathered
        await lease.wait(take)
