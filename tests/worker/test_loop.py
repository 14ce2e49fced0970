"""The worker's loop with an engine of our own, in a thread, over a real socket."""

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from attrs import define, field

from rustedvino.engines.faults import EngineFault
from rustedvino.worker.channel import FrameChannel
from rustedvino.worker.loop import Delta, Worker, unknown_method
from rustedvino.worker.protocol import FROM_WORKER, PROTOCOL_VERSION, FrameDecoder, Message, encode_frame


@define(eq=False)
class CountingEngine:
    """Gives each sequence its own step numbers until ``tokens`` are there or it is cancelled."""

    running: dict[int, list[int]] = field(factory=dict)
    cancelled: set[int] = field(factory=set)
    step_error: Exception | None = None
    slow: bool = False
    quiet: int = 0
    steps: int = 0

    @property
    def busy(self) -> bool:
        return bool(self.running)

    def load(self, spec: dict[str, Any]) -> dict[str, Any]:
        if "error" in spec:
            raise EngineFault("bad_input", spec["error"])
        return {"seen": spec}

    def submit(self, sequence: int, prompt: bytes, options: dict[str, Any]) -> bool:
        if not prompt:
            raise ValueError("Prompt length cannot be 0")
        self.running[sequence] = [0, options["max_new_tokens"]]
        return self.slow

    def cancel(self, sequence: int) -> None:
        if sequence in self.running:
            self.cancelled.add(sequence)

    def step(self) -> tuple[list[Delta], list[Any]]:
        self.steps += 1
        if self.step_error is not None:
            raise self.step_error
        if self.quiet:
            self.quiet -= 1
            return [], []
        deltas: list[Delta] = []
        for sequence, state in list(self.running.items()):
            if sequence in self.cancelled:
                deltas.append((sequence, [], "cancelled", None))
                del self.running[sequence]
                continue
            state[0] += 1
            finish = "length" if state[0] == state[1] else None
            deltas.append((sequence, [state[0]], finish, None))
            if finish:
                del self.running[sequence]
        return deltas, [0.0, 1]

    def call(self, method: str, arguments: dict[str, Any]) -> Any:
        match method:
            case "echo":
                return arguments
            case "huge":
                return bytes(65 * 1024 * 1024)
            case "strange":
                return object()
            case "break":
                raise RuntimeError("at src/x.cpp:1\nit broke")
        raise unknown_method(method)


@define(eq=False)
class Server:
    """The server's end."""

    sock: socket.socket
    engine: CountingEngine
    thread: threading.Thread | None = None
    code: int | None = None
    _decoder: FrameDecoder = field(factory=lambda: FrameDecoder(FROM_WORKER))
    _waiting: list[Message] = field(factory=list)

    def send(self, *message: Any) -> None:
        self.sock.sendall(encode_frame(message))

    def next(self) -> Message | None:
        """The next message, None at the end of the stream."""
        while not self._waiting:
            data = self.sock.recv(65536)
            if not data:
                return None
            self._waiting += self._decoder.feed(data)
        return self._waiting.pop(0)

    def exit_code(self) -> int | None:
        assert self.thread is not None
        self.thread.join(10)
        assert not self.thread.is_alive()
        return self.code


@pytest.fixture
def server() -> Iterator[Server]:
    ours, theirs = socket.socketpair()
    ours.settimeout(20)
    engine = CountingEngine()
    result = Server(ours, engine)

    def run() -> None:
        with FrameChannel(theirs) as channel:
            result.code = Worker(channel, "model", engine, {"openvino": "1.2"}).run()

    result.thread = threading.Thread(target=run)
    result.thread.start()
    with ours:
        hello = result.next()
        assert hello is not None
        assert hello[0] == "hello"
        assert hello[1]["protocol"] == PROTOCOL_VERSION
        assert hello[1]["role"] == "model"
        assert hello[1]["openvino"] == "1.2"
        yield result
    result.exit_code()


def test_one_frame_per_step_for_all_sequences(server: Server) -> None:
    frames = b"".join(encode_frame(("submit", number, b"abcd", {"max_new_tokens": 3})) for number in (1, 2))
    server.sock.sendall(frames)
    for step in (1, 2, 3):
        message = server.next()
        assert message is not None
        kind, deltas, stats = message
        finish = "length" if step == 3 else None
        assert (kind, deltas) == ("step", [[1, [step], finish, None], [2, [step], finish, None]])
        assert len(stats) == 3
        assert stats[2] >= 0
    server.send("ping", 5)
    assert server.next() == ["pong", 5]
    assert server.engine.steps == 3  # it sleeps when there is nothing to do


def test_a_step_without_stats_is_not_told(server: Server) -> None:
    """Frames of an engine that only waits would hide from the server that nothing comes."""
    server.engine.quiet = 3
    server.send("submit", 1, b"abcd", {"max_new_tokens": 1})
    message = server.next()
    assert message is not None
    assert message[1] == [[1, [1], "length", None]]
    assert server.engine.steps == 4


def test_cancel_leaves_with_the_next_step(server: Server) -> None:
    server.send("submit", 1, b"abcd", {"max_new_tokens": 10**9})
    assert server.next() is not None
    server.send("cancel", 1)
    server.send("cancel", 99)
    while (message := server.next()) is not None and message[1][0][2] is None:
        pass
    assert message == ["step", [[1, [], "cancelled", None]], message[2] if message else None]
    server.send("ping", 1)
    assert server.next() == ["pong", 1]


def test_a_refused_sequence_concerns_itself_alone(server: Server) -> None:
    server.send("submit", 1, b"", {"max_new_tokens": 1})
    assert server.next() == ["rejected", 1, "bad_input", "Prompt length cannot be 0"]
    server.send("submit", 2, b"abcd", {"max_new_tokens": 1})
    message = server.next()
    assert message is not None
    assert message[1] == [[2, [1], "length", None]]


@pytest.mark.parametrize(
    ("method", "arguments", "answer"),
    [
        ("echo", {"a": [1, None]}, ["reply", 1, {"a": [1, None]}]),
        ("break", {}, ["call_error", 1, "bad_input", "it broke"]),
        ("other", {}, ["call_error", 1, "bad_input", "this worker does not answer 'other'"]),
    ],
)
def test_calls(server: Server, method: str, arguments: dict[str, Any], answer: Message) -> None:
    server.send("call", 1, method, arguments)
    assert server.next() == answer


@pytest.mark.parametrize("method", ["huge", "strange"])
def test_an_answer_that_fits_no_frame_concerns_its_call_alone(server: Server, method: str) -> None:
    server.send("call", 1, method, {})
    message = server.next()
    assert message is not None
    assert message[:3] == ["call_error", 1, "unknown"]
    server.send("call", 2, "echo", {})
    assert server.next() == ["reply", 2, {}]


def test_load_and_its_failure(server: Server) -> None:
    server.send("load", {"path": "x"})
    assert server.next() == ["loaded", {"seen": {"path": "x"}}]
    server.send("load", {"error": "no such thing"})
    assert server.next() == ["load_error", "bad_input", "no such thing"]
    assert server.next() is None
    assert server.exit_code() == 0


def test_shutdown(server: Server) -> None:
    server.send("shutdown")
    assert server.next() is None
    assert server.exit_code() == 0


def test_a_step_that_raises_ends_the_worker(server: Server) -> None:
    server.engine.step_error = RuntimeError("clFinish, error code: -5 CL_OUT_OF_RESOURCES")
    server.send("submit", 1, b"abcd", {"max_new_tokens": 1})
    assert server.next() == ["fault", "poisoned_device", "clFinish, error code: -5 CL_OUT_OF_RESOURCES"]
    assert server.next() is None
    assert server.exit_code() == 1


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff",
        b"\x00\x00\x00\x01\xc1",
        encode_frame(("step", [], [])),
        encode_frame(("submit", 1)),
        encode_frame(("cancel",)),
        encode_frame(("cancel", [1])),
        encode_frame(("call", 1)),
        encode_frame(("load",)),
    ],
)
def test_a_server_that_breaks_the_protocol_is_left(server: Server, data: bytes) -> None:
    server.sock.sendall(data)
    while (message := server.next()) is not None and message[0] != "fault":
        pass
    assert message is not None
    assert message[1] == "unknown"
    assert "protocol error" in message[2]
    assert server.next() is None
    assert server.exit_code() == 1


@pytest.mark.parametrize("last", [b"", b"\x00", encode_frame(("submit", 1, b"abcd", {"max_new_tokens": 1}))[:-1]])
def test_the_end_of_the_server_ends_the_worker_mid_work(server: Server, last: bytes) -> None:
    server.send("submit", 1, b"abcd", {"max_new_tokens": 10**9})
    server.sock.sendall(last)
    server.sock.close()
    assert server.exit_code() == 0


def test_a_broken_frame_of_a_server_that_is_gone(server: Server) -> None:
    server.sock.sendall(b"\xff\xff\xff\xff")
    server.sock.close()
    assert server.exit_code() in (0, 1)


def test_a_submit_that_took_long_is_followed_by_a_step(server: Server) -> None:
    server.engine.slow = True
    frames = b"".join(encode_frame(("submit", number, b"abcd", {"max_new_tokens": 2})) for number in (1, 2))
    server.sock.sendall(frames)
    first = server.next()
    assert first is not None
    assert [delta[:2] for delta in first[1]] == [[1, [1]]]
    second = server.next()
    assert second is not None
    assert [delta[:2] for delta in second[1]] == [[1, [2]], [2, [1]]]
    server.send("shutdown")


def test_a_step_that_raises_after_a_slow_submit_ends_the_worker(server: Server) -> None:
    server.engine.slow = True
    server.engine.step_error = RuntimeError("the pipeline is lost")
    server.send("submit", 1, b"abcd", {"max_new_tokens": 2})
    fault = server.next()
    assert fault is not None
    assert fault[0] == "fault"
    assert server.next() is None
