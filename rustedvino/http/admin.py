"""``/v1/admin/models*`` and ``/v1/admin/config/*``."""

import os
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import trio
from quart import Blueprint, Response, request
from quart.blueprints import BlueprintSetupState
from werkzeug.routing import BaseConverter

from rustedvino.api import admin as wire
from rustedvino.api import errors as api
from rustedvino.config.problems import ConfigError
from rustedvino.config.store import ConfigNotWritable
from rustedvino.http.asgi import read_body
from rustedvino.http.auth import caller, require_admin
from rustedvino.http.bodies import MAX_BODY_BYTES, read_json
from rustedvino.http.context import context
from rustedvino.http.replies import error_reply, json_reply
from rustedvino.hub.admin import Admin
from rustedvino.hub.admin_errors import AdminRefusal, BadSetting, Cooldown
from rustedvino.hub.admin_views import (
    ENGINE,
    domains_view,
    model_view,
    poisoning_view,
    runtime_versions,
)
from rustedvino.hub.config_sync import MODEL_FIELDS
from rustedvino.hub.model_files import folder_report
from rustedvino.hub.residency import NoRoom, refusal_details

blueprint: Final = Blueprint("admin", __name__, url_prefix="/v1/admin")


class ModelIdConverter(BaseConverter):
    """Whatever stands between the fixed parts of a path, decoded slashes included: it is judged as an id, so that an
    impossible one is told to be that, instead of an unknown path."""

    regex = ".+?"
    part_isolating = False
    weight = 200


@blueprint.record
def _add_converter(state: BlueprintSetupState) -> None:
    state.app.url_map.converters["model_id"] = ModelIdConverter


@blueprint.before_request
async def _gate() -> None:
    require_admin()


# Models.


@blueprint.get("/models")
async def list_models() -> Response:
    """Every registered model, and the server they are in."""
    server = context()
    hub = server.hub
    about = {
        "pid": os.getpid(),
        "uptime_secs": round(trio.current_time() - server.started_clock, 3),
        "engine": ENGINE,
        **runtime_versions(hub),
        **({} if caller(request).key is None else {"host": server.host_name}),
        "gpu_poisoned": poisoning_view(hub.poisoned),
        "memory": domains_view(hub),
    }
    return json_reply({"object": "list", "server": about, "models": [model_view(hub, model_id) for model_id, _ in hub]})


@blueprint.post("/models")
@blueprint.post("/models/add")
async def add_model() -> Response:
    """Register a model, save it in the config, and load it."""
    wanted = wire.read_add(await read_json(request), MODEL_FIELDS)
    return json_reply(await _admin().add(wanted.model_id, wanted.settings), 201)


@blueprint.get("/models/completeness")
async def models_completeness() -> Response:
    """Which registered models lack files, or have some that cannot be used."""
    hub = context().hub
    found = []
    for model_id, model in list(hub):
        work = partial(folder_report, hub.settings.models_dir / model_id, model.actor.settings.kind)
        found.append({"model_id": model_id, **await trio.to_thread.run_sync(work)})
    return json_reply({"complete": all(entry["complete"] for entry in found), "models": found})


@blueprint.patch("/models/<model_id:model_id>")
async def patch_model(model_id: str) -> Response:
    """Change fields of a model's entry."""
    changes = wire.read_patch(await read_json(request), MODEL_FIELDS)
    return json_reply(await _admin().patch(model_id, changes))


@blueprint.delete("/models/<model_id:model_id>")
async def evict_model(model_id: str) -> Response:
    """Unload a model; it stays registered."""
    return json_reply(await _admin().evict(model_id))


@blueprint.delete("/models/<model_id:model_id>/register")
async def deregister_model(model_id: str) -> Response:
    """Take a model out of the registry and of the config."""
    return json_reply(await _admin().deregister(model_id))


@blueprint.post("/models/<model_id:model_id>/load")
async def load_model(model_id: str) -> Response:
    """Load a model and wait until it is ready."""
    wanted = wire.read_load(await _optional_json(), request.args)
    return json_reply(await _admin().load(model_id, force=wanted.force, kv_cache_gb=wanted.kv_cache_gb))


@blueprint.post("/models/<model_id:model_id>/check")
async def check_model(model_id: str) -> Response:
    """What a load would do now."""
    wanted = wire.read_load(await _optional_json(), request.args)
    return json_reply(await _admin().check(model_id, force=wanted.force, kv_cache_gb=wanted.kv_cache_gb))


@blueprint.post("/models/<model_id:model_id>/resize")
async def resize_model(model_id: str) -> Response:
    """Load a model again with another KV pool."""
    wanted = wire.read_resize(await read_json(request))
    return json_reply(await _admin().resize(model_id, wanted.kv_cache_gb))


# The config.


@blueprint.post("/config/reload")
async def reload_config() -> Response:
    """Apply what the config says now."""
    wire.refuse_unknown(await _optional_json(), ())
    return json_reply(await _admin().config.reload())


@blueprint.post("/config/preload")
async def preload() -> Response:
    """Save which models are loaded at start."""
    wanted = wire.read_preload(await read_json(request))
    return json_reply(await _admin().config.preload(wanted.model_ids))


@blueprint.get("/config/audit")
async def audit_config() -> Response:
    """Where the config and the running server differ."""
    return json_reply(await _admin().config.audit())


# Inside.


def _admin() -> Admin:
    admin = context().admin
    assert admin is not None  # only tests of other routes run without
    return admin


async def _optional_json() -> dict[str, Any]:
    """The body's object; {} when there is no body."""
    if request.mimetype:
        return await read_json(request)
    body = await read_body(request, MAX_BODY_BYTES)
    if body:
        raise api.unsupported_media_type(None)
    return {}


@blueprint.errorhandler(AdminRefusal)
async def _refused(error: AdminRefusal) -> Response:
    match error:
        case BadSetting():
            return error_reply(api.bad_request(error.message, error.field, error.code))
        case Cooldown():
            return error_reply(api.rate_limited(error.message, error.retry_after_secs, error.code))
        case _:
            return error_reply(api.conflict(error.message, error.code))


@blueprint.errorhandler(NoRoom)
async def _no_room(error: NoRoom) -> Response:
    """503 when waiting may help, 409 when it cannot; ``details`` has the numbers."""
    refusal = error.refusal
    if refusal.retry_after_secs is None:
        answer = api.conflict(refusal.message, "insufficient_memory")
    else:
        answer = api.unavailable("insufficient_memory", refusal.message, refusal.retry_after_secs)
    return _with_details(answer, refusal_details(refusal))


@blueprint.errorhandler(ConfigNotWritable)
async def _not_writable(error: ConfigNotWritable) -> Response:
    return error_reply(api.conflict(str(error), "no_config_file" if error.path is None else "config_not_writable"))


@blueprint.errorhandler(ConfigError)
async def _config_invalid(error: ConfigError) -> Response:
    problems = [{"path": problem.path, "message": problem.message} for problem in error.problems]
    return _with_details(api.conflict(f"nothing was changed: {error}", "config_invalid"), {"problems": problems})


def _with_details(error: api.ApiError, details: Mapping[str, Any]) -> Response:
    reply = json_reply({**error.envelope(), "details": details}, error.status)
    for name, value in error.response_headers().items():
        reply.headers[name] = value
    return reply
