"""``POST /v1/responses``: a chat in OpenAI's newer words, nothing kept between requests."""

from collections.abc import Awaitable, Callable
from typing import Final

import attrs
from attrs import define
from quart import Blueprint, Response, request

from rustedvino.api.errors import ApiError
from rustedvino.api.response_events import ResponseWriter
from rustedvino.api.responses import ResponsesRequest
from rustedvino.api.responses_chat import to_chat
from rustedvino.api.results import FinishReason, TokenLogprob
from rustedvino.http import generation
from rustedvino.http.asgi import Send, request_cleanup
from rustedvino.http.bodies import read_request
from rustedvino.http.context import context, request_id
from rustedvino.http.conversation import Conversation, new_call_id, prepare
from rustedvino.http.errors import from_hub
from rustedvino.http.generation import Choice
from rustedvino.http.replies import json_reply
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
    generation.check_kind(model, assets, "responses")
    try:
        conversation = await prepare(translation.chat, assets, server)
    except ApiError as error:
        raise translation.error(error) from error
    cleanup, number = request_cleanup(request), request_id(request)

    async def take_lease() -> Lease:
        try:
            lease = await model.actor.lease(conversation.plan)
        except HubError as error:
            raise translation.error(from_hub(error, number)) from error
        cleanup.callback(lease.close)
        return lease

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
