"""Both formats, the fields, and what must not be in a line."""

import io
import json
import logging
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rustedvino.observe.logs import (
    MAX_RECORD_CHARS,
    JsonFormatter,
    Logs,
    TextFormatter,
    bind_log_fields,
    configure,
    log_fields,
)
from rustedvino.observe.redact import Redactor

log = logging.getLogger("rustedvino.test")

Start = Callable[..., tuple[Logs, io.StringIO]]
LINE = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (INFO|WARNING|ERROR|DEBUG) +rustedvino\.test: (.*)", re.DOTALL
)


@pytest.fixture
def start() -> Iterator[Start]:
    running: list[Logs] = []

    def begin(level: str = "info", log_format: str = "text", **options: bool) -> tuple[Logs, io.StringIO]:
        stream = io.StringIO()
        running.append(configure(level, log_format, stream=stream, **options))  # type: ignore[arg-type]
        return running[-1], stream

    yield begin
    for logs in reversed(running):
        logs.close()


def written(logs: Logs, stream: io.StringIO) -> str:
    assert logs.flush()
    return stream.getvalue()


def test_text_line_has_time_level_logger_and_message(start: Start) -> None:
    logs, stream = start()
    log.info("model %s is ready", "m")
    found = LINE.fullmatch(written(logs, stream).rstrip("\n"))
    assert found is not None
    assert found.groups() == ("INFO", "model m is ready")


def test_level_binds_stream_and_ring(start: Start) -> None:
    logs, stream = start("warning")
    log.info("too low")
    log.warning("high enough")
    text = written(logs, stream)
    assert "too low" not in text
    assert logs.ring.tail().lines == text.splitlines()
    assert len(logs.ring.tail().lines) == 1


def test_json_line_is_an_object_with_the_fields(start: Start) -> None:
    logs, stream = start("info", "json")
    with log_fields(request_id="req_1", model="m"):
        log.info("hello\n%s", "wörld")
    (line,) = written(logs, stream).splitlines()
    value = json.loads(line)
    assert re.fullmatch(r"[\d-]{10}T[\d:]{8}\.\d{3}Z", value.pop("time"))
    assert value == {
        "level": "info",
        "logger": "rustedvino.test",
        "message": "hello\nwörld",
        "request_id": "req_1",
        "model": "m",
    }


def test_time_is_utc_whatever_the_zone() -> None:
    record = logging.LogRecord("rustedvino.test", logging.INFO, "", 0, "x", (), None)
    record.created, record.msecs = 1_760_000_000.25, 250.0
    assert TextFormatter(Redactor(), False).format(record).startswith("2025-10-09T08:53:20.250Z ")
    assert json.loads(JsonFormatter(Redactor(), False).format(record))["time"] == "2025-10-09T08:53:20.250Z"


async def test_fields_belong_to_a_task_and_its_children(start: Start) -> None:
    logs, stream = start()

    async def request(name: str) -> None:
        with log_fields(request_id=name):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(child, name)
            bind_log_fields(model=f"model-{name}")
            log.info("own %s", name)
        log.info("after %s", name)

    async def child(name: str) -> None:
        await trio.lowlevel.checkpoint()
        log.info("child %s", name)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(request, "a")
        nursery.start_soon(request, "b")
    log.info("outside")
    lines = [line.split(": ", 1)[1] for line in written(logs, stream).splitlines()]
    assert sorted(lines) == [
        "after a",
        "after b",
        "child a [request_id=a]",
        "child b [request_id=b]",
        "outside",
        "own a [request_id=a model=model-a]",
        "own b [request_id=b model=model-b]",
    ]


def test_extra_overrides_the_fields_of_the_task(start: Start) -> None:
    logs, stream = start()
    with log_fields(model="task", worker="7"):
        log.info("x", extra={"model": "record"})
    assert "x [model=record worker=7]" in written(logs, stream)


@given(text=st.text(max_size=200))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_text_can_look_like_a_line_of_ours(text: str) -> None:
    forged = f"{text}\n2026-01-01T00:00:00.000Z INFO    rustedvino: forged"
    record = logging.LogRecord("rustedvino.test", logging.INFO, "", 0, "%s", (forged,), None)
    first, *more = TextFormatter(Redactor(), False).format(record).split("\n")
    assert LINE.fullmatch(first)
    assert all(line.startswith("    ") for line in more)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]", "".join([first, *more]))
    (json_line,) = JsonFormatter(Redactor(), False).format(record).splitlines()
    assert json_line.isascii()


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_secrets_are_masked_in_every_part(start: Start, log_format: str) -> None:
    logs, stream = start("debug", log_format)
    logs.redact.hide(["the-servers-own-key"])
    try:
        raise ValueError("Bearer key-in-an-exception and the-servers-own-key")
    except ValueError:
        log.exception(
            "api_key=key-in-a-message",
            extra={"model": "the-servers-own-key", "access": {"path": "/the-servers-own-key"}},
        )
    text = written(logs, stream)
    assert "ValueError" in text
    for secret in ("key-in-an-exception", "key-in-a-message", "the-servers-own-key"):
        assert secret not in text
        assert secret not in "\n".join(logs.ring.tail().lines)


def fail_over(prompt: str) -> None:
    try:
        {}[prompt]
    except KeyError:
        raise ExceptionGroup("several", [ValueError(f"cannot read {prompt!r}")]) from None


@pytest.mark.parametrize("log_format", ["text", "json"])
@pytest.mark.parametrize("allowed", [False, True])
def test_exceptions_of_a_request_quote_no_prompt(start: Start, log_format: str, allowed: bool) -> None:
    logs, stream = start("debug", log_format, show_prompts=allowed)
    prompt = "my dog's name is Rex"
    with log_fields(request_id="req_1"):
        try:
            try:
                fail_over(prompt)
            except ExceptionGroup as error:
                error.add_note(prompt)
                raise RuntimeError(prompt) from error
        except RuntimeError:
            log.exception("request failed")
    text = written(logs, stream)
    for word in ("RuntimeError", "ExceptionGroup", "ValueError", "test_logs.py", "fail_over"):
        assert word in text
    assert ("Rex" in text) is allowed


def test_exceptions_outside_of_requests_are_told_in_full(start: Start) -> None:
    logs, stream = start()
    try:
        raise OSError(28, "No space left on device")
    except OSError:
        log.exception("cannot save")
    assert "No space left on device" in written(logs, stream)


def test_a_cycle_of_exceptions_ends(start: Start) -> None:
    logs, stream = start()
    first, second = ValueError("a"), ValueError("b")
    first.__context__, second.__context__ = second, first
    with log_fields(request_id="r"):
        log.error("x", exc_info=first)
    assert written(logs, stream).count("builtins.ValueError") == 2


def test_long_records_are_cut_after_masking(start: Start) -> None:
    logs, stream = start()
    log.info("%s", "x" * (MAX_RECORD_CHARS - 10) + " Bearer abcdefghijklmnop" + "y" * 100_000)
    text = written(logs, stream)
    assert "abcdefgh" not in text
    assert len(text) < MAX_RECORD_CHARS + 200


def test_masking_draws_no_half_of_a_key_into_a_cut_record(start: Start) -> None:
    logs, stream = start()
    key = "k" * 20 + "0123456789"
    logs.redact.hide([key])
    log.info("%s", "x" * 12 + f"{key} " * (2 * MAX_RECORD_CHARS // len(key)))  # a key stands across the boundary
    text = written(logs, stream)
    assert "***" in text
    assert "kkkk" not in text


def test_a_wrong_call_of_the_log_is_reported_without_its_arguments(
    start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    logs, stream = start()
    log.info("%d", "my prompt")
    text = written(logs, stream)
    assert "test_logs.py" in text
    assert "TypeError" in text
    assert "my prompt" not in text + "".join(capsys.readouterr())


def test_warnings_are_lines(start: Start) -> None:
    logs, stream = start()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("careful", UserWarning, stacklevel=1)
    text = written(logs, stream)
    assert "careful" in text
    assert "py.warnings" in text


def test_closing_gives_logging_back(start: Start) -> None:
    before = list(logging.getLogger().handlers)
    level = logging.getLogger().level
    logs = configure("debug", "text", stream=io.StringIO())
    assert len(logging.getLogger().handlers) == 1
    logs.close()
    assert logging.getLogger().handlers == before
    assert logging.getLogger().level == level


def test_the_last_lines_before_the_end_are_written() -> None:
    program = (
        "import logging, sys; from rustedvino.observe.logs import configure; configure('info', 'text')\n"
        "for number in range(2000): logging.info('line %d', number)\n"
        "sys.exit(3)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 3
    assert [line.rsplit(maxsplit=1)[1] for line in done.stderr.splitlines()] == [str(number) for number in range(2000)]
