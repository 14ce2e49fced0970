"""The life of a worker: hello, at most one engine, steps and calls until the server goes away."""

import os
import time
from contextlib import suppress
from typing import Any, Protocol

from rustedvino.engines.faults import EngineFault, classify
from rustedvino.worker.channel import FrameChannel, ServerGone
from rustedvino.worker.protocol import PROTOCOL_VERSION, Message, ProtocolError

# One delta: sequence, new token ids, finish reason or None, log-probabilities of the ids or None.
Delta = tuple[int, list[int], str | None, list[float] | None]


class Engine(Protocol):
    """What the loop asks of an engine. Engines raise EngineFault, or anything, which is then classified."""

    @property
    def busy(self) -> bool:
        """Whether step() has work to do; the worker sleeps only when it has none."""

    def load(self, spec: dict[str, Any]) -> dict[str, Any]:
        """Load and warm up; returns the facts of the ``loaded`` message."""

    def submit(self, sequence: int, prompt: bytes, options: dict[str, Any]) -> bool | None:
        """Take a sequence into the running batch. A raised fault concerns this sequence alone.

        True: this took long (images were encoded), so the batch makes a step before more messages are handled.
        """

    def cancel(self, sequence: int) -> None:
        """Give a sequence up; its ``cancelled`` delta comes with a later step. Unknown ids are ignored."""

    def step(self) -> tuple[list[Delta], list[Any]]:
        """Compute one step for all sequences. An exception ends the worker.

        Without stats the engine still waits for what runs elsewhere; the server is then told nothing, so that its
        deadline for this worker goes on.
        """

    def call(self, method: str, arguments: dict[str, Any]) -> Any:
        """Answer one unit of work that is no generation. A raised fault concerns this call alone."""


class Worker:
    """Drives one engine by the messages of one channel, in one thread."""

    def __init__(self, channel: FrameChannel, role: str, engine: Engine, versions: dict[str, str]) -> None:
        self._channel = channel
        self._role = role
        self._engine = engine
        self._versions = versions

    def run(self) -> int:
        """Serve until the server goes away or the engine fails. Returns the exit code of the process."""
        try:
            self._channel.send(
                "hello",
                {"protocol": PROTOCOL_VERSION, "pid": os.getpid(), "role": self._role, **self._versions},
            )
            while True:
                for message in self._channel.receive(wait=not self._engine.busy):
                    if not self._handle(message):
                        return 0
                if self._engine.busy and not self._step():
                    return 1
        except ServerGone:
            return 0
        except ProtocolError as error:
            return self._end_with_fault("unknown", f"protocol error: {error}")

    def _step(self) -> bool:
        started = time.perf_counter_ns()
        try:
            deltas, stats = self._engine.step()
        except Exception as error:
            # A pipeline whose step raised is lost for good; a fresh process is the one way back.
            fault = classify(error)
            self._end_with_fault(fault.kind, fault.message)
            return False
        if stats:
            self._channel.send("step", deltas, [*stats, (time.perf_counter_ns() - started) // 1000])
        return True

    def _end_with_fault(self, kind: str, text: str) -> int:
        """Say why this worker ends, if there is still somebody to say it to; returns its exit code."""
        with suppress(ServerGone):
            self._channel.send("fault", kind, text)
        return 1

    def _handle(self, message: Message) -> bool:
        kind, *fields = message
        try:
            match kind:
                case "submit":
                    return not self._submit(*fields) or self._step()
                case "cancel":
                    self._engine.cancel(*fields)
                case "ping":
                    self._channel.send("pong", *fields)
                case "call":
                    self._call(*fields)
                case "load":
                    return self._load(*fields)
                case "shutdown":
                    return False
        except TypeError as error:
            raise ProtocolError(f"{kind} with the wrong fields: {error}") from error
        return True

    def _load(self, spec: dict[str, Any]) -> bool:
        try:
            facts = self._engine.load(spec)
        except Exception as error:
            fault = classify(error)
            self._channel.send("load_error", fault.kind, fault.message)
            return False
        self._channel.send("loaded", facts)
        return True

    def _submit(self, sequence: int, prompt: bytes, options: dict[str, Any]) -> bool:
        """Whether a step should follow at once."""
        try:
            return bool(self._engine.submit(sequence, prompt, options))
        except Exception as error:
            # add_request raises on what it refuses and leaves the pipeline healthy.
            fault = classify(error, otherwise="bad_input")
            self._channel.send("rejected", sequence, fault.kind, fault.message)
            return False

    def _call(self, call: int, method: str, arguments: dict[str, Any]) -> None:
        try:
            result = self._engine.call(method, arguments)
        except Exception as error:
            fault = classify(error, otherwise="bad_input")
            self._channel.send("call_error", call, fault.kind, fault.message)
            return
        try:
            self._channel.send("reply", call, result)
        except ProtocolError as error:  # an answer that fits no frame concerns this call alone
            self._channel.send("call_error", call, "unknown", str(error))


def unknown_method(method: str) -> EngineFault:
    """The fault of an engine that was called for something it does not do."""
    return EngineFault("bad_input", f"this worker does not answer {method!r}")
