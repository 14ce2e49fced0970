"""The log: its end, what follows, and the file of a server that is down."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from rustedvino.rv import background, logs
from tests.rv.conftest import Ended
from tests.rv.fake import FakeServer

Rv = Callable[..., Ended]
ROUTE = "GET /v1/admin/logs/tail"


def page(first: int, *lines: str) -> dict[str, object]:
    return {"lines": list(lines), "first": first, "last": first + len(lines) - 1}


def test_the_last_lines(rv: Rv, fake: FakeServer) -> None:
    fake.add(ROUTE, page(8, "a", "b"))
    assert rv("logs", "-n", "2", host=fake).out == "a\nb\n"
    assert fake.asked[-1].query == "lines=2"
    assert rv("logs", "--json", host=fake).json == page(8, "a", "b")


def test_following(rv: Rv, fake: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = iter([None, None, None, None])

    def sleep(_: float) -> None:
        if next(rounds, "over") == "over":
            raise KeyboardInterrupt

    monkeypatch.setattr(logs.time, "sleep", sleep)
    fake.add(ROUTE, page(1, "a"), page(2), page(2, "b"), page(9, "c"), page(1, "new"), page(1, "new", "newer"))
    done = rv("logs", "-f", host=fake)
    assert done.code == 130
    assert done.out == "a\nb\nc\nnew\nnewer\n"
    assert "6 lines came too fast" in done.err
    assert "started again" in done.err
    assert [asked.query.partition("after=")[2] for asked in fake.asked] == ["", "1", "1", "2", "9", ""]


def test_a_server_that_is_down_leaves_its_file(rv: Rv, home: Path) -> None:
    config = home / "config.json"
    config.write_text(json.dumps({"port": 1}))
    done = rv("logs")
    assert (done.code, done.out) == (3, "")
    path = background.log_path(config)
    path.parent.mkdir(parents=True)
    path.write_text("one\ntwo\nthree\n")
    done = rv("logs", "-n", "2")
    assert (done.code, done.out) == (0, "two\nthree\n")
    assert "no server answers" in done.err
    assert rv("logs", "--file", "-n", "1").out == "three\n"
    assert rv("logs", "--file", "--host", "x").code == 2
    path.unlink()
    assert rv("logs", "--file").code == 1


def test_following_a_file(rv: Rv, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = home / "config.json"
    config.write_text("{}")
    path = background.log_path(config)
    path.parent.mkdir(parents=True)
    path.write_text("one\n")
    more = iter(["tw", "o\nthr", "ee\n"])

    def sleep(_: float) -> None:
        piece = next(more, None)
        if piece is None:
            raise KeyboardInterrupt
        with path.open("a") as stream:
            stream.write(piece)

    monkeypatch.setattr(logs.time, "sleep", sleep)
    done = rv("logs", "--file", "-f")
    assert (done.code, done.out) == (130, "one\ntwo\nthree\n")
