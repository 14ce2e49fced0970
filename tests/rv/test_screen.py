"""Tables, colours and questions: in terminals of two widths, without colour, and piped."""

from collections.abc import Callable
from typing import Any

import pytest

from rustedvino.rv.errors import UsageError
from rustedvino.rv.screen import Screen
from tests.rv.conftest import IDLE, MODEL, Ended, models
from tests.rv.fake import FakeServer
from tests.rv.terminal import COLOURS, ESCAPES, Terminal

Rv = Callable[..., Ended]
Terminals = Callable[..., Terminal]
LONG: dict[str, Any] = {
    **IDLE,
    "model_id": "qwen3-coder-30b-a3b-instruct-int4-ov",
    "state": "failed",
    "last_error": "the file openvino_model.bin is shorter than the weights that openvino_model.xml names in it",
}


@pytest.fixture
def server(fake: FakeServer) -> FakeServer:
    fake.add("GET /v1/admin/models", models(MODEL, IDLE, LONG))
    fake.add("GET /readyz", {"models": []})
    return fake


def printed(shell: Terminal) -> list[str]:
    with shell:
        assert shell.end() == 0
    return [line.rstrip() for line in shell.text.splitlines()]


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("verb", ["list", "ps", "status"])
def test_tables_fit_the_terminal(terminal: Terminals, server: FakeServer, verb: str, columns: int) -> None:
    lines = printed(terminal(verb, "--host", server.url, columns=columns))
    assert all(len(line) <= columns for line in lines), lines


@pytest.mark.parametrize("columns", [80, 120])
def test_ids_are_whole_and_errors_are_folded(terminal: Terminals, server: FakeServer, columns: int) -> None:
    lines = printed(terminal("list", "--host", server.url, columns=columns))
    ids = "".join(line.split("  ")[0] for line in lines[3:] if line and not line.startswith(" "))
    assert ids == LONG["model_id"]
    words = " ".join(lines).split()
    assert {"shorter", "openvino_model.xml"} <= {word for word in words if word.isprintable()} or columns == 80


def test_states_have_colours(terminal: Terminals, server: FakeServer) -> None:
    shell = terminal("list", "--host", server.url)
    printed(shell)
    assert "\x1b[32mready" in shell.raw
    assert "\x1b[1;31mfailed" in shell.raw


@pytest.mark.parametrize(
    ("arguments", "environment"), [((), {"NO_COLOR": "1"}), (("--no-color",), {}), ((), {"TERM": "dumb"})]
)
def test_without_colour(
    terminal: Terminals, server: FakeServer, arguments: tuple[str, ...], environment: dict[str, str]
) -> None:
    for verb in ("list", "ps", "status"):
        shell = terminal(verb, "--host", server.url, *arguments, **environment)
        printed(shell)
        assert not COLOURS.search(shell.raw)
        assert "qwen" in shell.text or verb == "status"


def test_piped_output_is_plain_and_whole(rv_process: Rv, server: FakeServer) -> None:
    done = rv_process("list", "--host", server.url)
    assert not ESCAPES.search(done.out)
    assert done.out.splitlines()[3].split("  ")[0] == LONG["model_id"]
    assert done.out.splitlines()[3].endswith(LONG["last_error"])


def test_json_is_the_same_in_a_terminal(terminal: Terminals, rv_process: Rv, server: FakeServer) -> None:
    import json

    shell = terminal("ps", "--json", "--host", server.url)
    printed(shell)
    piped = rv_process("ps", "--json", "--host", server.url)
    assert not ESCAPES.search(shell.raw)
    assert json.loads(shell.text) == piped.json
    assert piped.out.count("\n") == 1


def test_what_a_server_sends_cannot_drive_the_terminal(terminal: Terminals, fake: FakeServer) -> None:
    fake.add(
        "GET /v1/admin/models", models({**LONG, "last_error": "\x1b]0;owned\x07\x1b[2J\x9b31m", "device": "\x1b[5m"})
    )
    for arguments in (["list"], ["list", "--json"], ["ps"]):
        shell = terminal(*arguments, "--host", fake.url)
        printed(shell)
        assert "\x1b]0;" not in shell.raw
        assert "\x1b[2J" not in shell.raw
        assert "\x1b[5m" not in shell.raw
        assert "\x9b" not in shell.raw


@pytest.mark.parametrize(
    ("typed", "code"), [("y\n", 0), ("YES\n", 0), ("n\n", 1), ("\n", 1), ("\x04", 1), ("yep\n", 1)]
)
def test_questions(terminal: Terminals, server: FakeServer, typed: str, code: int) -> None:
    server.add("DELETE /v1/admin/models/qwen", {**MODEL, "state": "not_loaded"})
    with terminal("unload", "qwen", "--host", server.url) as shell:
        shell.expect(r"This unloads qwen\. 2 requests run on it\. Go ahead\? \[y/N\] ")
        shell.type(typed)
        assert shell.end() == code
    assert len(server.bodies("DELETE /v1/admin/models/qwen")) == (code == 0)
    assert ("nothing was changed" in shell.text) == (code == 1)


def test_an_interrupted_question_changes_nothing(terminal: Terminals, server: FakeServer) -> None:
    with terminal("unload", "qwen", "--host", server.url) as shell:
        shell.expect("Go ahead")
        shell.interrupt()
        assert shell.end() == 130
    assert server.bodies("DELETE /v1/admin/models/qwen") == []


def test_nobody_to_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(UsageError, match="no terminal to ask on"):
        Screen().confirm("This ends the world.", yes=False)
    Screen().confirm("This ends the world.", yes=True)
