"""The line of a request: what it says, when it is written."""

import json
import logging

import pytest

from rustedvino.observe.access import CLIENT_GONE, Access
from rustedvino.observe.logs import MAX_CLIENT_TEXT_CHARS, JsonFormatter, LineFormatter, TextFormatter
from rustedvino.observe.redact import Redactor


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def debug(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "rustedvino.access")


def access(path: str = "/v1/chat/completions", **values: object) -> tuple[Access, Clock]:
    clock = Clock()
    entry = Access("POST", path, "req_1", clock=clock)
    for name, value in values.items():
        setattr(entry, name, value)
    return entry, clock


def test_line_of_a_generation(caplog: pytest.LogCaptureFixture) -> None:
    entry, clock = access(status=200, model="m", prompt_tokens=12, completion_tokens=0)
    clock.now += 1.2345
    entry.end()
    (record,) = caplog.records
    assert record.getMessage() == "POST /v1/chat/completions 200 1234.5 ms prompt_tokens=12 completion_tokens=0"
    value = json.loads(JsonFormatter(Redactor(), False).format(record))
    del value["time"], value["message"]
    assert value == {
        "level": "info",
        "logger": "rustedvino.access",
        "request_id": "req_1",
        "model": "m",
        "method": "POST",
        "path": "/v1/chat/completions",
        "status": 200,
        "duration_ms": 1234.5,
        "prompt_tokens": 12,
        "completion_tokens": 0,
    }


def test_one_line_only(caplog: pytest.LogCaptureFixture) -> None:
    entry, _ = access(status=200)
    entry.end()
    entry.end()
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("path", "status", "level"),
    [
        ("/health", 200, logging.DEBUG),
        ("/metrics", 200, logging.DEBUG),
        ("/readyz", 503, logging.INFO),
        ("/v1/models", 200, logging.INFO),
    ],
)
def test_what_machines_ask_all_the_time_is_quiet(
    caplog: pytest.LogCaptureFixture, path: str, status: int, level: int
) -> None:
    access(path, status=status)[0].end()
    assert [record.levelno for record in caplog.records] == [level]


def test_answers_that_broke_off_say_so(caplog: pytest.LogCaptureFixture) -> None:
    access(status=200, complete=False)[0].end()
    access()[0].end()
    assert "200 0 ms (broken off)" in caplog.messages[0]
    assert f"{CLIENT_GONE} 0 ms (broken off)" in caplog.messages[1]


def test_long_paths_are_cut_and_percent_signs_are_text(caplog: pytest.LogCaptureFixture) -> None:
    access("/%s%d" + "x" * 10_000, status=404)[0].end()
    line = TextFormatter(Redactor(), False).format(caplog.records[0])
    assert "/%s%dxxx" in line
    assert len(line) < MAX_CLIENT_TEXT_CHARS + 100
    fields = json.loads(JsonFormatter(Redactor(), False).format(caplog.records[0]))
    assert len(fields["path"]) == MAX_CLIENT_TEXT_CHARS
    assert len(fields["message"]) < MAX_CLIENT_TEXT_CHARS + 100


@pytest.mark.parametrize("formatter", [TextFormatter, JsonFormatter])
def test_a_cut_path_shows_no_half_of_a_key(caplog: pytest.LogCaptureFixture, formatter: type[LineFormatter]) -> None:
    key = "0123456789abcdef" * 4
    redact = Redactor()
    redact.hide([key])
    access("/" + "x" * (MAX_CLIENT_TEXT_CHARS - len(key) // 2) + key + "/end", status=404)[0].end()
    line = formatter(redact, False).format(caplog.records[0])
    assert "xxx***" in line
    assert key[:8] not in line
