"""``POST /v1/completions``: raw prompts, several at once."""

from collections.abc import Callable
from typing import Any, Final

import trio
from attrs import define, field, frozen
from quart import Blueprint, Response, request

from rustedvino.api import errors as api
from rustedvino.api.completions import CompletionRequest
from rustedvino.api.results import (
    DONE,
    FinishReason,
    TextChoice,
    TextChunkEncoder,
    Usage,
    error_event,
    new_id,
    now_secs,
    text_completion,
    text_logprobs,
)
from rustedvino.http import generation
from rustedvino.http.asgi import Send
from rustedvino.http.bodies import read_request
from rustedvino.http.context import ServerContext, context
from rustedvino.http.errors import from_hub
from rustedvino.http.generation import Choice, TokenReporter
from rustedvino.http.leases import Leases, counting_context_errors
from rustedvino.http.prompts import log_prompt
from rustedvino.http.replies import json_reply
from rustedvino.http.request_ids import request_id
from rustedvino.http.sampling import effective_sampling
from rustedvino.http.sse import sse_reply
from rustedvino.hub.errors import Busy, HubError
from rustedvino.hub.hub import Model
from rustedvino.hub.lease import GenerationRequest, Lease
from rustedvino.hub.text_assets import TextAssets, encode_raw
from rustedvino.text.answer import AnswerReader
from rustedvino.text.tools.events import Content, Event

blueprint: Final = Blueprint("completions", __name__)


@blueprint.post("/v1/completions")
async def completions() -> Response:
    """Continue each prompt, ``n`` times each."""
    server = context()
    wanted = await read_request(request, CompletionRequest)
    if wanted.logprobs:
        raise api.bad_request(
            "'logprobs' must be 0: the runtime reports the chosen token only", "logprobs", "unsupported_parameter"
        )
    if wanted.logprobs is not None and wanted.echo:
        raise api.bad_request(
            "'echo' cannot be combined with 'logprobs': the prompt's tokens have none", "echo", "unsupported_parameter"
        )
    limit = server.settings.max_prompt_array
    if len(wanted.prompts) > limit:
        raise api.bad_request(f"'prompt' has {len(wanted.prompts)} prompts; at most {limit} are allowed", "prompt")
    model = server.hub.get(wanted.model)
    assets = await model.assets()
    generation.check_kind(model, assets, "completions")
    prompts = [await prepare(wanted, index, model, assets, server) for index in range(len(wanted.prompts))]
    job = _Job(wanted, model, assets, prompts, request_id(request), Leases(request, model))
    if not wanted.stream:
        return json_reply(await job.whole())
    first = None if model.actor.waits_for_load else await job.lease(0)

    async def produce(send: Send) -> None:
        await job.stream(first, send)

    return sse_reply(produce, keepalive_secs=server.settings.sse_keepalive_secs)


@frozen
class RawPrompt:
    """One prompt, checked; ``text`` is what ``echo`` repeats."""

    ids: list[int]
    text: str
    plan: GenerationRequest


async def prepare(
    wanted: CompletionRequest, index: int, model: Model, assets: TextAssets, server: ServerContext
) -> RawPrompt:
    """Tokenize and check one prompt of the request. Raises ApiError."""
    prompt, param = wanted.prompts[index], wanted.prompt.path(index)
    tokenizer = assets.tokenizer
    if isinstance(prompt, str):
        with counting_context_errors(model, "length"):
            generation.refuse_surely_too_long(assets, [prompt], param)
        ids = await encode_raw(tokenizer, prompt, parse_special=wanted.parse_special)
    else:
        ids = list(prompt)
    sampling = effective_sampling(wanted, assets.files.generation, model.actor.settings)
    with counting_context_errors(model, "tokens"):
        plan = generation.plan(
            ids, wanted, sampling, assets, server.settings, param=param, logprobs=wanted.logprobs is not None
        )
    text = ""
    if wanted.echo or server.settings.log_prompts:
        text = prompt if isinstance(prompt, str) else tokenizer.decode(ids)
    log_prompt(server.settings, wanted.model, text)
    echoed = text if wanted.echo else ""
    return RawPrompt(ids, echoed, plan)


@define(eq=False)
class _Job:
    """All prompts of one request; each has a lease of its own and they run side by side."""

    wanted: CompletionRequest
    model: Model
    assets: TextAssets
    prompts: list[RawPrompt]
    request_id: str
    leases: Leases
    _line: trio.Lock = field(factory=trio.Lock)
    _running: int = 0
    _one_ended: trio.Event = field(factory=trio.Event)

    async def lease(self, index: int) -> Lease:
        """Wait for the lease of one prompt. Follow it by ``ended``.

        One prompt of a request waits in the model's line at a time. While another one runs, a busy model is no
        reason to give up: it may be busy with us.
        """
        if len(self.prompts) == 1:  # nobody to wait for
            self._running = 1
            return await self.leases.take(self.prompts[0].plan)
        async with self._line:
            while True:
                try:
                    lease = await self.leases.take(self.prompts[index].plan)
                except Busy:
                    if not self._running:
                        raise
                    await self._one_ended.wait()
                else:
                    self._running += 1
                    return lease

    def ended(self) -> None:
        """One of the prompts has its answer."""
        self._running -= 1
        event, self._one_ended = self._one_ended, trio.Event()
        event.set()

    def _choices(self, index: int, lease: Lease) -> list[Choice]:
        tokenizer = self.assets.tokenizer
        reporter = None if self.wanted.logprobs is None else TokenReporter(tokenizer, self.assets.eos_token_ids)
        return [
            Choice(
                number,
                sequence,
                lease,
                AnswerReader(
                    tokenizer.decoder(self.prompts[index].ids[-16:]),
                    self.assets.controls,
                    self.assets.eos_token_ids,
                    stops=self.wanted.stop_strings,
                ),
                reporter,
            )
            for number, sequence in enumerate(lease.sequences)
        ]

    async def whole(self) -> dict[str, Any]:
        """The unstreamed response. Raises HubError."""
        results: list[list[TextChoice]] = [[] for _ in self.prompts]
        counts: list[Usage] = []

        async def run(index: int) -> None:
            lease = await self.lease(index)
            choices = self._choices(index, lease)
            for number, (events, finish) in enumerate(await generation.collect(lease, choices)):
                results[index].append(
                    TextChoice(
                        index=index * self.wanted.n + number,
                        text=self.prompts[index].text + _text(events),
                        finish_reason=finish,
                        logprobs=None
                        if choices[number].reporter is None
                        else text_logprobs(choices[number].take_logprobs()),
                    )
                )
            counts.append(generation.usage(self.prompts[index].plan, choices))
            self.ended()

        await _side_by_side(run, len(self.prompts))
        return text_completion(
            new_id("cmpl"),
            now_secs(),
            self.wanted.model,
            [choice for choices in results for choice in choices],
            _sum(counts),
            {"model_family": self.assets.files.family},
        )

    async def stream(self, first: Lease | None, send: Send) -> None:
        """Send the whole stream, or an error event where it fails."""
        answer_id, created = new_id("cmpl"), now_secs()
        include_usage = self.wanted.include_usage
        counts: list[Usage] = []
        one_at_a_time = trio.Lock()

        def encoder(index: int, number: int) -> TextChunkEncoder:
            position = index * self.wanted.n + number
            return TextChunkEncoder(answer_id, created, self.wanted.model, position, include_usage=include_usage)

        async def guarded(data: bytes) -> None:
            async with one_at_a_time:
                await send(data)

        sender = send if len(self.prompts) == 1 else guarded

        async def run(index: int) -> None:
            lease = first if first is not None and index == 0 else await self.lease(index)
            choices = self._choices(index, lease)
            encoders = [encoder(index, choice.index) for choice in choices]
            offsets = [0 for _ in choices]

            def write(choice: Choice, events: list[Event], finish: FinishReason | None) -> bytes:
                if choice.reporter is None and finish is None and len(events) == 1:
                    only = events[0]
                    return encoders[choice.index].text(only.text) if isinstance(only, Content) else b""
                text = _text(events)
                if choice.reporter is None:
                    data = encoders[choice.index].text(text) if text else b""
                elif text or finish is not None:
                    entries = choice.take_logprobs()
                    data = encoders[choice.index].text(text, text_logprobs(entries, offsets[choice.index]))
                    offsets[choice.index] += sum(len(entry.token) for entry in entries)
                else:
                    data = b""
                return data if finish is None else data + encoders[choice.index].finish(finish)

            echoed = self.prompts[index].text
            if echoed:
                await sender(b"".join(each.text(echoed) for each in encoders))
            await generation.stream(lease, choices, write, sender)
            counts.append(generation.usage(self.prompts[index].plan, choices))
            self.ended()

        try:
            await _side_by_side(run, len(self.prompts))
        except HubError as error:
            await send(error_event(from_hub(error, self.request_id)))
            return
        await send((encoder(0, 0).usage(_sum(counts)) if include_usage else b"") + DONE)


async def _side_by_side(run: Callable[[int], Any], count: int) -> None:
    """Run ``run(0)`` … at once; the first HubError ends the others and is raised by itself."""
    if count == 1:
        await run(0)
        return
    failures: list[HubError] = []
    async with trio.open_nursery() as nursery:

        async def guarded(index: int) -> None:
            try:
                await run(index)
            except HubError as error:
                failures.append(error)
                nursery.cancel_scope.cancel()

        for index in range(count):
            nursery.start_soon(guarded, index)
    if failures:
        raise failures[0]


def _text(events: list[Event]) -> str:
    return "".join(event.text for event in events if isinstance(event, Content))


def _sum(counts: list[Usage]) -> Usage:
    return Usage(
        prompt_tokens=sum(usage.prompt_tokens for usage in counts),
        completion_tokens=sum(usage.completion_tokens for usage in counts),
    )
