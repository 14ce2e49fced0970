"""What is shown while something long goes on."""

import threading
from collections.abc import Callable

import pytest

from rustedvino.rv.progress import Waiting, wait_for
from rustedvino.rv.screen import Screen
from tests.rv.conftest import IDLE, MODEL, models
from tests.rv.fake import Answer, FakeServer, json_answer
from tests.rv.terminal import Terminal


def test_phases_are_lines_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    asked = threading.Event()
    phases = iter(["one", "one", None, "two"])

    def phase() -> str | None:
        text = next(phases, None)
        if text == "two":
            asked.set()
        return text

    with Waiting(Screen(), "one") as waiting:
        assert wait_for(lambda: asked.wait(60), waiting, phase) is True
    assert capsys.readouterr().err == "one …\ntwo …\n"


def test_what_is_raised_arrives(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise ValueError("no")

    with Waiting(Screen(), "x") as waiting, pytest.raises(ValueError, match="no"):
        wait_for(fail, waiting)
    assert capsys.readouterr().err == "x …\n"


@pytest.mark.parametrize("columns", [80, 120])
def test_a_load_shows_phase_bar_and_time(terminal: Callable[..., Terminal], fake: FakeServer, columns: int) -> None:
    release = threading.Event()
    loading = {**MODEL, "model_id": "qwen", "state": "loading"}
    waiting = {**IDLE, "model_id": "qwen", "load_secs": 40.0}
    fake.add("GET /v1/admin/models", models(waiting), models(waiting), models(loading))
    body = json_answer(MODEL)
    fake.add("POST /v1/admin/models/qwen/load", Answer(200, body.body, body.headers, lambda: release.wait(60)))
    try:
        with terminal("load", "qwen", "--no-check", "--host", fake.url, columns=columns) as shell:
            shell.expect(r"loading qwen.*━.* of about 40 s")
            shell.expect("waiting for memory")
            shell.expect(r"loading qwen +━")
            release.set()
            shell.expect("qwen is ready")
            assert shell.end() == 0
    finally:
        release.set()
    assert all(len(line) <= columns for line in shell.text.replace("\r", "\n").splitlines())


def test_an_interrupted_load(terminal: Callable[..., Terminal], fake: FakeServer) -> None:
    release = threading.Event()
    fake.add("GET /v1/admin/models", models({**IDLE, "model_id": "qwen"}))
    body = json_answer(MODEL)
    fake.add("POST /v1/admin/models/qwen/load", Answer(200, body.body, body.headers, lambda: release.wait(60)))
    try:
        with terminal("load", "qwen", "--no-check", "--host", fake.url) as shell:
            shell.expect("loading qwen")
            shell.expect("waiting for memory")
            shell.interrupt()
            assert shell.end() == 130
    finally:
        release.set()
    assert "Traceback" not in shell.text
