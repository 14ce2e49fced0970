"""``/health``, ``/readyz``, ``/health_generate``."""

from typing import Any, Final

import trio
from quart import Blueprint, Response, request

from rustedvino import __version__
from rustedvino.api import errors as api
from rustedvino.api.completions import CompletionRequest, Prompts
from rustedvino.http import generation
from rustedvino.http.completions import prepare
from rustedvino.http.context import context
from rustedvino.http.leases import Leases
from rustedvino.http.replies import json_reply
from rustedvino.hub.hub import Model
from rustedvino.hub.states import State

blueprint: Final = Blueprint("health", __name__)

PROBE_PROMPT: Final = "Hello"


@blueprint.get("/health")
async def health() -> Response:
    """The server answers. Says nothing of the models."""
    return json_reply({"status": "ok", "version": __version__, "git_hash": context().git_hash})


@blueprint.get("/readyz")
async def readyz() -> Response:
    """200 when every model that is loaded at start is ready."""
    waiting = [
        {"model": actor.model_id, "state": actor.state.value, "error": actor.last_error}
        for actor in context().hub.not_ready()
    ]
    if waiting:
        return json_reply({"status": "not_ready", "models": waiting}, 503)
    return json_reply({"status": "ready", "models": []})


@blueprint.get("/health_generate")
async def health_generate() -> Response:
    """One real token through ``?model=``, or through the first ready text model."""
    server = context()
    named = request.args.get("model")
    model = server.hub.get(named) if named is not None else _first_ready(dict(server.hub))
    assets = await model.assets()
    generation.check_kind(model, assets, "generation")
    wanted = CompletionRequest(
        model=model.actor.model_id, prompt=Prompts((PROBE_PROMPT,)), max_tokens=1, temperature=0.0, ignore_eos=True
    )
    started = trio.current_time()
    prompt = await prepare(wanted, 0, model, assets, server)
    lease = await Leases(request, model).take(prompt.plan)
    sequence = lease.sequences[0]
    while not sequence.done:
        await lease.wait()
    if sequence.failure is not None:
        raise sequence.failure
    answer: dict[str, Any] = {
        "status": "ok",
        "model": model.actor.model_id,
        "tokens": len(sequence.tokens),
        "duration_ms": round((trio.current_time() - started) * 1000, 3),
    }
    return json_reply(answer)


def _first_ready(models: dict[str, Model]) -> Model:
    for model in models.values():
        files = model.actor.files
        if model.actor.state is State.READY and files is not None and files.kind == "text_gen":
            return model
    raise api.unavailable("model_loading", "no text model is ready", 1.0)
