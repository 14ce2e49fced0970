"""A worker process with a fault, for tests of what the server does about it.

It is started like any worker, with ``--fault NAME`` before the usual arguments. Its engine counts instead of
computing, so it starts at once: token ``k`` of a sequence is ``(first prompt id + k) % 1000``, and a sequence ends
by length. A fault of a step happens in the FAULTY_STEP-th step of the process.
"""

import argparse
import os
import pathlib
import signal
import socket
import struct
import sys
import time
from typing import Any

from rustedvino.engines.faults import EngineFault
from rustedvino.worker import platform
from rustedvino.worker.channel import FrameChannel
from rustedvino.worker.loop import Delta, Worker
from rustedvino.worker.protocol import encode_frame

FAULTY_STEP = 3
FLOOD_BYTES = 10_000_000
SLOW_STEPS = 30
SLOW_STEP_SECS = 0.06
SLOW_LOAD_SECS = 1.8
EATEN_BYTES = 192 * 2**20
ADDRESS_SPACE_BYTES = 32 * 2**20
BAD_BYTES = {
    "garbage": b"\x00\x00\x00\x05\xc1\xc1\xc1\xc1\xc1",
    "noise": bytes(range(7, 250, 3)),
    "oversized": struct.pack(">I", 2**32 - 1),
    "unknown-kind": encode_frame(["surprise", 1]),
    "no-list": struct.pack(">I", 1) + b"\x01",
    "not-ours": encode_frame(["submit", 1, b"", {}]),
}
BAD_STEPS: dict[str, Any] = {
    "unknown-sequence": [[[10**6, [1], None, None]], [0.0, 1, 1]],
    "no-deltas": [None, [0.0, 1, 1]],
    "short-delta": [[[1, [1]]], [0.0, 1, 1]],
    "no-stats": [[], []],
    "strange-stats": [[], ["full", None, []]],
}
BAD_DELTAS: dict[str, Any] = {
    "too-many": [list(range(100_000)), None, None],
    "strings": [["a", "b"], None, None],
    "string": ["ab", None, None],
    "floats": [[1.5], None, None],
    "bools": [[True], None, None],
    "negative": [[-1], None, None],
    "huge-token": [[2**40], None, None],
    "number": [7, None, None],
    "unknown-finish": [[], "tired", None],
    "list-finish": [[], ["stop"], None],
    "uncalled-cancelled": [[], "cancelled", None],
}
BAD_MESSAGES: dict[str, list[Any]] = {
    "loaded-twice": ["loaded", {"block_size": 32, "num_kv_blocks": 64}],
    "reply-uncalled": ["reply", 77, None],
    "rejected-unknown": ["rejected", 10**6, "bad_input", "no"],
    "rejected-short": ["rejected"],
    "bad-fault": ["fault"],
    "bad-hello": ["hello", None],
}


class FaultyEngine:
    """Counts, until its fault."""

    def __init__(self, fault: str, sock: socket.socket) -> None:
        self._fault = fault
        self._socket = sock
        self._running: dict[int, list[Any]] = {}
        self._steps = 0

    @property
    def busy(self) -> bool:
        return bool(self._running)

    def load(self, spec: dict[str, Any]) -> dict[str, Any]:
        if self._fault == "slow-load":
            time.sleep(SLOW_LOAD_SECS)
        elif self._fault == "load-error":
            raise EngineFault("bad_input", "the weights are odd")
        elif self._fault == "load-crash":
            print("a native library says: assertion failed in load", file=sys.stderr, flush=True)
            os.abort()
        elif self._fault == "load-memory-error":
            raise RuntimeError("Exception from src/inference/src/dev/plugin.cpp:54:\nstd::bad_alloc\n")
        elif self._fault == "load-bad-alloc":
            print("terminate called after throwing an instance of 'std::bad_alloc'", file=sys.stderr, flush=True)
            os.abort()
        elif self._fault == "load-address-space":
            platform.limit_resources(address_space_bytes=ADDRESS_SPACE_BYTES)
            bytearray(4 * ADDRESS_SPACE_BYTES)
        elif self._fault == "load-eats":
            bytearray(os.urandom(2**20) * (EATEN_BYTES // 2**20))
        elif self._fault == "load-hang":
            time.sleep(3600)
        elif self._fault.startswith("cache-") and "CACHE_DIR" in spec["properties"]:
            self._use_cache(pathlib.Path(spec["properties"]["CACHE_DIR"]))
        facts = {"block_size": spec["block_size"], "num_kv_blocks": spec["num_kv_blocks"]}
        if self._fault == "bad-facts":
            facts["block_size"] = "many"
        return facts

    def _use_cache(self, folder: pathlib.Path) -> None:
        """What the runtime does with its blobs, and a stale one is its undoing."""
        blob = folder / "1.blob"
        if blob.exists() and blob.read_bytes() == b"stale":
            if self._fault == "cache-crash":
                os.abort()
            raise EngineFault("unknown", "the blob cannot be imported")
        blob.write_bytes(b"fresh")
        if self._fault == "cache-cut":
            (folder / "2.blob").write_bytes(b"ha")
            time.sleep(3600)

    def submit(self, sequence: int, prompt: bytes, options: dict[str, Any]) -> None:
        if self._fault == "reject":
            raise EngineFault("bad_input", "not this one")
        first = int.from_bytes(prompt[:4], "little")
        self._running[sequence] = [first, 0, options["max_new_tokens"], False]

    def cancel(self, sequence: int) -> None:
        if sequence in self._running:
            self._running[sequence][3] = True

    def call(self, method: str, arguments: dict[str, Any]) -> Any:
        if method == "sleep":
            time.sleep(arguments["secs"])
        elif method == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        elif method == "crash-once":
            try:
                os.mkdir(arguments["mark"])
            except FileExistsError:
                return "second"
            os.kill(os.getpid(), signal.SIGKILL)
        elif method == "prove_constraint":
            if self._fault == "proof-killed":  # as from outside
                os.kill(os.getpid(), signal.SIGKILL)
            elif self._fault == "proof-aborts":
                os.abort()
            return {"ready": True, "compile_secs": 0.0}
        return [method, arguments]

    def step(self) -> tuple[list[Delta], list[Any]]:
        self._steps += 1
        if self._fault == "flood":
            _flood()
        elif self._fault == "slow-steps" and self._steps <= SLOW_STEPS:
            time.sleep(SLOW_STEP_SECS)
            return [], [0.0, 1]
        elif self._fault == "paced":
            time.sleep(0.005)
        elif self._steps == FAULTY_STEP:
            self._break()
        return self._count(), [0.0, 1]

    def _count(self) -> list[Delta]:
        deltas: list[Delta] = []
        for sequence, state in list(self._running.items()):
            first, done, most, cancelled = state
            if cancelled:
                deltas.append((sequence, [], "cancelled", None))
                del self._running[sequence]
                continue
            state[1] = done + 1
            finish = "length" if state[1] == most else None
            deltas.append((sequence, [(first + done) % 1000], finish, None))
            if finish:
                del self._running[sequence]
        return deltas

    def _break(self) -> None:
        fault = self._fault
        if fault in BAD_BYTES:
            self._say(BAD_BYTES[fault])
        elif fault in BAD_STEPS:
            self._say(encode_frame(["step", *BAD_STEPS[fault]]))
        elif fault in BAD_DELTAS:
            self._say(encode_frame(["step", [[next(iter(self._running)), *BAD_DELTAS[fault]]], [0.0, 1, 1]]))
        elif fault == "finished-twice":
            delta = [next(iter(self._running)), [], "length", None]
            self._say(encode_frame(["step", [delta, delta], [0.0, 1, 1]]))
        elif fault in BAD_MESSAGES:
            self._say(encode_frame(BAD_MESSAGES[fault]))
        elif fault == "garbage-and-exit":
            self._say(BAD_BYTES["garbage"], wait=False)
            os._exit(0)
        elif fault == "truncated":
            self._say(encode_frame(["step", [], [0.0, 1, 1]])[:-2], wait=False)
            self._socket.shutdown(socket.SHUT_RDWR)
            time.sleep(3600)
        elif fault == "truncated-and-killed":
            self._say(encode_frame(["step", [], [0.0, 1, 1]])[:-2], wait=False)
            os.kill(os.getpid(), signal.SIGKILL)
        elif fault == "close":
            self._socket.shutdown(socket.SHUT_RDWR)
            time.sleep(3600)
        elif fault == "spin":
            sum(range(10**15))  # native code that holds the GIL, as a step of the runtime does
        elif fault == "step-bad-alloc":
            raise RuntimeError("std::bad_alloc")
        elif fault == "raise":
            raise RuntimeError("Check 'x' failed at src/inference.cpp:1\nclFinish CL_OUT_OF_RESOURCES")
        elif fault == "words-then-exit":
            print("noise on stdout", flush=True)
            print("first line\nlast words on stderr", file=sys.stderr, flush=True)
            os._exit(3)

    def _say(self, data: bytes, *, wait: bool = True) -> None:
        self._socket.setblocking(True)
        self._socket.sendall(data)
        if wait:
            time.sleep(3600)  # whatever the server makes of it, it is not our end that it sees


def _flood() -> None:
    block = b"x" * 499 + b"\n"
    for fd in (1, 2):
        for _ in range(FLOOD_BYTES // (500 * 100)):
            os.write(fd, block * 100)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", required=True)
    parser.add_argument("--role", required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--fd", type=int, required=True)
    arguments = parser.parse_args()
    fault = arguments.fault
    platform.enter_worker(arguments.parent)
    if fault == "import-dies":
        print("importing the runtime", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGILL)
    sock = platform.inherit_socket(arguments.fd)
    if fault == "silent":
        time.sleep(3600)
    if fault == "old":
        sock.sendall(encode_frame(["hello", {"protocol": 0, "pid": os.getpid(), "role": arguments.role}]))
        time.sleep(3600)
    if fault == "dies-after-hello":
        sock.sendall(encode_frame(["hello", {"protocol": 1, "pid": os.getpid(), "role": arguments.role}]))
        return 5
    channel = FrameChannel(sock)
    return Worker(channel, arguments.role, FaultyEngine(fault, sock), {}).run()


if __name__ == "__main__":
    os._exit(main())
