"""Talking to a model: piped, and in a terminal."""

import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.rv.conftest import IDLE, MODEL, Ended, models
from tests.rv.fake import FakeServer, error_answer, events_answer
from tests.rv.terminal import COLOURS, Terminal
from tests.rv.test_conversation import CHAT, delta

Rv = Callable[..., Ended]
Terminals = Callable[..., Terminal]
TEXT = "# Title\n\nSome **bold** words.\n\n```python\nx = 1\n```\n\n1. one\n2. two\n"


def said(text: str, *, thinking: str = "", **rest: Any) -> Any:
    pieces = [delta(content=text[at : at + 5]) for at in range(0, len(text), 5)]
    thoughts = [delta(reasoning_content=thinking)] if thinking else []
    usage = {"choices": [], "usage": {"completion_tokens": 40}}
    return events_answer(*thoughts, *pieces, delta(finish="stop"), usage, **rest)


@pytest.fixture
def server(fake: FakeServer) -> FakeServer:
    fake.add("GET /v1/admin/models", models(MODEL, IDLE))
    fake.add("GET /v1/models", {"data": [{"id": "qwen", "state": "ready"}, {"id": "phi", "state": "not_loaded"}]})
    fake.add(CHAT, said(TEXT, thinking="Let me see."))
    return fake


# Piped.


def test_a_piped_question_gets_the_answer_and_nothing_else(rv: Rv, server: FakeServer) -> None:
    done = rv("chat", host=server, text="hi there\n")
    assert (done.code, done.out, done.err) == (0, TEXT + "\n", "")
    body = server.bodies(CHAT)[0]
    assert (body["model"], body["messages"]) == ("qwen", [{"role": "user", "content": "hi there"}])


def test_options_of_a_question(rv: Rv, server: FakeServer) -> None:
    arguments = ["-p", "q", "--system", "s", "--temperature", "0", "--max-tokens", "9", "--no-think"]
    assert rv("chat", "phi", *arguments, host=server).code == 0
    body = server.bodies(CHAT)[0]
    assert [message["role"] for message in body["messages"]] == ["system", "user"]
    assert (body["model"], body["temperature"], body["max_completion_tokens"], body["enable_thinking"]) == (
        "phi",
        0.0,
        9,
        False,
    )


def test_questions_that_fail(rv: Rv, server: FakeServer) -> None:
    assert rv("chat", host=server, text=" \n").code == 2
    server.add(CHAT, error_answer(503, "the model failed", "model_failed"))
    done = rv("chat", host=server, text="hi")
    assert (done.code, done.out) == (1, "")
    assert "the model failed" in done.err
    server.add(CHAT, events_answer(delta(content="half"), done=False))
    done = rv("chat", host=server, text="hi")
    assert (done.code, done.out) == (1, "half\n")
    assert rv("chat", "--host", "127.0.0.1:1", text="hi").code == 3


# In a terminal.


def test_a_dialogue(terminal: Terminals, server: FakeServer, tmp_path: Path) -> None:
    with terminal("chat", "--host", server.url) as shell:
        shell.expect("qwen: /help explains")
        shell.expect(">>> ")
        shell.type("hi \\\n")
        shell.expect(r"\.\.\. ")
        shell.type("there\n")
        shell.expect("Let me see.")
        shell.expect("Some bold words")
        shell.expect(r"1 one")
        shell.expect(r"40 tokens, \d+\.\d tokens/s, first after")
        assert "\x1b[2;3mLet me see." in shell.raw, "thinking is dimmed"
        assert "**" not in shell.text.rpartition("tokens/s")[0].rpartition("Some bold words")[2]
        shell.type("/help\n")
        shell.expect("/quit")
        shell.type("/system You are terse.\n")
        shell.expect("system message: You are terse.")
        shell.type("/model nope\n")
        shell.expect("there is no model 'nope': qwen, phi")
        shell.type("/model\n")
        shell.expect(r"\* qwen ready\s+phi not loaded")
        shell.type("/model phi\n")
        shell.expect("talking to phi now")
        shell.type("/what\n")
        shell.expect("there is no /what")
        shell.type("again\n")
        shell.expect("40 tokens")
        shell.type("/clear\n")
        shell.expect("forgotten")
        shell.type("/system -\n")
        shell.expect("system message: none")
        shell.type("fresh\n")
        shell.expect("40 tokens")
        shell.expect(">>> ")
        shell.type("\x04")
        assert shell.end() == 0
    first, second, third = server.bodies(CHAT)
    assert first["messages"] == [{"role": "user", "content": "hi \nthere"}]
    assert second["model"] == "phi"
    assert [message["content"] for message in second["messages"]] == ["You are terse.", "hi \nthere", TEXT, "again"]
    assert [message["content"] for message in third["messages"]] == ["fresh"]
    history = tmp_path / "home/.local/state/rustedvino/chat_history"
    assert "again" in history.read_text().splitlines()
    assert stat.S_IMODE(history.stat().st_mode) == 0o600


def test_history_is_there_the_next_time(terminal: Terminals, server: FakeServer) -> None:
    for typed in ("remember me\n", "\x1b[A\x1b[A\n"):
        with terminal("chat", "--host", server.url) as shell:
            shell.expect(">>> ")
            shell.type(typed)
            shell.expect("40 tokens")
            shell.expect(">>> ")
            shell.type("/quit\n")
            assert shell.end() == 0
    assert [body["messages"][-1]["content"] for body in server.bodies(CHAT)] == ["remember me", "remember me"]


def test_an_interrupt_cancels_the_answer_only(terminal: Terminals, server: FakeServer) -> None:
    release = threading.Event()
    half = said("first half " * 4, pause=lambda: release.wait(60))
    server.add(CHAT, half, said("whole"))
    try:
        with terminal("chat", "--host", server.url) as shell:
            shell.expect(">>> ")
            shell.type("hi\n")
            shell.expect("first")
            shell.interrupt()
            shell.expect(r"\(cancelled\)")
            shell.expect(">>> ")
            shell.type("dropped")
            shell.expect("dropped")
            shell.interrupt()  # at the prompt it only drops the line
            # The line editor looks for signals when a key comes, if this one came just before it began to wait.
            shell.type("\ngo on\n")
            shell.expect("whole")
            shell.expect(">>> ")
            shell.type("\x04")
            assert shell.end() == 0
    finally:
        release.set()
    messages = server.bodies(CHAT)[1]["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "user"]
    assert messages[1]["content"].startswith("first")
    assert messages[2]["content"] == "go on"


def test_an_interrupt_of_a_single_question_ends_with_its_code(terminal: Terminals, server: FakeServer) -> None:
    release = threading.Event()
    server.add(CHAT, said("first half " * 4, pause=lambda: release.wait(60)))
    try:
        with terminal("chat", "-p", "hi", "--host", server.url) as shell:
            shell.expect("first")
            shell.interrupt()
            assert shell.end() == 130
    finally:
        release.set()


def test_a_failed_answer_does_not_end_the_dialogue(terminal: Terminals, server: FakeServer) -> None:
    server.add(CHAT, error_answer(503, "it is loading", "model_loading", retry_after="3"), said("fine"))
    with terminal("chat", "--host", server.url) as shell:
        shell.expect(">>> ")
        shell.type("hi\n")
        shell.expect("rv: it is loading")
        shell.expect("try again in 3 s")
        shell.type("hi\n")
        shell.expect("fine")
        shell.type("/quit\n")
        assert shell.end() == 0


def test_what_a_model_writes_cannot_drive_the_terminal(terminal: Terminals, server: FakeServer) -> None:
    server.add(CHAT, said("evil \x1b]0;owned\x07\x1b[31m text\n", thinking="\x1b[2J"))
    with terminal("chat", "-p", "x", "--host", server.url) as shell:
        assert shell.end() == 0
    assert "\x1b]0;" not in shell.raw
    assert "\x1b[31m" not in shell.raw
    assert "\x1b[2J" not in shell.raw
    assert "evil" in shell.text


@pytest.mark.parametrize("columns", [80, 120])
def test_long_answers_fit_the_terminal(terminal: Terminals, server: FakeServer, columns: int) -> None:
    words = " ".join(f"word{number}" for number in range(100))
    server.add(CHAT, said(f"{words}\n\n{words}\n"))
    with terminal("chat", "-p", "x", "--host", server.url, columns=columns, rows=10) as shell:
        assert shell.end() == 0
    printed = shell.text.rpartition("word0")[2]
    lines = printed.splitlines()
    assert all(len(line) <= columns for line in lines)
    assert max(map(len, (line.rstrip() for line in lines))) > columns - 12


def test_no_colour(terminal: Terminals, server: FakeServer) -> None:
    with terminal("chat", "-p", "x", "--host", server.url, NO_COLOR="1") as shell:
        assert shell.end() == 0
    assert not COLOURS.search(shell.raw)
    assert "Some bold words." in shell.text
