"""What the service manager is told, over both kinds of addresses, and without one."""

import logging
import os
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from rustedvino.sd_notify import Notifier, keep_alive, take_notifier


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """The manager's socket and the address that a service gets."""
    address = str(tmp_path / "notify") if request.param == "path" else f"@rustedvino-{uuid.uuid4().hex}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind("\0" + address[1:] if address.startswith("@") else address)
        sock.settimeout(5)
        yield sock, address


def test_messages(manager: tuple[socket.socket, str]) -> None:
    sock, address = manager
    notifier = Notifier(address)
    notifier.ready()
    notifier.status("serving\n2 models; wörld")
    notifier.watchdog()
    notifier.stopping()
    assert [sock.recv(4096).decode() for _ in range(4)] == [
        "READY=1",
        "STATUS=serving 2 models; wörld",
        "WATCHDOG=1",
        "STOPPING=1",
    ]


def test_without_a_manager_nothing_happens(caplog: pytest.LogCaptureFixture) -> None:
    notifier = take_notifier({"PATH": "x", "WATCHDOG_USEC": "5000000"})
    notifier.ready()
    notifier.stopping()
    assert notifier.address is None
    assert notifier.watchdog_secs is None
    assert caplog.records == []


def test_a_manager_that_is_gone_is_told_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    notifier = Notifier(str(tmp_path / "nobody"))
    notifier.ready()
    notifier.watchdog()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_a_manager_that_does_not_read_holds_up_nobody(manager: tuple[socket.socket, str]) -> None:
    _, address = manager
    notifier = Notifier(address)
    for _ in range(5000):  # more than the socket holds; a blocking send would stop here for ever
        notifier.watchdog()


def test_the_environment_is_read_and_not_passed_on() -> None:
    environment = {
        "NOTIFY_SOCKET": "/run/systemd/notify",
        "WATCHDOG_USEC": "30000000",
        "WATCHDOG_PID": str(os.getpid()),
        "HOME": "/",
    }
    notifier = take_notifier(environment)
    assert (notifier.address, notifier.watchdog_secs) == ("/run/systemd/notify", 30.0)
    assert environment == {"HOME": "/"}


@pytest.mark.parametrize(
    "values",
    [
        {"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"},
        {"WATCHDOG_USEC": "soon"},
        {"WATCHDOG_USEC": "0"},
        {"WATCHDOG_USEC": "-5"},
        {},
    ],
)
def test_a_watchdog_for_others_or_of_no_time_is_left_out(values: dict[str, str]) -> None:
    notifier = take_notifier({"NOTIFY_SOCKET": "@x", **values}, pid=77)
    assert (notifier.address, notifier.watchdog_secs) == ("@x", None)


def test_addresses_of_other_kinds_are_refused_aloud(caplog: pytest.LogCaptureFixture) -> None:
    assert take_notifier({"NOTIFY_SOCKET": "vsock:2:1234", "WATCHDOG_USEC": "1"}).address is None
    assert "vsock:2:1234" in caplog.text


async def test_signs_of_life_come_at_half_time_and_only_while_healthy(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    times: list[float] = []
    monkeypatch.setattr(Notifier, "_send", lambda _, state: times.append(trio.current_time()))
    start = trio.current_time()

    def healthy() -> bool:
        return not 50 < trio.current_time() - start < 100

    with trio.move_on_after(120):
        await keep_alive(Notifier("@x", 20.0), healthy)
    assert [round(at - start) for at in times] == [0, 10, 20, 30, 40, 50, 100, 110, 120][: len(times)]
    assert len(times) >= 8


async def test_nobody_waits_for_signs_of_life() -> None:
    with trio.fail_after(5):
        await keep_alive(Notifier("@x", None))
