"""``rustedvino --supervise``: a parent that starts the server, watches it and starts it again.

It holds no state of the server and imports nothing that could fail with it. Linux is what we run and test on; the
Windows branches are type-checked only. There a Job Object with KILL_ON_JOB_CLOSE would be the tie that the
parent-death signal is on Linux; without one a killed supervisor leaves its server running.
"""

import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Final

import trio
from attrs import define, field, frozen

from rustedvino.config.types import LoadedConfig, SupervisorSettings
from rustedvino.hub.restarts import DeathRecord, RestartPolicy
from rustedvino.probe import Health, HttpProbe
from rustedvino.sd_notify import Notifier, keep_alive, take_notifier
from rustedvino.worker.platform import describe_exit, die_with_parent, wait_exit

log = logging.getLogger(__name__)

PARENT_VARIABLE: Final = "RUSTEDVINO_SUPERVISOR_PID"
SERVER_PROGRAM: Final = (sys.executable, "-m", "rustedvino.server")
START_POLL_SECS: Final = 0.5
"""Time between two probes of a server that has not answered yet."""
REAP_SECS: Final = 5.0
FINAL_EXIT_CODES: Final = frozenset({0, 2})
"""Exits that starting again cannot better: the end that was asked for, and a wrong command line."""


@frozen(kw_only=True)
class Ended:
    """How a child ended. ``code`` is negative when a signal killed it; ``hung`` when it was we who ended it."""

    code: int
    reason: str
    hung: bool = False


@define(eq=False)
class Supervisor:
    """Run with ``await supervisor.run()``, on the main thread; it returns the exit code to end with.

    ``probe`` never raises and takes at most ``probe_bound_secs``; ``stop_bound_secs``: how long a child that was told
    to end may take.
    """

    command: tuple[str, ...]
    settings: SupervisorSettings
    probe: Callable[[], Awaitable[Health]]
    probe_bound_secs: float
    stop_bound_secs: float
    notifier: Notifier = field(factory=Notifier)
    child_pid: int | None = None
    restarts: int = 0
    _stop: trio.Event = field(factory=trio.Event)
    _stop_signal: int = signal.SIGTERM
    _kill: trio.Event = field(factory=trio.Event)
    _in_control: bool = True
    """False while a hung child does not go away: then the service manager's watchdog may run out."""
    _deaths: DeathRecord = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._deaths = DeathRecord(
            RestartPolicy(
                backoff_base_secs=self.settings.backoff_base_secs,
                backoff_max_secs=self.settings.backoff_max_secs,
                max_restarts=self.settings.max_restarts,
                window_secs=self.settings.restart_window_secs,
            )
        )

    async def run(self) -> int:
        """Keep a child running until it ends by itself, is told to by a signal to us, or fails too often."""
        with trio.open_signal_receiver(*_end_signals()) as signals:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._take_signals, signals)
                nursery.start_soon(keep_alive, self.notifier, lambda: self._in_control)
                code = await self._keep_running()
                nursery.cancel_scope.cancel()
        return code

    async def _keep_running(self) -> int:
        while True:
            ended = await self._run_child()
            if self._stop.is_set():
                log.info("the server has ended: %s", describe_exit(ended.code))
                # One that was still starting dies of the signal: it did what it was told.
                return 0 if ended.code == -self._stop_signal else exit_code(ended.code)
            if not ended.hung and ended.code in FINAL_EXIT_CODES:
                log.info("the server ended by itself with exit code %d", ended.code)
                self.notifier.stopping()
                return ended.code
            now = trio.current_time()
            self._deaths.died(now, ())
            count, limit, window = self._deaths.count(now), self.settings.max_restarts, self._deaths.policy.window_secs
            if self._deaths.exhausted(now):
                log.critical(
                    "giving up: the server ended %d times within %g s, max_restarts is %d; the last time: %s",
                    count,
                    window,
                    limit,
                    ended.reason,
                )
                self.notifier.status(f"given up after {count} ends within {window:g} s: {ended.reason}")
                self.notifier.stopping()
                return exit_code(ended.code) or 1
            delay = self._deaths.policy.backoff_secs(count)
            when = f"in {delay:g} s" if delay else "at once"
            log.error("%s; it is started again %s (restart %d of %d)", ended.reason, when, count, limit)
            self.notifier.status(f"starting the server again {when}: {ended.reason}")
            with trio.move_on_after(delay):
                await self._stop.wait()
            if self._stop.is_set():
                return 0  # told to end while nothing ran
            self.restarts += 1

    async def _run_child(self) -> Ended:
        try:
            child = _spawn(self.command)
        except OSError as error:
            return Ended(code=1, reason=f"the server could not be started: {error}")
        self.child_pid = child.pid
        self._in_control = True
        log.info("the server runs as process %d", child.pid)
        hang: list[str] = []
        try:
            async with trio.open_nursery() as nursery:
                watching = await nursery.start(self._watch, child, hang)
                nursery.start_soon(self._end_when_told, child, watching)
                code = await wait_exit(child)
                nursery.cancel_scope.cancel()
        finally:
            self.child_pid = None
            await _reap(child)
        if hang:
            return Ended(code=code, reason=f"the server hung: {hang[0]}", hung=True)
        return Ended(code=code, reason=f"the server ended: {describe_exit(code)}")

    async def _watch(
        self,
        child: "subprocess.Popen[bytes]",
        hang: list[str],
        *,
        task_status: trio.TaskStatus[trio.CancelScope] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Probe the child for as long as it lives; end it when it hangs, and put the reason into ``hang``."""
        with trio.CancelScope() as scope:
            task_status.started(scope)
            hang.append(await self._hang(child.pid))
            log.error("process %d hangs: %s", child.pid, hang[0])
            self._in_control = False
            _tell_to_end(child, signal.SIGTERM)
            with trio.move_on_after(self.settings.hang_kill_grace_secs):
                await trio.sleep_forever()  # its end cancels this
            log.error("process %d did not end within %g s: killed", child.pid, self.settings.hang_kill_grace_secs)
            child.kill()

    async def _hang(self, pid: int) -> str:
        """Probe until the child is found to hang; return why."""
        poll_secs = self.settings.watchdog_poll_secs
        now = well_at = trio.current_time()
        greeted = False
        while True:
            pause = poll_secs if greeted else min(START_POLL_SECS, poll_secs)
            due = now + pause + self.probe_bound_secs
            await trio.sleep(pause)
            health = await self.probe()
            now = trio.current_time()
            if now - due > poll_secs:
                well_at += now - due  # we were stopped ourselves, and the child perhaps with us
            if health.trouble is None:
                well_at = now
                if not greeted:
                    greeted = True
                    log.info("process %d answers", pid)
                    self.notifier.ready()
                    self.notifier.status(f"the server runs as process {pid}; restarts: {self.restarts}")
                continue
            if health.hung:
                return health.trouble
            if now - well_at >= self.settings.health_timeout_secs:
                return f"not well for {now - well_at:.0f} s: {health.trouble}"
            log.log(logging.WARNING if greeted else logging.DEBUG, "process %d: %s", pid, health.trouble)

    async def _end_when_told(self, child: "subprocess.Popen[bytes]", watching: trio.CancelScope) -> None:
        await self._stop.wait()
        watching.cancel()  # a server that is ending answers no probe
        log.info("telling process %d to end", child.pid)
        _tell_to_end(child, self._stop_signal)
        with trio.move_on_after(self.stop_bound_secs) as bound:
            await self._kill.wait()
        if bound.cancelled_caught:
            log.error("process %d did not end within %g s: killed", child.pid, self.stop_bound_secs)
        child.kill()

    async def _take_signals(self, signals: AsyncIterator[int]) -> None:
        async for number in signals:
            if self._stop.is_set():
                log.warning("second signal: killing the server")
                self._kill.set()
            else:
                self._stop_signal = number
                self._stop.set()
                self.notifier.stopping()


def supervise(config: LoadedConfig, arguments: list[str], environment: MutableMapping[str, str] = os.environ) -> int:
    """Run a server with these command-line arguments, ``--supervise`` left out, under supervision; the exit code.

    ``config`` is what the arguments lead to. Port 0 is replaced by one port for all restarts.
    """
    settings = config.settings
    passed = [argument for argument in arguments if not _is_supervise(argument)]
    port = settings.port
    if port == 0:
        port = _free_port(settings.bind_addr)
        passed += ["--port", str(port)]
    supervisor = settings.supervisor
    bound_secs = min(supervisor.health_timeout_secs, supervisor.watchdog_poll_secs)
    return trio.run(
        Supervisor(
            command=(*SERVER_PROGRAM, *passed),
            settings=supervisor,
            probe=HttpProbe(settings.bind_addr, port, config.keys_path, bound_secs),
            probe_bound_secs=bound_secs,
            stop_bound_secs=settings.shutdown_drain_secs + supervisor.hang_kill_grace_secs,
            notifier=take_notifier(environment),
        ).run
    )


def tie_to_supervisor(environment: MutableMapping[str, str] = os.environ) -> bool:
    """In a server: end with the supervisor that started us, if one did. Exits at once when it has already gone."""
    parent = environment.pop(PARENT_VARIABLE, "")
    if not parent.isdecimal():
        return False
    die_with_parent(int(parent))
    return True


def exit_code(code: int) -> int:
    """A child's return code as an exit code of ours: 128 + n for a death by signal n, as shells have it."""
    return code if code >= 0 else 128 - code


def _spawn(command: tuple[str, ...]) -> "subprocess.Popen[bytes]":
    # Popen on the main thread: the parent-death signal comes when the thread that forked ends.
    environment = {**os.environ, PARENT_VARIABLE: str(os.getpid())}
    if sys.platform == "win32":
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            env=environment,
            creationflags=subprocess.CREATE_NEW_PROCESS_GROUP,
        )
    # A group of its own: Ctrl-C reaches us alone, so that the server gets one signal and not two.
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, env=environment, process_group=0)


def _end_signals() -> tuple[int, ...]:
    if sys.platform == "win32":
        return (signal.SIGINT, signal.SIGTERM, signal.SIGBREAK)
    return (signal.SIGINT, signal.SIGTERM)


def _tell_to_end(child: "subprocess.Popen[bytes]", number: int) -> None:
    if sys.platform == "win32":
        number = signal.CTRL_BREAK_EVENT  # the only one that reaches a single group
    child.send_signal(number)


async def _reap(child: "subprocess.Popen[bytes]") -> None:
    if child.poll() is None:
        child.kill()
        with trio.CancelScope(shield=True, deadline=trio.current_time() + REAP_SECS):
            await wait_exit(child)


def _is_supervise(argument: str) -> bool:
    """Whether it is the option, which may be abbreviated as any may."""
    return len(argument) > 2 and "--supervise".startswith(argument)


def _free_port(bind_addr: str) -> int:
    family = socket.AF_INET6 if ":" in bind_addr else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.bind((bind_addr, 0))
        return int(sock.getsockname()[1])
