"""The server process never imports the runtime, nor a native codec that reads hostile bytes."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.answers import chat_body, completion_body, echo_body, expect_ok, stream_chunks, whole_text
from tests.support.server import ServerProcess, write_config

FORBIDDEN = ("openvino", "openvino_genai", "openvino_tokenizers", "PIL", "av", "soundfile", "torch", "transformers")

# In the server process only: its workers are started by command line and know nothing of this.
PROGRAM = f"""
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {FORBIDDEN!r}:
            print("FORBIDDEN IMPORT", name, file=sys.stderr, flush=True)
            raise ImportError("the server process must not import " + name)
        return None

sys.meta_path.insert(0, Refuse())
from rustedvino.server import main

code = main(sys.argv[1:])
loaded = sorted(name for name in sys.modules if name.partition(".")[0] in {FORBIDDEN!r})
sys.stderr.write(f"\\nAT THE END: {{loaded}}\\n")
sys.exit(code)
"""


@pytest.fixture
def hooked(tmp_path: Path) -> Iterator[ServerProcess]:
    models = {"rv-demo": {}, "tiny-qwen3": {"load": "on_demand"}}
    config = write_config(tmp_path, models, num_threads=1)
    command = [sys.executable, "-c", PROGRAM]
    with ServerProcess("--config", config, "--port", "0", command=command, cwd=tmp_path) as server:
        yield server.wait_ready()


def test_every_route_without_the_runtime(hooked: ServerProcess) -> None:
    for path in ("/health", "/readyz", "/health_generate", "/v1/models", "/v1/models/rv-demo"):
        assert hooked.client.get(path).status_code == 200, path
    echo = echo_body("482913")
    assert whole_text(expect_ok(hooked.post("/v1/chat/completions", echo))) == "482913"
    stream_chunks(hooked, "/v1/chat/completions", echo)
    for model in ("rv-demo", "tiny-qwen3"):
        body = completion_body(model, ["Hello", "日本語"], max_tokens=4)
        expect_ok(hooked.post("/v1/completions", body))
        stream_chunks(hooked, "/v1/completions", body)
        expect_ok(hooked.post("/v1/chat/completions", chat_body(model, "x", max_tokens=4)))
        ids = expect_ok(hooked.post("/tokenize", {"model": model, "prompt": "Hello"}))["tokens"]
        expect_ok(hooked.post("/detokenize", {"model": model, "tokens": ids}))
    pixel = (
        "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJ"
        "RU5ErkJggg=="
    )
    image = [{"type": "image_url", "image_url": {"url": pixel}}]
    assert hooked.post("/v1/chat/completions", chat_body("rv-demo", image)).status_code == 400
    form = chat_body("rv-demo", "Say something", max_tokens=60, enable_thinking=False)
    expect_ok(hooked.post("/v1/chat/completions", {**form, "response_format": {"type": "json_object"}}))
    expect_ok(hooked.post("/v1/responses", {"model": "rv-demo", "input": "Hello", "max_output_tokens": 16}))
    for path in ("logs/tail", "health/watchdog", "models", "models/completeness", "config/audit"):
        assert hooked.client.get(f"/v1/admin/{path}").status_code == 200, path
    assert hooked.client.get("/metrics").status_code == 200
    for path in ("check", "load"):
        assert hooked.client.post(f"/v1/admin/models/tiny-qwen3/{path}").status_code == 200, path
    assert hooked.client.post("/v1/admin/config/reload").status_code == 200
    assert hooked.client.post("/v1/admin/models/tiny-qwen3/resize", json={"kv_cache_gb": 0.01}).status_code == 200
    assert hooked.client.patch("/v1/admin/models/tiny-qwen3", json={"priority": 1}).status_code == 200
    assert hooked.client.delete("/v1/admin/models/tiny-qwen3").status_code == 200
    assert hooked.client.delete("/v1/admin/models/tiny-qwen3/register").status_code == 200
    assert hooked.client.post("/v1/admin/keys/reload").status_code in (200, 409)
    assert hooked.client.get("/nope").status_code == 404
    hooked.stop()
    assert "FORBIDDEN IMPORT" not in hooked.log
    assert "AT THE END: []" in hooked.log
