"""A worker process as the server sees it: broken frames, floods, hangs, ends."""

import errno
import logging
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from rustedvino.hub import process as process_module
from rustedvino.hub.process import Launcher, WorkerEnd, WorkerProcess, WorkerStartError, describe_end
from rustedvino.worker.protocol import TO_WORKER, FrameDecoder, Message, ProtocolError, encode_frame
from tests.support import fault_worker
from tests.support.actors import faulty, still_there, until

SPEC = {"block_size": 32, "num_kv_blocks": 64}


@asynccontextmanager
async def worker(fault: str, *, stall_secs: float = 30, hello: bool = True) -> AsyncIterator[WorkerProcess]:
    """A worker with a fault; reaped at the end."""
    made = WorkerProcess(role="model", stall_secs=stall_secs, launcher=faulty(fault))
    with trio.fail_after(40):
        async with trio.open_nursery() as nursery:
            await nursery.start(made.run)
            if hello:
                await made.hello()
            yield made
            nursery.cancel_scope.cancel()
    assert made.ended.is_set()
    assert not still_there([made.pid])


async def end_of(made: WorkerProcess) -> WorkerEnd:
    await made.ended.wait()
    assert made.end is not None
    return made.end


def submit(made: WorkerProcess, most: int = 10**6, number: int = 1) -> None:
    made.send("load", SPEC)
    made.send("submit", number, b"\x01\0\0\0", {"max_new_tokens": most})


async def steps(made: WorkerProcess, count: int) -> list[Message]:
    """Let it step ``count`` times."""
    seen: list[Message] = []
    enough = trio.Event()

    def handle(message: Message) -> None:
        if message[0] == "step":
            seen.append(message)
            if len(seen) >= count:
                enough.set()

    made.handler = handle
    await enough.wait()
    return seen


async def test_a_worker_that_speaks_another_version_does_not_start() -> None:
    async with worker("old", hello=False) as made:
        with pytest.raises(WorkerStartError, match="protocol 0 where 1 is spoken"):
            await made.hello()


async def test_a_worker_whose_import_dies_says_by_what() -> None:
    async with worker("import-dies", hello=False) as made:
        with pytest.raises(WorkerStartError, match="signal SIGILL; last output: importing the runtime"):
            await made.hello()


async def test_a_worker_that_gives_no_sign(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module, "HELLO_TIMEOUT_SECS", 0.2)
    async with worker("silent", hello=False) as made:
        with pytest.raises(WorkerStartError, match="gave no sign"):
            await made.hello()
        assert (await end_of(made)).kind == "stall"


async def test_a_process_that_cannot_be_started() -> None:
    def launcher(role: str, environment: dict[str, str]) -> Any:
        raise OSError(errno.EAGAIN, "no more processes")

    async with trio.open_nursery() as nursery:
        with pytest.raises(WorkerStartError, match="no more processes"):
            await nursery.start(WorkerProcess(role="model", stall_secs=1, launcher=launcher).run)


@pytest.mark.parametrize("fault", [*fault_worker.BAD_BYTES, "bad-hello", "bad-fault", "truncated", "close"])
async def test_broken_frames_end_the_worker(fault: str) -> None:
    async with worker(fault) as made:
        submit(made)
        end = await end_of(made)
        assert end.kind == "protocol"
        assert end.exit_code == -signal.SIGKILL


async def test_garbage_from_a_worker_that_ends_at_once() -> None:
    async with worker("garbage-and-exit") as made:
        submit(made)
        assert (await end_of(made)).exit_code in (0, -signal.SIGKILL)


async def test_a_worker_killed_inside_a_frame_was_killed_and_broke_no_protocol() -> None:
    async with worker("truncated-and-killed") as made:
        submit(made)
        end = await end_of(made)
        assert (end.kind, end.text) == ("exit", "signal SIGKILL")


async def test_a_handler_may_refuse_what_it_gets() -> None:
    async with worker("") as made:

        def refuse(message: Message) -> None:
            raise ProtocolError(f"no {message[0]} wanted")

        made.handler = refuse
        submit(made)
        end = await end_of(made)
        assert (end.kind, end.text) == ("protocol", "protocol error: no loaded wanted")


async def test_last_words_are_those_of_stderr() -> None:
    async with worker("words-then-exit") as made:
        submit(made)
        end = await end_of(made)
        assert end.output_tail == "first line\nlast words on stderr"
        assert describe_end(end) == "the worker process ended: exit code 3; last output: last words on stderr"


async def test_a_step_that_raised_is_told_in_the_workers_own_words() -> None:
    async with worker("raise") as made:
        submit(made)
        end = await end_of(made)
        assert end.fault == ("poisoned_device", "clFinish CL_OUT_OF_RESOURCES")
        assert describe_end(end) == "clFinish CL_OUT_OF_RESOURCES"


async def test_ten_megabytes_per_step_on_stdout_and_stderr_are_drained_while_steps_go_on() -> None:
    async with worker("flood") as made:
        submit(made)
        assert len(await steps(made, 3)) == 3
        assert made.alive
        made.kill("killed", "seen enough")
        assert len((await end_of(made)).output_tail) <= 64 * 1024


async def test_what_a_worker_prints_is_logged_for_debugging(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "rustedvino.worker"):
        async with worker("words-then-exit") as made:
            submit(made)
            await end_of(made)
    assert "noise on stdout" in caplog.messages


async def test_an_idle_worker_that_does_not_answer_its_ping_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module, "PING_INTERVAL_SECS", 0.1)
    monkeypatch.setattr(process_module, "WATCH_TICK_SECS", 0.2)
    async with worker("", stall_secs=1) as made:
        made.send("call", 1, "sleep", {"secs": 3600})
        assert (await end_of(made)).kind == "stall"


async def test_slow_steps_of_a_long_prefill_are_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module, "WATCH_TICK_SECS", 0.1)
    total = fault_worker.SLOW_STEPS * fault_worker.SLOW_STEP_SECS
    assert total > 2 * 0.8
    async with worker("slow-steps", stall_secs=0.8) as made:
        submit(made)
        made.begin_work(0.8)
        seen = await steps(made, fault_worker.SLOW_STEPS + 5)
        assert seen[0][1] == []
        assert seen[-1][1] != []
        assert made.alive


async def test_a_worker_idle_for_thirty_seconds_is_alive() -> None:
    """Ten seconds idle is when a cached thread ends: a worker tied to one would end with it."""
    with trio.fail_after(90):
        async with worker("") as made:
            await trio.to_thread.run_sync(lambda: None)  # there is a thread that can end
            pongs: list[Message] = []
            made.handler = pongs.append
            await trio.sleep(31)  # the subject of this test is time itself
            assert made.alive
            made.send("call", 1, "still", {})
            await until(lambda: pongs)
            assert pongs == [["reply", 1, ["still", {}]]]


async def test_cancelling_the_task_reaps_the_process() -> None:
    async with worker("spin") as made:
        submit(made)
    assert made.end is not None
    assert (made.end.kind, made.end.exit_code) == ("killed", -signal.SIGKILL)


async def test_messages_to_an_ended_worker_vanish() -> None:
    async with worker("") as made:
        made.kill("killed", "first reason")
        made.kill("stall", "second reason")
        end = await end_of(made)
        assert (end.kind, end.text) == ("killed", "first reason")
        made.send("ping", 1)
        assert made.cancel(1)


def pipe_launcher(ends: list[socket.socket]) -> Launcher:
    """A process that does nothing, whose socket's other end is the test's, with as small a buffer as there is."""

    def launch(role: str, environment: dict[str, str]) -> Any:
        ours, theirs = socket.socketpair()
        for end in (ours, theirs):
            for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                end.setsockopt(socket.SOL_SOCKET, option, 1)
        ends.append(theirs)
        process = subprocess.Popen(
            [sys.executable, "-c", "import time; time.sleep(3600)"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        return process, ours

    return launch


class ByteByByte:
    """The sending side of a stream that takes one byte at a time and tells how many it took."""

    def __init__(self, took: Callable[[int], None]) -> None:
        self.taken = bytearray()
        self._took = took

    async def send_all(self, data: bytes) -> None:
        for byte in data:
            await trio.lowlevel.checkpoint()
            self.taken.append(byte)
            self._took(len(self.taken))


async def test_a_cancel_at_every_byte_of_a_frame() -> None:
    before, mine, after = ["ping", 1], ["submit", 5, b"promptpr", {"max_new_tokens": 3}], ["submit", 6, b"x", {}]
    stream = b"".join(map(encode_frame, (before, mine, after)))
    first = len(encode_frame(before))
    for place in range(len(stream) + 1):
        made = WorkerProcess(role="model", stall_secs=1)
        answers: list[bool] = []

        def cancel_at(
            taken: int, made: WorkerProcess = made, place: int = place, answers: list[bool] = answers
        ) -> None:
            if taken == place:
                answers.append(made.cancel(5))

        slow = made._stream = ByteByByte(cancel_at)  # type: ignore[assignment]
        async with trio.open_nursery() as nursery:
            made.send(*before)
            made.send(*mine, sequence=5)
            made.send(*after, sequence=6)
            cancel_at(0)
            nursery.start_soon(made._write)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        decoder = FrameDecoder(TO_WORKER)
        received = list(decoder.feed(bytes(slow.taken)))
        decoder.end()
        if place <= first:  # the frame had not begun: it never leaves, and there is nothing to cancel
            assert (answers, received) == ([False], [before, after])
        else:
            rest = [["cancel", 5], after] if place <= first + len(encode_frame(mine)) else [after, ["cancel", 5]]
            assert answers == [True]
            assert received == [before, mine, *rest]


async def test_a_cancel_with_a_full_socket_leaves_whole_frames() -> None:
    """A submit either never leaves, or leaves whole and is followed by its cancel ahead of everything queued."""
    ends: list[socket.socket] = []
    made = WorkerProcess(role="model", stall_secs=3600, launcher=pipe_launcher(ends))
    prompt = bytes(range(256)) * 100
    frame = encode_frame(["submit", 0, prompt, {}])
    cancelled_early = 0
    with trio.fail_after(40):
        async with trio.open_nursery() as nursery:
            await nursery.start(made.run)
            stream = trio.SocketStream(trio.socket.from_stdlib_socket(ends[0]))
            decoder = FrameDecoder(TO_WORKER)
            waiting: list[Message] = []

            async def receive(most: int) -> None:
                waiting.extend(decoder.feed(bytes(await stream.receive_some(most))))

            for number in range(1, 120):
                if number % 2:  # what a frame is queued behind; without it, it begins to leave at once
                    made.send("call", number, "fill", {"data": prompt[: 50 * number]})
                made.send("submit", number, prompt, {}, sequence=number)
                made.send("ping", -number)
                if number > 1:
                    for _ in range(number // 4):
                        await receive(1 + number * 7 % 113)
                left = made.cancel(number)
                cancelled_early += not left
                while ["ping", -number] not in waiting:
                    await receive(4096)
                kinds = [message for message in waiting if message[0] not in ("ping", "call")]
                expected: list[Message] = [["submit", number, prompt, {}], ["cancel", number]] if left else []
                assert kinds == expected
                if left:
                    assert waiting.index(["cancel", number]) < waiting.index(["ping", -number])
                waiting.clear()
            nursery.cancel_scope.cancel()
        ends[0].close()
    assert len(frame) > 4096
    assert 0 < cancelled_early < 60
