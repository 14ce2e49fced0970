"""A chat on its way into and out of a model: rendering, tokenizing, checks, readers, and what the answer was."""

import hashlib
import secrets
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import attrs
from attrs import field, frozen

from rustedvino.api import errors as api
from rustedvino.api.chat import ChatRequest
from rustedvino.api.results import ToolCallResult
from rustedvino.http import generation
from rustedvino.http.constraints import check_form, constraint_for
from rustedvino.http.context import ServerContext
from rustedvino.http.generation import Choice, TokenReporter
from rustedvino.http.leases import counting_context_errors
from rustedvino.http.prompts import log_prompt
from rustedvino.http.sampling import Sampling, effective_sampling
from rustedvino.http.vision import Arrange, prepare_vision
from rustedvino.hub.hub import Model
from rustedvino.hub.lease import GenerationRequest, Lease
from rustedvino.hub.text_assets import TextAssets, encode_rendered
from rustedvino.text.answer import AnswerReader
from rustedvino.text.history import template_messages
from rustedvino.text.markers import ControlMarker
from rustedvino.text.reasoning import starts_in_reasoning
from rustedvino.text.templates import TemplateError
from rustedvino.text.tokenizer import LONG_TEXT_CHARS
from rustedvino.text.tools.events import Content, Event, Reasoning, ToolCallArguments, ToolCallStart
from rustedvino.text.tools.output import OutputParser

MISTRAL: Final = "mistral"
SHORT_CALL_ID_CHARS: Final = 9
_TAIL_CHARS: Final = 256
"""As much of a prompt's end as says whether it ends inside an open block of thinking."""


@frozen(kw_only=True)
class Conversation:
    """A rendered and tokenized chat with what it will be generated with."""

    chat: ChatRequest
    assets: TextAssets
    plan: GenerationRequest
    sampling: Sampling
    inside_reasoning: bool
    constrained: bool
    """Whether a grammar decides the form of the answer. It matches text: control tokens stand for their letters."""

    def choices(self, lease: Lease) -> list[Choice]:
        """Readers for the sequences of the lease."""
        tokenizer = self.assets.tokenizer
        reporter = TokenReporter(tokenizer, self.assets.eos_token_ids) if self.chat.logprobs else None
        return [
            Choice(
                index,
                sequence,
                lease,
                AnswerReader(
                    tokenizer.decoder(),
                    self.assets.controls,
                    self.assets.eos_token_ids,
                    stops=self.chat.stop_strings,
                    parser=self._parser(),
                    controls_are_text=self.constrained,
                ),
                reporter,
            )
            for index, sequence in enumerate(lease.sequences)
        ]

    def _parser(self) -> OutputParser | None:
        callable_tools = self.chat.effective_tool_choice.mode != "none" and self.assets.tool_dialect is not None
        if self.assets.reasoning is None and not callable_tools:
            return None
        return OutputParser(
            reasoning=self.assets.reasoning,
            dialect=self.assets.tool_dialect,
            tools={tool.name: tool.parameters or {} for tool in self.chat.tools} if callable_tools else None,
            control_tokens=frozenset() if self.constrained else frozenset(self.assets.tokenizer.control_tokens),
            inside_reasoning=self.inside_reasoning,
            parallel=self.chat.parallel_tool_calls,
        )


async def prepare(chat: ChatRequest, model: Model, assets: TextAssets, server: ServerContext) -> Conversation:
    """Render, tokenize, check. Raises ApiError."""
    _refuse_unsupported(chat, assets)
    texts = [message.text for message in chat.messages]
    with counting_context_errors(model, "length"):
        generation.refuse_surely_too_long(assets, texts, "messages")
    parts = (chat.to_template_messages(), chat.template_tools(), _variables(chat))
    work = partial(render, *parts, assets)
    plain = not chat.tools and chat.response_format is None
    settings = model.actor.settings
    sampling = effective_sampling(chat, assets.files.generation, settings, plain=plain)

    def plan(ids: list[int]) -> GenerationRequest:
        with counting_context_errors(model, "tokens"):
            return generation.plan(
                ids, chat, sampling, assets, server.settings, param="messages", logprobs=chat.logprobs
            )

    if assets.files.kind == "vision":
        rendered, request = await prepare_vision(
            chat, model, assets, server, lambda marker, arrange: work(marker=marker, arrange=arrange), plan
        )
    else:
        size = generation.weight(parts, LONG_TEXT_CHARS)
        rendered = await generation.in_thread_if_long(size, LONG_TEXT_CHARS, work)
        with counting_context_errors(model, "length"):  # tools and arguments are text too
            generation.refuse_surely_too_long(assets, [assets.tokenizer.marker.unmark(rendered)], "messages")
        request = plan(await encode_rendered(assets.tokenizer, rendered))
    log_prompt(server.settings, chat.model, assets.tokenizer.marker.unmark(rendered))
    tail = rendered[-_TAIL_CHARS:]
    inside_reasoning = starts_in_reasoning(tail)
    constraint = await constraint_for(chat, model, assets, server.hub, tail, inside_reasoning=inside_reasoning)
    if constraint is not None:
        options = tuple({**each, "constraint": constraint} for each in request.options)
        request = attrs.evolve(request, options=options)
    return Conversation(
        chat=chat,
        assets=assets,
        plan=request,
        sampling=sampling,
        inside_reasoning=inside_reasoning,
        constrained=constraint is not None,
    )


def render(
    messages: Sequence[dict[str, Any]],
    tools: Sequence[dict[str, Any]] | None,
    variables: dict[str, Any],
    assets: TextAssets,
    *,
    add_generation_prompt: bool = True,
    marker: ControlMarker | None = None,
    arrange: Arrange = list,
) -> str:
    """The prompt of a conversation, control strings of the client marked. Raises ApiError."""
    if assets.template is None:
        raise api.bad_request(
            f"this model cannot chat: {assets.template_problem}; use /v1/completions", "model", "chat_not_supported"
        )
    probe = assets.probe
    assert probe is not None
    marker = marker or assets.tokenizer.marker
    history = template_messages(
        messages,
        arguments=probe.arguments,
        content=probe.content,
        null_call_content=probe.null_call_content,
    )
    if assets.tool_dialect == MISTRAL:
        history = [short_call_ids(message) for message in history]
    try:
        return assets.template.render(
            arrange(marker.mark_tree(history)),
            tools=None if tools is None else marker.mark_tree(list(tools)),
            add_generation_prompt=add_generation_prompt,
            **marker.mark_tree(variables),
        )
    except TemplateError as error:
        raise api.bad_request(f"the model's chat template refused the messages: {error}", "messages") from error


def new_call_id(dialect: str | None) -> str:
    """A fresh id of a tool call; Mistral's templates take nine letters or digits only."""
    return secrets.token_hex(5)[:SHORT_CALL_ID_CHARS] if dialect == MISTRAL else f"call_{secrets.token_hex(12)}"


def short_call_ids(message: dict[str, Any]) -> dict[str, Any]:
    """The message with ids of tool calls as Mistral's templates take them; the same id gives the same one."""
    message = dict(message)
    if message.get("tool_call_id") is not None:
        message["tool_call_id"] = _short(message["tool_call_id"])
    if message.get("tool_calls"):
        message["tool_calls"] = [{**call, "id": _short(call.get("id") or "")} for call in message["tool_calls"]]
    return message


def _short(call_id: str) -> str:
    if len(call_id) == SHORT_CALL_ID_CHARS and call_id.isalnum() and call_id.isascii():
        return call_id
    return hashlib.blake2b(call_id.encode("utf-8", "replace"), digest_size=8).hexdigest()[:SHORT_CALL_ID_CHARS]


def _variables(chat: ChatRequest) -> dict[str, Any]:
    variables = dict(chat.chat_template_kwargs)
    if chat.thinking is not None:
        variables["enable_thinking"] = chat.thinking
    if chat.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", chat.reasoning_effort)
    return variables


def _refuse_unsupported(chat: ChatRequest, assets: TextAssets) -> None:
    """What cannot be done is refused by name, never ignored."""
    check_form(chat, assets)
    if chat.top_logprobs:
        raise api.bad_request(
            "'top_logprobs' must be 0: the runtime reports the chosen token only",
            "top_logprobs",
            "unsupported_parameter",
        )
    for path, part in chat.media_parts() if assets.files.kind != "vision" else ():
        raise api.bad_request(f"content of type '{part.type}' is not supported by this model", path)


@frozen
class Gathered:
    """A whole answer. ``content`` is None when only tools were called or the answer ended inside thinking."""

    content: str | None
    reasoning: str | None
    calls: tuple[ToolCallResult, ...] = field(default=())


def gather(events: Sequence[Event], dialect: str | None) -> Gathered:
    """Join the events of one choice."""
    content = "".join(event.text for event in events if isinstance(event, Content))
    reasoning = "".join(event.text for event in events if isinstance(event, Reasoning))
    names = {event.index: event.name for event in events if isinstance(event, ToolCallStart)}
    fragments: dict[int, list[str]] = {index: [] for index in names}
    for event in events:
        if isinstance(event, ToolCallArguments):
            fragments[event.index].append(event.fragment)
    calls = tuple(
        ToolCallResult(id=new_call_id(dialect), name=name, arguments="".join(fragments[index]))
        for index, name in names.items()
    )
    return Gathered(
        content=content if content or not (calls or reasoning) else None,
        reasoning=reasoning or None,
        calls=calls,
    )
