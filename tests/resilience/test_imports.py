"""A machine that the runtime cannot run on: its import kills every worker that tries."""

import time
from pathlib import Path
from typing import Any

from tests.support.answers import completion_body, expect_error, expect_ok
from tests.support.disturb import COMPLETIONS, HealthWatch, card, cpu_secs, misbehaving
from tests.support.server import ServerProcess

MODEL = "tiny-qwen3"


def test_the_server_is_up_says_why_and_is_idle(tmp_path: Path) -> None:
    options: dict[str, Any] = {"supervisor": {"max_restarts": 1, "backoff_base_secs": 0.1}, "spare_workers": 1}
    dying = misbehaving("illegal_instruction")
    with ServerProcess.serving(tmp_path, [MODEL], environment=dying, **options) as server, HealthWatch(server):
        server.wait_states({MODEL: "failed"})
        readiness = server.client.get("/readyz")
        assert readiness.status_code == 503
        (told,) = readiness.json()["models"]
        assert (told["model"], told["state"]) == (MODEL, "failed")
        assert "SIGILL" in told["error"]
        error = expect_error(server.post(COMPLETIONS, completion_body(MODEL, "x")), 503, "model_failed")
        assert "SIGILL" in error["message"]
        assert "SIGILL" in card(server, MODEL)["last_error"]
        expect_ok(server.client.get("/v1/models"))
        assert server.client.get("/metrics").status_code == 200
        error = expect_error(server.client.post(f"/v1/admin/models/{MODEL}/load", timeout=60), 503)
        server.wait_log("next attempt in 4 s")  # attempts at a spare become rare
        before = cpu_secs(server.pid)
        time.sleep(1)  # the subject is what an idle second costs; /health is asked meanwhile
        assert cpu_secs(server.pid) - before < 0.3
