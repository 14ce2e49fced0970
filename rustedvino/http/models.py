"""``/v1/models``, ``/tokenize``, ``/detokenize``."""

from functools import partial
from typing import Any, Final

from quart import Blueprint, Response, request

from rustedvino.api import errors as api
from rustedvino.api.results import model_card, model_list
from rustedvino.api.tokenize import DetokenizeRequest, TokenizeRequest
from rustedvino.http import generation
from rustedvino.http.bodies import read_request
from rustedvino.http.context import context
from rustedvino.http.conversation import render
from rustedvino.http.replies import json_reply
from rustedvino.hub.hub import Hub, Model
from rustedvino.hub.model_files import ModelProblem
from rustedvino.hub.runtime_tokenizer import RuntimeTokenizer
from rustedvino.hub.text_assets import TextAssets, encode_raw, encode_rendered
from rustedvino.text.tokenizer import LONG_TEXT_CHARS, ModelTokenizer

blueprint: Final = Blueprint("models", __name__)


@blueprint.get("/v1/models")
async def list_models() -> Response:
    """Every registered model, ready or not."""
    server = context()
    created = int(server.started_at)
    return json_reply(model_list(_card(model_id, model, created) for model_id, model in server.hub))


@blueprint.get("/v1/models/<path:model_id>")
async def retrieve_model(model_id: str) -> Response:
    """One model."""
    server = context()
    return json_reply(_card(model_id, server.hub.get(model_id), int(server.started_at)))


def _card(model_id: str, model: Model, started_at: int) -> dict[str, Any]:
    files = model.actor.files
    extra: dict[str, Any] = {"state": model.actor.state.value}
    if files is not None:
        extra |= {"kind": files.kind, "max_model_len": files.context_tokens}
    return model_card(model_id, files.created if files is not None else started_at, extra)


@blueprint.post("/tokenize")
async def tokenize() -> Response:
    """Token ids of a text or a conversation; the model need not be loaded."""
    server = context()
    wanted = await read_request(request, TokenizeRequest)
    _, assets, tokenizer = await _tokenizer(server.hub, wanted.model)
    if wanted.messages is None:
        ids = await encode_raw(
            tokenizer,
            wanted.prompt or "",
            parse_special=wanted.parse_special,
            add_special_tokens=wanted.with_special_tokens,
        )
    else:
        variables = dict(wanted.chat_template_kwargs)
        if wanted.enable_thinking is not None:
            variables["enable_thinking"] = wanted.enable_thinking
        parts = (wanted.to_template_messages(), [tool.raw for tool in wanted.tools] or None, variables)
        work = partial(render, *parts, assets, add_generation_prompt=wanted.add_generation_prompt)
        size = generation.weight(parts, LONG_TEXT_CHARS)
        rendered = await generation.in_thread_if_long(size, LONG_TEXT_CHARS, work)
        ids = await encode_rendered(tokenizer, rendered)
        if wanted.with_special_tokens:
            ids = [*tokenizer.bos_token_ids, *ids]
    answer: dict[str, Any] = {"count": len(ids), "max_model_len": assets.files.context_tokens, "tokens": ids}
    if wanted.return_token_strs:
        answer["token_strs"] = [tokenizer.token_text(token) for token in ids]
    return json_reply(answer)


@blueprint.post("/detokenize")
async def detokenize() -> Response:
    """The text of token ids, control tokens included."""
    server = context()
    wanted = await read_request(request, DetokenizeRequest)
    _, _, tokenizer = await _tokenizer(server.hub, wanted.model)
    for index, token in enumerate(wanted.token_ids):
        if token >= tokenizer.vocab_size:
            raise api.bad_request(
                f"token id {token} is outside the model's vocabulary of {tokenizer.vocab_size}", f"tokens[{index}]"
            )
    return json_reply({"prompt": tokenizer.decode(wanted.token_ids)})


async def _tokenizer(hub: Hub, model_id: str | None) -> tuple[Model, TextAssets, ModelTokenizer | RuntimeTokenizer]:
    """The tokenizer of the named model, or of the only one there is. Raises ApiError."""
    if model_id is None:
        only = [known for known, _ in hub]
        if len(only) != 1:
            raise api.bad_request("you must provide 'model': this server has several", "model")
        model_id = only[0]
    model = hub.get(model_id)
    try:
        assets = await model.assets()
    except ModelProblem as error:
        raise api.bad_request(f"the model {model_id!r} cannot be tokenized for: {error}", "model") from error
    return model, assets, assets.tokenizer
