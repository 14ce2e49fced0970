"""``POST /v1/chat/completions``."""

from collections.abc import Sequence
from typing import Any, Final

from attrs import frozen
from quart import Blueprint, Response, request

from rustedvino.api import errors as api
from rustedvino.api.chat import ChatRequest
from rustedvino.api.results import (
    DONE,
    ChatChoice,
    ChunkEncoder,
    FinishReason,
    ToolCallResult,
    chat_completion,
    error_event,
    new_id,
    now_secs,
)
from rustedvino.http import generation
from rustedvino.http.asgi import Send, request_cleanup
from rustedvino.http.bodies import read_request
from rustedvino.http.context import ServerContext, context, request_id
from rustedvino.http.errors import from_hub
from rustedvino.http.generation import Choice
from rustedvino.http.replies import json_reply
from rustedvino.http.sampling import Sampling, effective_sampling
from rustedvino.http.sse import sse_reply
from rustedvino.hub.errors import HubError
from rustedvino.hub.hub import Model
from rustedvino.hub.lease import GenerationRequest, Lease
from rustedvino.hub.text_assets import TextAssets
from rustedvino.text.answer import AnswerReader
from rustedvino.text.history import template_messages
from rustedvino.text.templates import TemplateError
from rustedvino.text.tokenizer import LONG_TEXT_CHARS
from rustedvino.text.tools.events import Content, Event, Reasoning, ToolCallArguments, ToolCallStart

blueprint: Final = Blueprint("chat", __name__)


@blueprint.post("/v1/chat/completions")
async def chat_completions() -> Response:
    """Answer a chat, streamed or whole."""
    server = context()
    chat = await read_request(request, ChatRequest)
    _refuse_unsupported(chat)
    model = server.hub.get(chat.model)
    assets = await model.text.assets()
    generation.check_kind(model, assets, "chat")
    conversation = await prepare(chat, assets, server)
    answer = _Answer(chat, model, assets, conversation, server, request_id(request))
    cleanup = request_cleanup(request)

    async def take_lease() -> Lease:
        lease = await model.actor.lease(conversation.plan)
        cleanup.callback(lease.close)
        return lease

    if not chat.stream:
        return json_reply(await answer.whole(await take_lease()))
    if not model.actor.waits_for_load:
        lease = await take_lease()

        async def produce(send: Send) -> None:
            await answer.stream(lease, send)
    else:

        async def produce(send: Send) -> None:
            # The load may take minutes: the head and keep-alive comments go out meanwhile.
            try:
                late = await take_lease()
            except HubError as error:
                await send(error_event(from_hub(error, answer.request_id)))
                return
            await answer.stream(late, send)

    return sse_reply(produce, keepalive_secs=server.settings.sse_keepalive_secs)


@frozen
class Conversation:
    """A rendered and tokenized chat with what it will be generated with."""

    rendered: str
    plan: GenerationRequest
    sampling: Sampling


async def prepare(chat: ChatRequest, assets: TextAssets, server: ServerContext) -> Conversation:
    """Render, tokenize, check. Raises ApiError."""
    texts = [message.text for message in chat.messages]
    generation.refuse_surely_too_long(assets, texts, "messages")
    rendered: list[str] = []

    def work() -> list[int]:
        rendered.append(render(chat.to_template_messages(), chat.template_tools(), _variables(chat), assets))
        assert assets.tokenizer is not None
        return assets.tokenizer.encode_rendered(rendered[0])

    size = sum(len(text) for text in texts)
    ids = await generation.in_thread_if_long(size, LONG_TEXT_CHARS, work)
    plain = not chat.tools and chat.response_format is None
    sampling = effective_sampling(chat, assets.files.generation, _model_settings(server, chat.model), plain=plain)
    plan = generation.plan(ids, chat, sampling, assets, server.settings, param="messages")
    return Conversation(rendered[0], plan, sampling)


def render(
    messages: Sequence[dict[str, Any]],
    tools: Sequence[dict[str, Any]] | None,
    variables: dict[str, Any],
    assets: TextAssets,
    *,
    add_generation_prompt: bool = True,
) -> str:
    """The prompt of a conversation, control strings of the client marked. Raises ApiError."""
    if assets.template is None:
        raise api.bad_request(
            f"this model cannot chat: {assets.template_problem}; use /v1/completions", "model", "chat_not_supported"
        )
    if assets.tokenizer is None:
        raise api.bad_request(f"this model cannot chat: {assets.tokenizer_problem}", "model", "chat_not_supported")
    probe = assets.probe
    assert probe is not None
    marker = assets.tokenizer.marker
    history = template_messages(messages, arguments=probe.arguments, content=probe.content)
    try:
        return assets.template.render(
            marker.mark_tree(history),
            tools=None if tools is None else marker.mark_tree(list(tools)),
            add_generation_prompt=add_generation_prompt,
            **marker.mark_tree(variables),
        )
    except TemplateError as error:
        raise api.bad_request(f"the model's chat template refused the messages: {error}", "messages") from error


def _variables(chat: ChatRequest) -> dict[str, Any]:
    variables = dict(chat.chat_template_kwargs)
    if chat.thinking is not None:
        variables["enable_thinking"] = chat.thinking
    if chat.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", chat.reasoning_effort)
    return variables


def _model_settings(server: ServerContext, model_id: str) -> Any:
    return server.settings.models[model_id]


def _refuse_unsupported(chat: ChatRequest) -> None:
    """What this version cannot do is refused by name, never ignored."""
    for name, given in (
        ("tools", chat.tools and chat.effective_tool_choice.mode != "none"),
        ("response_format", chat.response_format is not None and chat.response_format.type != "text"),
        ("logprobs", chat.logprobs),
    ):
        if given:
            raise api.bad_request(f"'{name}' is not supported by this version", name, "unsupported_parameter")
    for path, part in chat.media_parts():
        raise api.bad_request(f"content of type '{part.type}' is not supported by this model", path)


@frozen
class _Answer:
    """Everything about one answer but its lease."""

    chat: ChatRequest
    model: Model
    assets: TextAssets
    conversation: Conversation
    server: ServerContext
    request_id: str

    def _choices(self, lease: Lease) -> list[Choice]:
        assert self.assets.tokenizer is not None
        return [
            Choice(
                index,
                sequence,
                lease,
                AnswerReader(
                    self.assets.tokenizer.decoder(),
                    self.assets.controls,
                    self.assets.eos_token_ids,
                    stops=self.chat.stop_strings,
                ),
            )
            for index, sequence in enumerate(lease.sequences)
        ]

    def _extra(self) -> dict[str, Any]:
        return {"model_family": self.assets.files.family, "sampling": self.conversation.sampling.report()}

    async def whole(self, lease: Lease) -> dict[str, Any]:
        """The response of an unstreamed request. Raises HubError."""
        choices = self._choices(lease)
        answers = await generation.collect(lease, choices)
        return chat_completion(
            new_id("chatcmpl"),
            now_secs(),
            self.chat.model,
            [_message(index, events, finish) for index, (events, finish) in enumerate(answers)],
            generation.usage(self.conversation.plan, choices),
            self._extra(),
        )

    async def stream(self, lease: Lease, send: Send) -> None:
        """Send the whole stream, or an error event where it fails."""
        choices = self._choices(lease)
        include_usage = self.chat.include_usage
        answer_id, created = new_id("chatcmpl"), now_secs()
        encoders = [
            ChunkEncoder(answer_id, created, self.chat.model, choice.index, include_usage=include_usage)
            for choice in choices
        ]

        def write(choice: Choice, events: list[Event], finish: FinishReason | None) -> bytes:
            encoder = encoders[choice.index]
            if finish is None and len(events) == 1 and type(events[0]) is Content:
                return encoder.content(events[0].text)
            data = [_chunk(encoder, event) for event in events]
            if finish is not None:
                data.append(encoder.finish(finish))
            return b"".join(data)

        await send(b"".join(encoder.role(self._extra()) for encoder in encoders))
        try:
            await generation.stream(lease, choices, write, send)
        except HubError as error:
            await send(error_event(from_hub(error, self.request_id)))
            return
        tail = encoders[0].usage(generation.usage(self.conversation.plan, choices)) if include_usage else b""
        await send(tail + DONE)


def _chunk(encoder: ChunkEncoder, event: Event) -> bytes:
    match event:
        case Content(text=text):
            return encoder.content(text)
        case Reasoning(text=text):
            return encoder.reasoning(text)
        case ToolCallStart(index=index, name=name):
            return encoder.tool_call(index, new_id("call"), name)
        case ToolCallArguments(index=index, fragment=fragment):
            return encoder.tool_arguments(index, fragment)
        case _:
            return b""


def _message(index: int, events: list[Event], finish: FinishReason) -> ChatChoice:
    content = "".join(event.text for event in events if isinstance(event, Content))
    reasoning = "".join(event.text for event in events if isinstance(event, Reasoning))
    names = {event.index: event.name for event in events if isinstance(event, ToolCallStart)}
    calls = tuple(
        ToolCallResult(
            id=new_id("call"),
            name=name,
            arguments="".join(
                event.fragment for event in events if isinstance(event, ToolCallArguments) and event.index == call
            ),
        )
        for call, name in names.items()
    )
    return ChatChoice(
        index=index,
        content=content if content or not (calls or reasoning) else None,
        reasoning_content=reasoning or None,
        tool_calls=calls,
        finish_reason=finish,
    )
