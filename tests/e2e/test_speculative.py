"""A model with a draft behind HTTP: the same answers, and clear words about what it does not do."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.answers import completion_body, expect_error, expect_ok
from tests.support.server import F32, ServerProcess, model_source

PLAIN = "rv-demo"
DRAFTED = "drafted"
FORCED = "forced"
COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("speculative")
    (folder / "models").mkdir()
    (folder / "models" / "rv-demo-draft").symlink_to(model_source("rv-demo-draft"), target_is_directory=True)
    draft = {"draft_model": "rv-demo-draft", "num_assistant_tokens": 3}
    models: dict[str, dict[str, Any]] = {
        PLAIN: F32,
        DRAFTED: {**F32, "speculative": draft},
        FORCED: {**F32, "speculative": {**draft, "verify_on_load": False, "sampled_requests": "greedy"}},
    }
    sources = {DRAFTED: model_source(PLAIN), FORCED: model_source(PLAIN)}
    options: dict[str, Any] = {"num_threads": 1, "spare_workers": 0, "kv_cache_precision": "f32"}
    with ServerProcess.serving(folder, models, sources=sources, default_kv_cache_gb=0.2, **options) as process:
        yield process.wait_ready()


def chat(model: str, **fields: Any) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "Count to five."}], "max_tokens": 40, **fields}


def test_answers_are_those_of_the_model_alone(server: ServerProcess) -> None:
    for prompt in ("Once upon a time", "1 2 3 4"):
        bodies = [completion_body(model, prompt, temperature=0, max_tokens=40) for model in (PLAIN, DRAFTED)]
        plain, drafted = (expect_ok(server.post(COMPLETIONS, body)) for body in bodies)
        assert drafted["choices"] == plain["choices"]
        assert drafted["usage"] == plain["usage"]


def test_stop_strings_and_schemas_hold(server: ServerProcess) -> None:
    schema = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
    asked = {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": schema, "strict": True}}}
    for fields in ({"stop": ["e"]}, asked):
        plain, drafted = (
            expect_ok(server.post(CHAT, chat(model, temperature=0, **fields))) for model in (PLAIN, DRAFTED)
        )
        assert drafted["choices"] == plain["choices"]


def test_a_temperature_is_refused_by_name_and_none_is_greedy(server: ServerProcess) -> None:
    for stream in (False, True):
        error = expect_error(server.post(CHAT, chat(DRAFTED, temperature=0.7, stream=stream)), 400, param="temperature")
        assert error["code"] == "unsupported_value"
        assert "draft" in error["message"]
    unsaid = expect_ok(server.post(CHAT, chat(DRAFTED)))
    assert unsaid["sampling"]["temperature"] == 0
    assert unsaid["choices"] == expect_ok(server.post(CHAT, chat(DRAFTED, temperature=0)))["choices"]


def test_a_setting_makes_sampled_requests_greedy(server: ServerProcess) -> None:
    forced = expect_ok(server.post(CHAT, chat(FORCED, temperature=1.5)))
    assert forced["sampling"]["temperature"] == 0
    assert forced["choices"] == expect_ok(server.post(CHAT, chat(DRAFTED)))["choices"]
