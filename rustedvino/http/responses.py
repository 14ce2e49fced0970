"""``POST /v1/responses``: a chat in OpenAI's newer words, nothing kept between requests."""

import contextlib
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final

import attrs
from attrs import define
from quart import Blueprint, Response, request

from rustedvino.api.errors import ApiError
from rustedvino.api.response_events import ResponseWriter
from rustedvino.api.responses import ResponsesRequest
from rustedvino.api.responses_chat import Translation, to_chat
from rustedvino.api.results import FinishReason, TokenLogprob
from rustedvino.http import generation
from rustedvino.http.asgi import Send
from rustedvino.http.bodies import read_request
from rustedvino.http.context import context
from rustedvino.http.conversation import Conversation, new_call_id, prepare
from rustedvino.http.errors import from_hub
from rustedvino.http.generation import Choice
from rustedvino.http.leases import Leases
from rustedvino.http.replies import json_reply
from rustedvino.http.request_ids import request_id
from rustedvino.http.sse import sse_reply
from rustedvino.hub.errors import HubError
from rustedvino.hub.lease import Lease
from rustedvino.text.tools.events import Content, Event, Reasoning, ToolCallArguments, ToolCallEnd, ToolCallStart

blueprint: Final = Blueprint("responses", __name__)


@blueprint.post("/v1/responses")
async def responses() -> Response:
    """Answer a conversation, streamed or whole."""
    server = context()
    wanted = await read_request(request, ResponsesRequest)
    translation = to_chat(wanted)
    model = server.hub.get(wanted.model)
    assets = await model.assets()
    generation.check_kind(model, assets, "responses", also=("vision",))
    leases, number = Leases(request, model), request_id(request)
    with _in_words_of(translation, number):
        conversation = await prepare(translation.chat, model, assets, server)

    async def take_lease() -> Lease:
        with _in_words_of(translation, number):
            return await leases.take(conversation.plan)

    answer = _Answer(wanted, conversation, number)
    if not wanted.stream:
        return json_reply(await answer.whole(await take_lease()))
    if model.actor.waits_for_load:
        # The load may take minutes: the response begins and keep-alive comments go out meanwhile.
        late = take_lease
    else:
        lease = await take_lease()

        async def late() -> Lease:
            return lease

    async def produce(send: Send) -> None:
        await answer.stream(late, send)

    return sse_reply(produce, keepalive_secs=server.settings.sse_keepalive_secs)


@contextlib.contextmanager
def _in_words_of(translation: Translation, number: str) -> Iterator[None]:
    """Raise what is raised about the chat as an error about the request that it was made from."""
    try:
        yield
    except ApiError as error:
        raise translation.error(error) from error
    except HubError as error:
        raise translation.error(from_hub(error, number)) from error


@define(eq=False)
class _Answer:
    """One answer on the wire; everything about it but its lease."""

    wanted: ResponsesRequest
    conversation: Conversation
    request_id: str

    async def whole(self, lease: Lease) -> dict[str, Any]:
        """The response of an unstreamed request. Raises HubError."""
        writer = self._writer(streaming=False)
        await self._run(lease, writer, _nowhere)
        return writer.response

    async def stream(self, take_lease: Callable[[], Awaitable[Lease]], send: Send) -> None:
        """Send the whole stream; where it fails it ends with `response.failed`."""
        writer = self._writer(streaming=True)
        await send(writer.start())
        try:
            await self._run(await take_lease(), writer, send)
        except HubError as error:
            await send(writer.fail(from_hub(error, self.request_id)))
        except ApiError as error:
            await send(writer.fail(error))

    def _writer(self, *, streaming: bool) -> ResponseWriter:
        sampling = self.conversation.sampling
        fields = {
            **self.wanted.echo(),
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "model_family": self.conversation.assets.files.family,
            "sampling": sampling.report(),
        }
        return ResponseWriter(fields, streaming=streaming)

    async def _run(self, lease: Lease, writer: ResponseWriter, send: Send) -> None:
        """Read the answer to its end, each wake-up's events in one piece. Raises HubError."""
        choices = self.conversation.choices(lease)
        plan, dialect = self.conversation.plan, self.conversation.assets.tool_dialect
        logprobs = _TextLogprobs(choices[0])

        def write(choice: Choice, events: list[Event], finish: FinishReason | None) -> bytes:
            if finish is None and len(events) == 1 and type(events[0]) is Content:
                return writer.text(events[0].text, logprobs.take())
            data = [_write(writer, event, logprobs, dialect) for event in events]
            if finish is not None:
                rest = logprobs.take() if writer.in_text else ()
                if rest:  # tokens that made no text of their own
                    data.append(writer.text("", rest))
                usage = generation.usage(plan, choices)
                data.append(writer.finish(finish, attrs.evolve(usage, reasoning_tokens=choice.reader.reasoning_tokens)))
            return b"".join(data)

        await generation.stream(lease, choices, write, send)


def _write(writer: ResponseWriter, event: Event, logprobs: "_TextLogprobs", dialect: str | None) -> bytes:
    match event:
        case Content(text=text):
            return writer.text(text, logprobs.take())
        case Reasoning(text=text):
            return writer.reasoning(text)
    logprobs.skip()
    match event:
        case ToolCallStart(name=name):
            return writer.call(new_call_id(dialect), name)
        case ToolCallArguments(fragment=fragment):
            return writer.arguments(fragment)
        case ToolCallEnd(complete=complete):
            return writer.end_call(complete=complete)


@define(eq=False)
class _TextLogprobs:
    """Log-probabilities of the tokens of the text alone: those of thinking and of calls are left out."""

    choice: Choice
    _taken: int = 0

    def take(self) -> Sequence[TokenLogprob]:
        """Entries of the tokens of text read since the last call; none when they are not wanted."""
        choice, reporter = self.choice, self.choice.reporter
        if reporter is None:
            return ()
        tokens, values = choice.sequence.tokens, choice.sequence.logprobs
        start, self._taken = max(self._taken, choice.reader.reasoning_end), choice.reader.tokens_read
        entries = (reporter.report(tokens[i], values[i]) for i in range(start, self._taken))
        return [entry for entry in entries if entry is not None]

    def skip(self) -> None:
        """Leave out the tokens read since the last call."""
        self._taken = self.choice.reader.tokens_read


async def _nowhere(data: bytes) -> None:
    """For a whole answer, which has no events to send."""
    assert not data
