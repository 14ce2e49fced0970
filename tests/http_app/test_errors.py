"""From what the hub says to what a client is told."""

import pytest

from rustedvino.http.errors import from_hub
from rustedvino.hub import errors as hub

CASES: list[tuple[hub.HubError, int, str, float | None]] = [
    (hub.UnknownModel("no such model"), 404, "model_not_found", None),
    (hub.UnknownSession("no such session"), 404, "session_not_found", None),
    (hub.Busy("full", retry_after_secs=3), 429, "rate_limit_exceeded", 3),
    (hub.Busy("full"), 429, "rate_limit_exceeded", 1),
    (hub.NotReady("model_loading", "loading", retry_after_secs=7), 503, "model_loading", 7),
    (hub.NotReady("model_failed", "broken", retry_after_secs=None), 503, "model_failed", 1),
    (hub.WorkerLost("gone", retry_after_secs=2), 503, "worker_lost", 2),
    (hub.DevicePoisoned("lost", retry_after_secs=2), 503, "gpu_poisoned", 2),
    (hub.Unloading("bye", retry_after_secs=2), 503, "model_unloading", 2),
    (hub.Unsupported("cannot", field="temperature"), 400, "unsupported_value", None),
    (hub.PromptTooLong("too long", field="messages"), 400, "context_length_exceeded", None),
    (hub.NeverFits("too large", field="max_tokens"), 400, "pool_capacity_exceeded", None),
    (hub.BadInput("odd"), 400, "invalid_value", None),
    (hub.Suspect("again"), 500, "request_refused", None),
    (hub.EngineFailed("nothing came"), 500, "engine_error", None),
]


@pytest.mark.parametrize(("error", "status", "code", "retry_secs"), CASES, ids=lambda value: type(value).__name__)
def test_each_has_its_answer(error: hub.HubError, status: int, code: str, retry_secs: float | None) -> None:
    answer = from_hub(error, "req_1")
    assert (answer.status, answer.code, answer.retry_after_secs) == (status, code, retry_secs)
    assert error.message in answer.message


def test_every_class_of_error_is_covered() -> None:
    def below(cls: type[hub.HubError]) -> set[type[hub.HubError]]:
        return {cls, *(deeper for child in cls.__subclasses__() for deeper in below(child))}

    mapped = {type(error) for error, *_ in CASES}
    assert {cls for cls in below(hub.HubError) if cls.__module__ == hub.__name__} - mapped == {hub.HubError}


def test_what_is_too_large_names_its_field() -> None:
    assert from_hub(hub.NeverFits("x", field="n"), "req_1").param == "n"
    assert from_hub(hub.UnknownModel("x"), "req_1").param == "model"


def test_a_fault_of_ours_names_the_request() -> None:
    for error in (hub.EngineFailed("x"), hub.Suspect("x")):
        answer = from_hub(error, "req_17")
        assert "req_17" in answer.message
        assert answer.type == "server_error"
