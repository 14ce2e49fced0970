"""``POST /v1/chat/completions``."""

from typing import Any, Final

from attrs import frozen
from quart import Blueprint, Response, request

from rustedvino.api.chat import ChatRequest
from rustedvino.api.results import (
    DONE,
    ChatChoice,
    ChunkEncoder,
    FinishReason,
    chat_completion,
    error_event,
    new_id,
    now_secs,
)
from rustedvino.http import generation
from rustedvino.http.asgi import Send
from rustedvino.http.bodies import read_request
from rustedvino.http.context import context
from rustedvino.http.conversation import Conversation, gather, new_call_id, prepare
from rustedvino.http.errors import from_hub
from rustedvino.http.generation import Choice
from rustedvino.http.leases import Leases
from rustedvino.http.replies import json_reply
from rustedvino.http.request_ids import request_id
from rustedvino.http.sse import sse_reply
from rustedvino.hub.errors import HubError
from rustedvino.hub.lease import Lease
from rustedvino.text.tools.events import Content, Event, Reasoning, ToolCallArguments, ToolCallStart

blueprint: Final = Blueprint("chat", __name__)


@blueprint.post("/v1/chat/completions")
async def chat_completions() -> Response:
    """Answer a chat, streamed or whole."""
    server = context()
    chat = await read_request(request, ChatRequest)
    model = server.hub.get(chat.model)
    assets = await model.assets()
    generation.check_kind(model, assets, "chat", also=("vision",))
    answer = _Answer(await prepare(chat, model, assets, server), request_id(request))
    leases, plan = Leases(request, model), answer.conversation.plan
    if not chat.stream:
        return json_reply(await answer.whole(await leases.take(plan)))
    if not model.actor.waits_for_load:
        lease = await leases.take(plan)

        async def produce(send: Send) -> None:
            await answer.stream(lease, send)
    else:

        async def produce(send: Send) -> None:
            # The load may take minutes: the head and keep-alive comments go out meanwhile.
            try:
                late = await leases.take(plan)
            except HubError as error:
                await send(error_event(from_hub(error, answer.request_id)))
                return
            await answer.stream(late, send)

    return sse_reply(produce, keepalive_secs=server.settings.sse_keepalive_secs)


@frozen
class _Answer:
    """One answer on the wire; everything about it but its lease."""

    conversation: Conversation
    request_id: str

    def _extra(self) -> dict[str, Any]:
        conversation = self.conversation
        return {"model_family": conversation.assets.files.family, "sampling": conversation.sampling.report()}

    async def whole(self, lease: Lease) -> dict[str, Any]:
        """The response of an unstreamed request. Raises HubError."""
        choices = self.conversation.choices(lease)
        answers = await generation.collect(lease, choices)
        return chat_completion(
            new_id("chatcmpl"),
            now_secs(),
            self.conversation.chat.model,
            [
                _message(choice, events, finish, self.conversation.assets.tool_dialect)
                for choice, (events, finish) in zip(choices, answers, strict=True)
            ],
            generation.usage(self.conversation.plan, choices),
            self._extra(),
        )

    async def stream(self, lease: Lease, send: Send) -> None:
        """Send the whole stream, or an error event where it fails."""
        choices = self.conversation.choices(lease)
        chat = self.conversation.chat
        dialect = self.conversation.assets.tool_dialect
        answer_id, created = new_id("chatcmpl"), now_secs()
        encoders = [
            ChunkEncoder(answer_id, created, chat.model, choice.index, include_usage=chat.include_usage)
            for choice in choices
        ]

        def write(choice: Choice, events: list[Event], finish: FinishReason | None) -> bytes:
            encoder = encoders[choice.index]
            if choice.reporter is not None:
                return _with_logprobs(encoder, choice, events, finish, dialect)
            if finish is None and len(events) == 1 and type(events[0]) is Content:
                return encoder.content(events[0].text)
            data = [_chunk(encoder, event, dialect) for event in events]
            if finish is not None:
                data.append(encoder.finish(finish))
            return b"".join(data)

        await send(b"".join(encoder.role(self._extra()) for encoder in encoders))
        try:
            await generation.stream(lease, choices, write, send)
        except HubError as error:
            await send(error_event(from_hub(error, self.request_id)))
            return
        counts = generation.usage(self.conversation.plan, choices)
        await send((encoders[0].usage(counts) if chat.include_usage else b"") + DONE)


def _with_logprobs(
    encoder: ChunkEncoder, choice: Choice, events: list[Event], finish: FinishReason | None, dialect: str | None
) -> bytes:
    """The chunks of some events, the log-probabilities of all their tokens with the first of them."""
    data: list[bytes] = []
    for event in events:
        match event:
            case Content(text=text):
                data.append(encoder.delta({"content": text}, choice.take_logprobs()))
            case Reasoning(text=text):
                data.append(encoder.delta({"reasoning_content": text}, choice.take_logprobs()))
            case _:
                data.append(_chunk(encoder, event, dialect))
    if finish is not None:
        rest = choice.take_logprobs()
        if rest:  # tokens that made no text of their own
            data.append(encoder.delta({"content": ""}, rest))
        data.append(encoder.finish(finish))
    return b"".join(data)


def _chunk(encoder: ChunkEncoder, event: Event, dialect: str | None) -> bytes:
    match event:
        case Content(text=text):
            return encoder.content(text)
        case Reasoning(text=text):
            return encoder.reasoning(text)
        case ToolCallStart(index=index, name=name):
            return encoder.tool_call(index, new_call_id(dialect), name)
        case ToolCallArguments(index=index, fragment=fragment):
            return encoder.tool_arguments(index, fragment)
        case _:
            return b""


def _message(choice: Choice, events: list[Event], finish: FinishReason, dialect: str | None) -> ChatChoice:
    answer = gather(events, dialect)
    return ChatChoice(
        index=choice.index,
        content=answer.content,
        reasoning_content=answer.reasoning,
        tool_calls=answer.calls,
        finish_reason=finish,
        logprobs=None if choice.reporter is None else tuple(choice.take_logprobs()),
    )
