"""``rv start``, ``rv stop``, ``rv restart``: a server in the background of this machine."""

import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any, Final, NamedTuple

from rustedvino.rv import background, processes
from rustedvino.rv.background import Record
from rustedvino.rv.client import Client
from rustedvino.rv.command import Command
from rustedvino.rv.config_file import DEFAULT_DRAIN_SECS, DEFAULT_HOST, DEFAULT_PORT, ConfigFile
from rustedvino.rv.errors import EXIT_OK, RvError, Unreachable
from rustedvino.rv.files import make_private_folder
from rustedvino.rv.progress import Waiting
from rustedvino.rv.target import local_url
from rustedvino.rv.text import counted, duration, listed

PROGRAM: Final = (sys.executable, "-P", "-m", "rustedvino.server")
"""-P: a module of the same name in the folder of the config must not be taken for one of ours."""
START_SECS: Final = 120.0
READY_SECS: Final = 1800.0
STOP_MARGIN_SECS: Final = 15.0
"""What a stop may take beyond the time that running requests are given."""
KILL_SECS: Final = 10.0
LEFT_SECS: Final = 5.0
"""How long processes may outlive the server that they belonged to: they die of its end, but not in the same moment."""
POLL_SECS: Final = 0.1
LOG_LINES_ON_FAILURE: Final = 20
MAX_LOG_BYTES: Final = 32 * 2**20
"""A log that is larger at a start is put aside as ``.log.1``."""


class Place(NamedTuple):
    """Which server a verb is about. ``config`` None: the demo model's."""

    config: ConfigFile | None
    path: Path | None

    @property
    def drain_secs(self) -> float:
        """How long running requests get at its end."""
        return DEFAULT_DRAIN_SECS if self.config is None else self.config.shutdown_drain_secs


def _place(command: Command, verb: str) -> Place:
    command.target.require_local(verb)
    if command.options.demo:
        return Place(None, None)
    config = command.target.config
    if config is None and background.find(None) is not None:
        return Place(None, None)
    if config is None:
        config = command.target.require_config(verb)
    return Place(config, config.path)


# Start.


def start(command: Command) -> int:
    """``rv start``; one that runs already is left alone."""
    place = _place(command, "start")
    with background.locked(place.path):
        record = background.find(place.path)
        if record is not None:
            command.screen.line(f"the server runs already: process {record.pid} at {record.base_url}")
            return EXIT_OK
        arguments = ["--supervise"] if command.options.supervise else []
        _start(command, place, arguments)
    return EXIT_OK


def _start(command: Command, place: Place, arguments: list[str]) -> None:
    config = place.config
    host, port = (DEFAULT_HOST, DEFAULT_PORT) if config is None else (config.bind_addr, config.port)
    given = list(arguments)
    if port == 0:
        port = _free_port(host)
        given += ["--port", str(port)]
    base_url = local_url(host, port)
    client = Client(base_url)
    _require_free(client)
    log = background.log_path(place.path)
    source = ["--demo"] if config is None else ["--config", str(config.path)]
    child, offset = _spawn([*PROGRAM, *source, *given], Path.cwd() if config is None else config.path.parent, log)
    identity = processes.identity(child.pid)
    record = Record(
        pid=child.pid,
        identity=identity or "",
        base_url=base_url,
        config=None if config is None else str(config.path),
        log=str(log),
        arguments=tuple(arguments),
        drain_secs=place.drain_secs,
    )
    if identity is not None:
        background.write(place.path, record)
    try:
        with Waiting(command.screen, f"starting: process {child.pid}") as waiting:
            _wait_health(client, child, waiting, record)
            if command.options.wait_ready:
                _wait_ready(client, child, waiting, record)
    except _Ended as end:
        background.forget(place.path)
        raise _start_failure(end, log, offset) from end
    except KeyboardInterrupt:
        command.screen.note(f"process {child.pid} goes on starting in the background; `rv stop` ends it")
        raise
    command.screen.line(("started", "green"), f": process {child.pid} at {base_url}")
    command.screen.line((f"log: {log}", "dim"))


class _Ended(Exception):
    """The process ended while it was waited for."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def _require_free(client: Client) -> None:
    """Raise RvError when something listens already where the server is to listen."""
    try:
        client.get("/health", timeout_secs=5.0)
    except Unreachable as error:
        if isinstance(error.__cause__, ConnectionRefusedError):
            return
        if error.code == "unreachable":
            return  # an address that cannot be connected to: the server itself says what it thinks of it
        raise RvError(f"{client.base_url} is taken: {error.message}", code="address_taken") from error
    except RvError:
        pass
    raise RvError(
        f"a server that `rv start` did not start answers at {client.base_url} already",
        code="address_taken",
        hint="`rv status` shows it; end it where it was started",
    )


def _spawn(command: list[str], folder: Path, log: Path) -> "tuple[subprocess.Popen[bytes], int]":
    """The process, and where in the log its lines begin."""
    try:
        make_private_folder(log.parent)
        if log.exists() and log.stat().st_size > MAX_LOG_BYTES:
            log.replace(log.with_suffix(".log.1"))
        with log.open("ab") as stream:
            offset = stream.tell()
            return processes.spawn(command, folder=folder, log=stream), offset
    except OSError as error:
        raise RvError(f"the server cannot be started: {error}", code="start_failed") from error


def _wait_health(client: Client, child: "subprocess.Popen[bytes]", waiting: Waiting, record: Record) -> None:
    deadline = time.monotonic() + START_SECS
    while True:
        _require_alive(child)
        try:
            client.get("/health", timeout_secs=2.0)
        except RvError:
            pass  # it is starting
        else:
            _require_alive(child)  # or it was another that answered
            return
        if time.monotonic() > deadline:
            message = f"the server does not answer {duration(START_SECS)} after its start: process {record.pid}"
            raise RvError(message, code="start_slow", hint=f"it was left as it is; its log is {record.log}")
        _pause(waiting)


def _wait_ready(client: Client, child: "subprocess.Popen[bytes]", waiting: Waiting, record: Record) -> None:
    import json

    deadline = time.monotonic() + READY_SECS
    while True:
        _require_alive(child)
        reply = client.raw("GET", "/readyz")
        if reply.status == 200:
            return
        models: list[dict[str, Any]] = json.loads(reply.body).get("models", [])
        failed = [model for model in models if model.get("state") == "failed"]
        if models and len(failed) == len(models):
            problems = "; ".join(f"{model['model']}: {model.get('error')}" for model in failed)
            raise RvError(f"the server runs, but not with all of its models: {problems}", code="model_failed")
        if time.monotonic() > deadline:
            raise RvError(f"models are not ready after {duration(READY_SECS)}", code="start_slow")
        waiting.phase("loading " + ", ".join(f"{model['model']} ({model['state']})" for model in models))
        _pause(waiting)


def _pause(waiting: Waiting) -> None:
    waiting.tick()
    time.sleep(POLL_SECS)


def _require_alive(child: "subprocess.Popen[bytes]") -> None:
    code = child.poll()
    if code is not None:
        raise _Ended(code)


def _start_failure(end: _Ended, log: Path, offset: int) -> RvError:
    how = f"exit code {end.code}" if end.code >= 0 else f"signal {-end.code}"
    with log.open("rb") as stream:
        stream.seek(offset)
        lines = deque(stream, maxlen=LOG_LINES_ON_FAILURE)
    said = "".join(f"\n    {line.decode('utf-8', 'replace').rstrip()}" for line in lines)
    return RvError(
        f"the server ended at its start with {how}{said and ':'}{said}", code="start_failed", hint=f"its log is {log}"
    )


def _free_port(bind_addr: str) -> int:
    import socket

    family = socket.AF_INET6 if ":" in bind_addr else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.bind((bind_addr, 0))
        return int(sock.getsockname()[1])


# Stop.


def stop(command: Command) -> int:
    """``rv stop``; one that does not run is no failure."""
    place = _place(command, "stop")
    with background.locked(place.path):
        record = background.read(place.path)
        if record is None or not background.is_running(record):
            _say_not_running(command, place, record)
            return EXIT_OK
        _confirm(command, record, "This stops the server")
        _stop(command, place, record)
    return EXIT_OK


def _say_not_running(command: Command, place: Place, record: Record | None) -> None:
    if record is not None:
        left = _left(record)
        background.forget(place.path)
        if left:
            raise RvError(f"the server ended by itself, but processes of it are left: {_pids(left)}", code="left_over")
    url = command.target.base_url if record is None else record.base_url
    try:
        Client(url).get("/health", timeout_secs=5.0)
    except RvError:
        command.screen.line("the server does not run")
        return
    message = f"the server at {url} was not started by `rv start`"
    raise RvError(message, code="not_ours", hint="end it where it was started")


def _confirm(command: Command, record: Record, what: str) -> None:
    if command.options.yes:
        return
    running = 0
    try:
        models = command.client.get("/v1/admin/models", timeout_secs=5.0)["models"]
        running = sum(model.get("running") or 0 for model in models)
    except RvError:
        pass  # it can be stopped without being asked
    tail = f" {counted(running, 'request')} may take {duration(record.drain_secs)} to end." if running else ""
    command.screen.confirm(f"{what} at {record.base_url}.{tail}", yes=False)


def _stop(command: Command, place: Place, record: Record) -> None:
    bound_secs = record.drain_secs + STOP_MARGIN_SECS
    members = processes.session_members(record.pid)
    try:
        processes.tell_to_end(record.pid)
    except OSError as error:
        if background.is_running(record):
            raise RvError(
                f"process {record.pid} cannot be told to end: {error.strerror}", code="stop_failed"
            ) from error
    with Waiting(command.screen, f"stopping: process {record.pid}") as waiting:
        if not _wait_end(record, waiting, bound_secs) and command.options.kill:
            waiting.phase(f"killing: process {record.pid}")
            processes.kill(processes.session_members(record.pid) or [record.pid])
            _wait_end(record, waiting, KILL_SECS)
        elapsed = waiting.elapsed_secs
    if background.is_running(record):
        remaining = processes.session_members(record.pid) or [record.pid]
        hint = "`rv stop --kill` ends it by force" if not command.options.kill else None
        message = f"the server still runs after {duration(elapsed)}: {_pids(remaining)}"
        raise RvError(message, code="stop_failed", hint=hint)
    background.forget(place.path)
    left = _left(record)
    if left:
        raise RvError(f"the server has ended, but processes of it are left: {_pids(left)}", code="left_over")
    count = counted(len(members), "process").replace("processs", "processes")
    command.screen.line(f"stopped after {duration(elapsed)}" + (f" ({count})" if members else ""))


def _wait_end(record: Record, waiting: Waiting, bound_secs: float) -> bool:
    deadline = time.monotonic() + bound_secs
    while background.is_running(record):
        if time.monotonic() > deadline:
            return False
        _pause(waiting)
    return True


def _left(record: Record) -> list[int]:
    """Processes of a server that has ended which do not end with it. None are when its number is another's by now."""
    if processes.identity(record.pid) is not None or not processes.is_of_this_boot(record.identity):
        return []
    deadline = time.monotonic() + LEFT_SECS
    while (left := processes.session_members(record.pid)) and time.monotonic() < deadline:
        time.sleep(POLL_SECS)
    return left


def _pids(pids: list[int]) -> str:
    return f"process {pids[0]}" if len(pids) == 1 else f"processes {listed([str(pid) for pid in pids])}"


# Restart.


def restart(command: Command) -> int:
    """``rv restart``; a server that does not run is started."""
    place = _place(command, "restart")
    with background.locked(place.path):
        record = background.find(place.path)
        arguments = [] if record is None else list(record.arguments)
        if command.options.supervise and "--supervise" not in arguments:
            arguments.append("--supervise")
        if record is not None:
            _confirm(command, record, "This stops the server and starts it again")
            _stop(command, place, record)
        _start(command, place, arguments)
    return EXIT_OK
