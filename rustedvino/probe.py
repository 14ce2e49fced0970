"""Asking a running server whether it is well, as the supervisor does."""

import http.client
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import trio
from attrs import define, frozen

from rustedvino.places import reachable_host

MAX_ANSWER_BYTES: Final = 64 * 1024
MAX_KEYS_FILE_BYTES: Final = 1024 * 1024
WATCHDOG_PATH: Final = "/v1/admin/health/watchdog"


@frozen
class Health:
    """What a probe found. ``trouble`` None: all is well. ``hung``: it will not get better by waiting."""

    trouble: str | None = None
    hung: bool = False


@define(eq=False)
class HttpProbe:
    """Asks ``/health``, and the watchdog where it may: with an admin key from ``keys_path``, or without keys at all.

    A server that does not let us ask the watchdog is judged by ``/health`` alone.
    """

    host: str
    port: int
    keys_path: Path | None
    timeout_secs: float

    async def __call__(self) -> Health:
        """Probe once, within ``timeout_secs``. Never raises; cancellation leaves a thread behind that soon ends."""
        with trio.move_on_after(self.timeout_secs):
            return await trio.to_thread.run_sync(self._probe, abandon_on_cancel=True)
        return Health(f"no answer within {self.timeout_secs:g} s")

    def _probe(self) -> Health:
        try:
            status, _ = self._get("/health", {})
            if status != 200:
                return Health(f"/health answers {status}")
            key = _admin_key(self.keys_path)
            status, body = self._get(WATCHDOG_PATH, {} if key is None else {"Authorization": f"Bearer {key}"})
        except (OSError, http.client.HTTPException) as error:
            return Health(f"it cannot be asked: {str(error) or type(error).__name__}")
        return _judge(body) if status == 200 else Health()

    def _get(self, path: str, headers: Mapping[str, str]) -> tuple[int, bytes]:
        host = reachable_host(self.host)
        connection = http.client.HTTPConnection(host, self.port, timeout=self.timeout_secs)
        try:
            connection.request("GET", path, headers={"Connection": "close", **headers})
            reply = connection.getresponse()
            return reply.status, reply.read(MAX_ANSWER_BYTES)
        finally:
            connection.close()


def _judge(body: bytes) -> Health:
    """What the watchdog's answer means."""
    try:
        report: Any = json.loads(body)
    except ValueError:
        return Health()
    if not isinstance(report, dict) or report.get("status") != "hung":
        return Health()
    silence, model = report.get("oldest_silence_secs"), report.get("oldest_silence_model")
    return Health(f"a generation on {model!r} has been silent for {silence} s", hung=True)


def _admin_key(path: Path | None) -> str | None:
    """An admin key of the keys file as it is now; None when there is none to be read."""
    if path is None:
        return None
    try:
        with path.open("rb") as stream:
            value = json.loads(stream.read(MAX_KEYS_FILE_BYTES).decode("utf-8-sig"))
    except (OSError, ValueError):
        return None  # the server says what is wrong with its keys; we only ask less
    keys = value.get("admin_api_keys") if isinstance(value, dict) else None
    for key in keys if isinstance(keys, list) else []:
        if isinstance(key, str) and key.isascii() and key.isprintable():
            return key
    return None
