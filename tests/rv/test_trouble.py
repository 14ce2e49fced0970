"""What people meet: a server that is down, starting, older than rv, or wants another key. In terminals of two widths,
without colour, and piped."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from rustedvino.rv import background, processes
from rustedvino.rv.background import Record
from tests.rv.conftest import Ended
from tests.rv.fake import FakeServer, error_answer
from tests.rv.terminal import COLOURS, ESCAPES, Terminal

KEY = "wrong-key-5f0a9c41d7e2"
TROUBLES = {
    "down": (3, ("no server answers at http://127.0.0.1:", "`rv start` starts one")),
    "starting": (3, ("the server is starting: process", "its log is")),
    "wrong key": (1, ("Incorrect API key.", "the key from RUSTEDVINO_KEY was sent")),
    "old version": (1, ("this server does not know GET /v1/admin/models", "it is version 0.0.9, this rv is")),
}


@pytest.fixture(params=TROUBLES)
def trouble(request: pytest.FixtureRequest, home: Path, fake: FakeServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """Sets one of them up."""
    if request.param in ("down", "starting"):
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            port = unused.getsockname()[1]
        config = home / "config.json"
        config.write_text(f'{{"port": {port}}}')
        if request.param == "starting":
            background.log_path(config).parent.mkdir(parents=True)
            identity = processes.identity(os.getpid())
            assert identity is not None
            record = Record(os.getpid(), identity, f"http://127.0.0.1:{port}", str(config), "/x/server.log", (), 1.0)
            background.write(config, record)
    else:
        monkeypatch.setenv("RUSTEDVINO_HOST", fake.url)
        monkeypatch.setenv("RUSTEDVINO_KEY", KEY)
        if request.param == "wrong key":
            fake.add("GET /v1/admin/models", error_answer(401, "Incorrect API key.", "invalid_api_key"))
    return str(request.param)


def check(trouble: str, code: int, text: str) -> None:
    wanted, words = TROUBLES[trouble]
    assert code == wanted, text
    joined = " ".join(text.split())
    for part in words:
        assert part in joined
    assert "Traceback" not in text
    assert KEY not in text


@pytest.mark.parametrize("columns", [80, 120])
def test_in_a_terminal(terminal: Callable[..., Terminal], trouble: str, columns: int) -> None:
    with terminal("ps", columns=columns) as shell:
        check(trouble, shell.end(), shell.text)
        assert COLOURS.search(shell.raw)


def test_without_colour(terminal: Callable[..., Terminal], trouble: str) -> None:
    with terminal("ps", NO_COLOR="1") as shell:
        check(trouble, shell.end(), shell.text)
        assert not COLOURS.search(shell.raw)


def test_piped(rv_process: Callable[..., Ended], trouble: str) -> None:
    done = rv_process("ps")
    check(trouble, done.code, done.err)
    assert done.out == ""
    assert not ESCAPES.search(done.err)
    error = rv_process("ps", "--json").json["error"]
    assert (error["exit_code"], error["message"] in " ".join(done.err.split())) == (done.code, True)
