"""The real runtime without memory: what is said, that the model is not loaded for ever, and the way out."""

from pathlib import Path
from typing import Any

from tests.support.answers import completion_body, expect_error, expect_ok
from tests.support.disturb import COMPLETIONS, HealthWatch, card, misbehaving
from tests.support.server import F32, ServerProcess

MODEL = "tiny-qwen3"
LIMIT_BYTES = 300 * 2**20
"""Enough for the CPU plugin itself, not for a compiled model."""
OPTIONS: dict[str, Any] = {
    "num_threads": 1,
    "spare_workers": 0,
    "supervisor": {"backoff_base_secs": 0.1, "max_restarts": 100},
}


def restarts(server: ServerProcess, reason: str) -> float:
    """The count of restarts that a scrape shows."""
    (line,) = (
        line
        for line in server.client.get("/metrics").text.splitlines()
        if line.startswith("rustedvino_worker_restarts_total{") and f'reason="{reason}"' in line
    )
    return float(line.rpartition(" ")[2])


def test_loads_under_a_limit_on_the_address_space(tmp_path: Path) -> None:
    limit = tmp_path / "limit"
    limit.write_text(str(LIMIT_BYTES))
    limited = ServerProcess.serving(tmp_path, {MODEL: F32}, environment=misbehaving(f"limited_load={limit}"), **OPTIONS)
    with limited as server, HealthWatch(server):
        server.wait_states({MODEL: "failed"})
        error = expect_error(server.post(COMPLETIONS, completion_body(MODEL, "x")), 503, "model_failed")
        assert "2 loads in a row ran out of memory" in error["message"]
        assert "2 loads in a row ran out of memory" in card(server, MODEL)["last_error"]
        assert card(server, MODEL)["worker_pid"] is None
        assert (restarts(server, "oom"), restarts(server, "crash"), restarts(server, "engine_fault")) == (1, 0, 0)
        limit.unlink()
        expect_ok(server.client.post(f"/v1/admin/models/{MODEL}/load"))
        expect_ok(server.post(COMPLETIONS, completion_body(MODEL, "x", max_tokens=3)))
        assert card(server, MODEL)["last_error"] is None
