"""One worker process as the server sees it: frames, logs, progress, end."""

import errno
import logging
import os
import socket
import subprocess
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import IO, Any, Final, Literal

import trio
from attrs import define, field, frozen

from rustedvino.hub.log_tail import LogTail
from rustedvino.hub.oom import OomKills, last_words_of_memory
from rustedvino.observe.worker_lines import WorkerLines, worker_lines
from rustedvino.worker import platform
from rustedvino.worker.out_of_memory import OUT_OF_MEMORY, described
from rustedvino.worker.protocol import (
    FROM_WORKER,
    PROTOCOL_VERSION,
    FrameDecoder,
    Message,
    ProtocolError,
    encode_frame,
)

log = logging.getLogger(__name__)

HELLO_TIMEOUT_SECS: Final = 120.0
"""Interpreter start and import of the runtime, on a machine with every core busy."""
WATCH_TICK_SECS: Final = 1.0
OOM_LOOK_SECS: Final = 5.0
PING_INTERVAL_SECS: Final = 10.0
LAST_WORDS_SECS: Final = 1.0
"""How long a dead worker's socket and log pipes are read for what it still said."""
REAP_SECS: Final = 5.0
_RECEIVE_BYTES: Final = 256 * 1024
_LOG_RECEIVE_BYTES: Final = 16 * 1024
"""Little at a time: output that is all line ends must not hold up the event loop."""

EndKind = Literal["exit", "stall", "protocol", "killed", "internal"]
Launcher = Callable[[str, dict[str, str]], tuple["subprocess.Popen[bytes]", socket.socket]]
"""Starts the process of a role with an environment; returns it and our end of its frame socket."""


class WorkerStartError(Exception):
    """A worker process could not be started, or ended before its hello. ``fault`` is the kind of its WorkerEnd's."""

    def __init__(self, message: str, *, fault: str | None = None) -> None:
        super().__init__(message)
        self.fault = fault


@frozen
class WorkerEnd:
    """How a worker ended. ``text`` is one line; ``fault`` is kind and text of what the worker said of its own end, or
    what is known of its cause although it could not say so (a lack of memory).

    ``output_tail`` is the end of its stderr, or of its stdout when it wrote nothing to stderr.
    """

    kind: EndKind
    text: str
    exit_code: int | None
    output_tail: str
    fault: tuple[str, str] | None = None


def ignore_message(message: Message) -> None:
    """Take a message that nobody asked for any more."""


def _nothing() -> None:
    """Nobody gathers what several messages say."""


@define(eq=False)
class WorkerProcess:
    """Start with ``await worker.start(nursery)``.

    Messages reach ``handler`` in the reader's task; it must not block and raises ProtocolError when the worker
    sent what it may not. ``settled`` is called when all that arrived together has been handled, which is more than one
    message only when the server is behind; it must not block or raise.
    Everything else is plain calls: ``send`` and ``kill`` never wait.
    """

    role: str
    stall_secs: float
    launcher: Launcher = platform.spawn_worker
    environment: dict[str, str] = field(factory=lambda: dict(os.environ))
    handler: Callable[[Message], None] = ignore_message
    settled: Callable[[], None] = _nothing
    label: str = "spare"
    facts: dict[str, Any] = field(factory=dict)
    ended: trio.Event = field(factory=trio.Event)
    end: WorkerEnd | None = None
    _process: "subprocess.Popen[bytes] | None" = None
    _socket: socket.socket | None = None
    _stream: trio.SocketStream | None = None
    _outbox: deque[tuple[int | None, bytes]] = field(factory=deque)
    _begun: bytes = b""
    """The rest of a frame that has partly left: nothing goes before it."""
    _outbox_filled: trio.Event = field(factory=trio.Event)
    _greeted: trio.Event = field(factory=trio.Event)
    _over: trio.Event = field(factory=trio.Event)
    _stdout: LogTail = field(init=False)
    _stderr: LogTail = field(init=False)
    _cause: tuple[EndKind, str] | None = None
    _fault: tuple[str, str] | None = None
    _exit_code: int | None = None
    _oom_kills: OomKills | None = None
    _work_bound_secs: float | None = None
    _deadline: float | None = None
    last_frame: float = 0.0
    """When the last bytes came, in seconds of trio's clock: for a message that is being handled, its own time."""

    def __attrs_post_init__(self) -> None:
        self._stdout = LogTail(partial(self._log_line, worker_lines("stdout")))
        self._stderr = LogTail(partial(self._log_line, worker_lines("stderr")))

    @property
    def alive(self) -> bool:
        """Whether messages still reach the worker, as far as is known. ``ended`` follows soon after."""
        return not self._over.is_set()

    @property
    def pid(self) -> int:
        """Process id. Only after start."""
        assert self._process is not None
        return self._process.pid

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Start the process, serve its pipes until it has ended, reap it and set ``ended``.

        Cancellation kills the process; it is reaped under a bounded shield.
        Raises WorkerStartError when it cannot be started at all.
        """
        try:
            # On the main thread, by plain Popen: see platform.spawn_worker.
            self._process, sock = self.launcher(self.role, self.environment)
        except OSError as error:
            fault = OUT_OF_MEMORY if error.errno == errno.ENOMEM else None
            raise WorkerStartError(f"cannot start a worker process: {error}", fault=fault) from error
        self._oom_kills = OomKills(self._process.pid)
        self._oom_kills.look(trio.current_time())
        sock.setblocking(False)
        self._socket = sock
        self._stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
        self.last_frame = trio.current_time()
        try:
            async with trio.open_nursery() as readers:
                assert self._process.stdout is not None
                assert self._process.stderr is not None
                readers.start_soon(self._drain, self._process.stdout, self._stdout)
                readers.start_soon(self._drain, self._process.stderr, self._stderr)
                readers.start_soon(self._read)
                async with trio.open_nursery() as others:
                    others.start_soon(self._write)
                    others.start_soon(self._watch)
                    others.start_soon(self._wait_exit)
                    task_status.started()
                    await self._over.wait()
                    others.cancel_scope.cancel()
                if self._exit_code is None:
                    self._process.kill()
                readers.cancel_scope.deadline = trio.current_time() + LAST_WORDS_SECS
        except Exception:  # ours: the worker that cannot be served ends, nobody else
            log.exception("internal error in serving worker %s (pid %d)", self.label, self._process.pid)
            self.kill("internal", "an internal error of the server ended it; the log has more")
        finally:
            await self._reap()

    async def start(self, nursery: trio.Nursery) -> None:
        """Start the process, as a task of ``nursery``, and wait for its greeting. Raises WorkerStartError.

        A start that is given up leaves no process behind.
        """
        try:
            await nursery.start(self.run)  # when this is cancelled, the process may be there already
            await self.hello()
        except BaseException:  # a cancellation comes out of the nurseries inside as a group
            self.kill("killed", "its start was given up")
            raise

    async def hello(self) -> None:
        """Wait for the worker's greeting. Raises WorkerStartError; the process is then ended."""
        with trio.move_on_after(HELLO_TIMEOUT_SECS) as scope:
            async with trio.open_nursery() as nursery:

                async def stop_when(event: trio.Event) -> None:
                    await event.wait()
                    nursery.cancel_scope.cancel()

                nursery.start_soon(stop_when, self._greeted)
                nursery.start_soon(stop_when, self.ended)
        if self.ended.is_set():
            assert self.end is not None
            raise WorkerStartError(describe_end(self.end), fault=None if self.end.fault is None else self.end.fault[0])
        if scope.cancelled_caught:
            self.kill("stall", f"no hello within {HELLO_TIMEOUT_SECS:g} s")
            raise WorkerStartError(f"a worker process gave no sign within {HELLO_TIMEOUT_SECS:g} s of its start")

    def send(self, *message: Any, sequence: int | None = None) -> None:
        """Send one message, or queue what the kernel does not take now. Frames leave in order, whole. ``sequence``
        marks a frame that a cancel may take back while it is queued.

        Raises FrameTooLarge. Messages to a worker that has ended vanish: its end is reported by ``ended``.
        """
        self._queue(sequence, encode_frame(message), front=False)

    def cancel(self, sequence: int) -> bool:
        """Cancel a sequence ahead of all queued frames. False when its submit had not left yet: it never will."""
        for entry in self._outbox:
            if entry[0] == sequence:
                self._outbox.remove(entry)
                return False
        self._queue(None, encode_frame(("cancel", sequence)), front=True)
        return True

    def kill(self, kind: EndKind, reason: str) -> None:
        """End the process now. The first reason given is the one reported."""
        if self._cause is None:
            self._cause = (kind, reason)
        self._over.set()

    def begin_work(self, bound_secs: float) -> None:
        """From now on the worker must send a frame within ``bound_secs``, each frame moving the bound."""
        if self._work_bound_secs != bound_secs:
            self._work_bound_secs = bound_secs
            self._deadline = trio.current_time() + bound_secs

    def end_work(self) -> None:
        """The worker owes nothing; it is pinged now and then."""
        self._work_bound_secs = None
        self._deadline = None

    def _queue(self, sequence: int | None, frame: bytes, *, front: bool) -> None:
        if not self._begun and not self._outbox:
            # At once: a worker that has its first request computes while this task is busy with the next ones.
            sent = self._send_now(frame)
            if sent == len(frame):
                return
            if sent:
                self._begun = frame[sent:]
                self._outbox_filled.set()
                return
        if front:
            self._outbox.appendleft((sequence, frame))
        else:
            self._outbox.append((sequence, frame))
        self._outbox_filled.set()

    def _send_now(self, frame: bytes) -> int:
        """How many bytes the kernel took. From a worker that is gone it takes all: its end is reported elsewhere."""
        if self._socket is None:
            return 0
        try:
            return self._socket.send(frame)
        except BlockingIOError:
            return 0
        except OSError:
            return len(frame)

    async def _write(self) -> None:
        assert self._stream is not None
        while True:
            while self._begun or self._outbox:
                if not self._begun:
                    _, self._begun = self._outbox.popleft()
                try:
                    await self._stream.send_all(self._begun)
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    return  # the reader sees the end of the stream and says so
                self._begun = b""
            self._outbox_filled = trio.Event()
            await self._outbox_filled.wait()

    async def _read(self) -> None:
        assert self._socket is not None
        decoder = FrameDecoder(FROM_WORKER)
        now = trio.lowlevel.current_clock().current_time
        useless = "the worker closed its frame socket"
        try:
            while True:
                try:
                    await trio.lowlevel.wait_readable(self._socket)
                    # Nearly always the worker is the slower side: waiting first saves a failing call, and a plain
                    # receive a second pass of the scheduler, per step.
                    data = self._socket.recv(_RECEIVE_BYTES)
                except BlockingIOError:
                    continue
                except (OSError, trio.ClosedResourceError):
                    break
                if not data:
                    break
                self.last_frame = now()
                if self._work_bound_secs is not None:
                    self._deadline = self.last_frame + self._work_bound_secs
                else:
                    self._deadline = None
                try:
                    for message in decoder.feed(data):
                        self._dispatch(message)
                finally:
                    self.settled()
            try:
                decoder.end()
            except ProtocolError as error:
                useless = f"protocol error: {error}"
        except ProtocolError as error:
            self.kill("protocol", f"protocol error: {error}")
            return
        # The stream has ended, so the process is ending or useless. Its exit code says more, and is worth a moment.
        with trio.move_on_after(LAST_WORDS_SECS):
            await self._over.wait()
            return
        self.kill("protocol", useless)

    def _dispatch(self, message: Message) -> None:
        kind = message[0]
        try:
            if kind == "hello":
                _, facts = message
                if facts.get("protocol") != PROTOCOL_VERSION:
                    raise ProtocolError(f"protocol {facts.get('protocol')!r} where {PROTOCOL_VERSION} is spoken")
                self.facts = facts
                self._greeted.set()
            elif kind == "pong":
                pass  # any frame is a sign of life
            elif kind == "fault":
                _, fault_kind, text = message
                self._fault = (str(fault_kind), str(text))
            else:
                self.handler(message)
        except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
            raise ProtocolError(f"malformed {kind} message: {error}") from error

    async def _wait_exit(self) -> None:
        assert self._process is not None
        code = await platform.wait_exit(self._process)
        self._exit_code = code
        self.kill("exit", platform.describe_exit(code))

    async def _watch(self) -> None:
        """Find a worker that makes no progress. Each finding must hold for two ticks in a row:
        the first may be our own lateness, or a job control stop of the whole group."""
        number = 0
        suspicion = 0
        look_at = 0.0
        while True:
            # Whole seconds: the watches of all workers share one waking of the event loop.
            await trio.sleep_until((trio.current_time() // WATCH_TICK_SECS + 1) * WATCH_TICK_SECS)
            now = trio.current_time()
            if self._oom_kills is not None and now >= look_at:
                look_at = now + OOM_LOOK_SECS
                self._oom_kills.look(now)
            stopped = platform.is_stopped(self.pid)
            if not stopped and (self._deadline is None or now < self._deadline):
                suspicion = 0
                if self._deadline is None and self._greeted.is_set() and now - self.last_frame >= PING_INTERVAL_SECS:
                    number += 1
                    self.send("ping", number)
                    self._deadline = now + self.stall_secs
                continue
            suspicion += 1
            if suspicion >= 2:
                what = "stopped by a signal" if stopped else "no progress within its bound"
                log.warning("worker %s (pid %d): %s", self.label, self.pid, what)
                self.kill("stall", what)
                return

    async def _drain(self, pipe: IO[bytes], tail: LogTail) -> None:
        """Read a log pipe whatever happens, so that a chatty worker never blocks on it."""
        try:
            async with platform.receive_stream(pipe) as stream:
                while data := await stream.receive_some(_LOG_RECEIVE_BYTES):
                    tail.feed(bytes(data))
        finally:
            tail.end()

    def _log_line(self, lines: WorkerLines, line: bytes) -> None:
        lines(line, label=self.label, pid=self.pid)

    async def _reap(self) -> None:
        assert self._process is not None
        assert self._stream is not None
        with trio.CancelScope(shield=True, deadline=trio.current_time() + REAP_SECS):
            if self._exit_code is None:
                self._process.kill()
                self._exit_code = await platform.wait_exit(self._process)
        with trio.CancelScope(shield=True, deadline=trio.current_time() + REAP_SECS):
            await trio.aclose_forcefully(self._stream)
        for pipe in (self._process.stdout, self._process.stderr):
            assert pipe is not None
            pipe.close()
        kind, text = self._cause or ("killed", "the server is ending")
        tail = self._stderr.text() or self._stdout.text()
        fault = self._fault or self._lack_of_memory(kind, text, tail)
        self.end = WorkerEnd(kind, text, self._exit_code, tail, fault)
        self.ended.set()
        log.info("worker %s (pid %d) ended: %s", self.label, self._process.pid, describe_end(self.end))

    def _lack_of_memory(self, kind: EndKind, text: str, tail: str) -> tuple[str, str] | None:
        """The fault of a worker that ended for lack of memory and could not say so, None for any other end."""
        # One that the kernel kills closes its socket first, and may take long to be gone after that.
        if kind not in ("exit", "protocol") or not self._exit_code:
            return None
        if platform.was_killed(self._exit_code):
            if self._oom_kills is None or not self._oom_kills.recent():
                return None
            return OUT_OF_MEMORY, "out of memory: the kernel killed the worker process to free memory"
        words = last_words_of_memory(tail)
        return None if words is None else (OUT_OF_MEMORY, described(f"the worker process ended: {text}; {words}"))


def describe_end(end: WorkerEnd) -> str:
    """One line for people: the words of its fault if it had one, else how it ended and its last line of output."""
    if end.fault is not None:
        return end.fault[1]
    text = f"the worker process ended: {end.text}"
    lines = end.output_tail.strip().splitlines()
    return f"{text}; last output: {lines[-1][:300]}" if lines else text
