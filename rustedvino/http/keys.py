"""``/v1/admin/keys/*``."""

import logging
from typing import Final

import trio
from quart import Blueprint, Response

from rustedvino.api import errors as api
from rustedvino.config.keys import load_keys
from rustedvino.config.problems import ConfigError
from rustedvino.http.auth import require_admin
from rustedvino.http.context import context
from rustedvino.http.replies import json_reply

log = logging.getLogger(__name__)

blueprint: Final = Blueprint("keys", __name__, url_prefix="/v1/admin/keys")


@blueprint.before_request
async def _gate() -> None:
    require_admin()


@blueprint.post("/reload")
async def reload_keys() -> Response:
    """Accept what the keys file holds now. Whatever is wrong with it, the keys in use are kept."""
    server = context()
    path = server.keys.path
    if path is None:
        raise api.conflict("this server has no config file, so it has no keys file either", "no_keys_file")
    async with server.keys_reloading:  # what was read last is what holds
        try:
            keys = await trio.to_thread.run_sync(load_keys, path)
        except FileNotFoundError:
            kept = "the keys in use are kept" if server.keys.in_use else "no keys are in use"
            raise api.conflict(f"{path} does not exist; {kept}", "keys_file_missing") from None
        except ConfigError as error:
            log.error("the keys in use are kept: %s", error)
            raise api.conflict(f"the keys in use are kept: {error}", "keys_invalid") from None
        server.keys.replace(keys)
    log.info("read %d keys from %s", len(keys.keys), path)
    for warning in keys.warnings:
        log.warning("%s: %s", path, warning)
    return json_reply(
        {
            "status": "ok",
            "api_keys": len(keys.keys) - keys.admin_count,
            "admin_api_keys": keys.admin_count,
            "warnings": list(keys.warnings),
        }
    )
