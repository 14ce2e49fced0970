"""What tests of mishaps need: streams read by threads, processes to hit, and a watch on /health meanwhile."""

import http.client
import json
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, Self

from tests.support.answers import completion_body
from tests.support.server import REPOSITORY, ServerProcess, sse_data

COMPLETIONS: Final = "/v1/completions"
CHAT: Final = "/v1/chat/completions"
HOOK: Final = REPOSITORY / "tests" / "support" / "worker_hook"
BEGUN_EVENTS: Final = 3
BEGIN_SECS: Final = 60.0
END_SECS: Final = 90.0
HEALTH_PAUSE_SECS: Final = 0.02
SMALL_SEGMENT_BYTES: Final = 536
SMALL_BUFFER_BYTES: Final = 2048
TICKS_PER_SEC: Final = os.sysconf("SC_CLK_TCK")


def misbehaving(what: str) -> dict[str, str]:
    """The environment of a server whose workers misbehave, see worker_hook/sitecustomize.py."""
    path = os.pathsep.join(filter(None, [str(HOOK), os.environ.get("PYTHONPATH")]))
    return {"PYTHONPATH": path, "RUSTEDVINO_TEST_WORKER": what}


def endless(model: str, prompt: Any, tokens: int = 3900, **fields: Any) -> dict[str, Any]:
    """A stream of exactly so many tokens, the same each time."""
    fixed = {"max_tokens": tokens, "ignore_eos": True, "temperature": 0, "stream": True}
    return completion_body(model, prompt, **{**fixed, **fields})


def post_bytes(path: str, body: Any, *headers: str) -> bytes:
    """A whole request as bytes."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [
        f"POST {path} HTTP/1.1",
        "host: localhost",
        "content-type: application/json",
        f"content-length: {len(content)}",
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode() + content


def connect(server: ServerProcess, *, narrow: bool = False) -> socket.socket:
    """A connection; a ``narrow`` one is filled by little, at both ends: the server's system plans its own buffer
    by the segments of 64 KiB that loopback has, unless the client wants them small, as on any other network."""
    connection = socket.socket()
    if narrow:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SMALL_SEGMENT_BYTES)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER_BYTES)
    connection.settimeout(END_SECS)
    connection.connect(("127.0.0.1", server.port))
    return connection


def wait_full(server: ServerProcess, model: str, connections: list[socket.socket], least: int, tokens: int) -> None:
    """Wait until ``least`` of the connections take nothing more: while ``tokens`` more are generated the system
    has as many bytes in line for them as before, or they have been dropped already."""
    while True:
        before, at = [_queued(server, each) for each in connections], card(server, model)["tokens_generated"]

        def more(at: int = at) -> bool:
            now = card(server, model)
            return now["tokens_generated"] >= at + tokens or not now["running"]

        eventually(server, more, "more tokens", 60)
        after = [_queued(server, each) for each in connections]
        if sum(one is None or one == other for one, other in zip(after, before, strict=True)) >= least:
            return
        assert card(server, model)["running"], "the answers are too short to fill anything"


def _queued(server: ServerProcess, connection: socket.socket) -> int | None:
    """Bytes that the server's system holds for a client; None when it has no such connection any more."""
    ends = (f":{server.port:04X}", f":{connection.getsockname()[1]:04X}")
    for line in Path("/proc/net/tcp").read_text().splitlines():
        fields = line.split()
        if fields[1].endswith(ends[0]) and fields[2].endswith(ends[1]):
            return int(fields[4].partition(":")[0], 16)
    return None


def reset(connection: socket.socket) -> None:
    """Close a connection by a reset."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


class Stream:
    """A streamed answer that a thread reads to its end, however that comes."""

    def __init__(self, server: ServerProcess, body: dict[str, Any], path: str = COMPLETIONS) -> None:
        self.status = 0
        self.text = ""
        self.broken: Exception | None = None
        """What ended it without a proper end."""
        self.secs = 0.0
        """From the first event to the end."""
        self._server, self._path, self._body = server, path, body
        self._socket: socket.socket | None = None
        self._begun = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._server.port, timeout=END_SECS)
        parts: list[bytes] = []
        started = time.monotonic()
        try:
            connection.request("POST", self._path, json.dumps(self._body), {"content-type": "application/json"})
            self._socket = connection.sock
            reply = connection.getresponse()
            self.status = reply.status
            events = 0
            while data := reply.read1(65536):
                if not parts:
                    started = time.monotonic()
                parts.append(data)
                events += data.count(b"data: ")
                if events >= BEGUN_EVENTS:
                    self._begun.set()
        except (OSError, http.client.HTTPException) as error:
            self.broken = error
        finally:
            self.secs = time.monotonic() - started
            connection.close()
            self.text = b"".join(parts).decode()
            self._begun.set()

    def leave(self) -> None:
        """Close the connection where it is."""
        if self._socket is not None:
            self._socket.shutdown(socket.SHUT_RDWR)
        self.wait()

    @property
    def ended(self) -> bool:
        """Whether the answer has come to an end."""
        return not self._thread.is_alive()

    def begun(self) -> Self:
        """Wait until several tokens have come."""
        assert self._begun.wait(BEGIN_SECS), "no token came"
        assert not self.ended, f"it is at its end already: {self.status} {self.text[-500:]} {self.broken!r}"
        return self

    def payloads(self) -> list[str]:
        """All events of a stream with a proper end of its body."""
        self._thread.join(END_SECS)
        assert self.ended, "the stream does not end"
        assert self.broken is None, repr(self.broken)
        assert self.status == 200, self.text
        return sse_data(self.text)

    def whole(self) -> str:
        """The text of a stream that was not disturbed."""
        *chunks, done = self.payloads()
        assert done == "[DONE]", done
        return "".join(json.loads(chunk)["choices"][0]["text"] for chunk in chunks)

    def lost(self, code: str = "worker_lost") -> list[str]:
        """The chunks of a stream that ended with an error, and nothing else, after them."""
        *chunks, last = self.payloads()
        assert chunks, "nothing came before the error"
        error = json.loads(last)["error"]
        assert error["code"] == code, error
        assert set(error) == {"message", "type", "param", "code"}
        for chunk in chunks:
            assert json.loads(chunk)["choices"][0]["finish_reason"] is None
        return chunks

    def wait(self) -> Self:
        """Wait for its end, proper or not."""
        self._thread.join(END_SECS)
        assert self.ended, "the stream does not end"
        return self


def streams(server: ServerProcess, bodies: Iterable[dict[str, Any]]) -> list[Stream]:
    """Streams that have all begun and not ended."""
    made = [Stream(server, body) for body in bodies]
    return [stream.begun() for stream in made]


class Post:
    """An unstreamed request made by a thread."""

    def __init__(self, server: ServerProcess, body: dict[str, Any], path: str = COMPLETIONS) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.answer: dict[str, Any] = {}
        self.failure: Exception | None = None
        self._server, self._path, self._body = server, path, body
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._server.port, timeout=END_SECS)
        try:
            connection.request("POST", self._path, json.dumps(self._body), {"content-type": "application/json"})
            reply = connection.getresponse()
            content = reply.read()
            self.headers = {name.lower(): value for name, value in reply.getheaders()}
            self.answer = json.loads(content)
            self.status = reply.status
        except (OSError, http.client.HTTPException, ValueError) as error:
            self.failure = error
        finally:
            connection.close()

    @property
    def ended(self) -> bool:
        """Whether the answer has come."""
        return not self._thread.is_alive()

    def result(self) -> dict[str, Any]:
        """The answer of a 200."""
        self.wait()
        assert self.failure is None, repr(self.failure)
        assert self.status == 200, self.answer
        return self.answer

    def error(self, status: int, code: str) -> str:
        """The message of an error with its headers."""
        self.wait()
        assert self.failure is None, repr(self.failure)
        assert (self.status, self.answer.get("error", {}).get("code")) == (status, code), self.answer
        if status in (429, 503):
            assert int(self.headers["retry-after"]) >= 1
        return str(self.answer["error"]["message"])

    def wait(self) -> Self:
        """Wait for its end."""
        self._thread.join(END_SECS)
        assert self.ended, "no answer came"
        return self


class HealthWatch:
    """Asks /health all the time; at the end none may have failed."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.answered = 0
        self.failures: list[str] = []

    def _run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._server.port, timeout=10)
        while not self._over.wait(HEALTH_PAUSE_SECS):
            try:
                connection.request("GET", "/health")
                reply = connection.getresponse()
                content = reply.read()
                if reply.status == 200:
                    self.answered += 1
                else:
                    self.failures.append(f"{reply.status} {content!r}")
            except (OSError, http.client.HTTPException) as error:
                self.failures.append(repr(error))
                connection.close()
        connection.close()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._over.set()
        self._thread.join(15)
        if kind is None:
            assert self.failures == []
            assert self.answered > 0


def card(server: ServerProcess, model: str) -> dict[str, Any]:
    """What an administrator sees of a model."""
    for entry in server.client.get("/v1/admin/models").json()["models"]:
        if entry["model_id"] == model:
            return dict(entry)
    raise AssertionError(f"{model} is not registered")


def idle(server: ServerProcess, model: str) -> bool:
    """Whether nothing runs or waits at a model, and none of its KV pool is promised."""
    now = card(server, model)
    return (now["running"], now["waiting"], now["kv_cache"]["reserved_tokens"]) == (0, 0, 0)


def kill_worker(server: ServerProcess, model: str, number: int) -> int:
    """Send a signal to the worker of a model and return its process id."""
    pid = card(server, model)["worker_pid"]
    assert pid is not None, f"{model} has no worker"
    os.kill(pid, number)
    return int(pid)


def workers_of_role(server: ServerProcess, role: str) -> list[int]:
    """Process ids of the workers of a role, ``model`` or ``utility``."""
    found = []
    for pid in server.workers():
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if b"--role" in words and words[words.index(b"--role") + 1] == role.encode():
            found.append(pid)
    return found


def spares(server: ServerProcess) -> list[int]:
    """Process ids of workers that have no model."""
    taken = {entry["worker_pid"] for entry in server.client.get("/v1/admin/models").json()["models"]}
    return [pid for pid in workers_of_role(server, "model") if pid not in taken]


def cpu_secs(pid: int) -> float:
    """Processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SEC


def age_secs(pid: int) -> float:
    """Time since the start of a process."""
    ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    return float(Path("/proc/uptime").read_text().split()[0]) - ticks / TICKS_PER_SEC


def open_files(pid: int) -> int:
    """How many descriptors a process has."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def pss_mib(pid: int) -> float:
    """Memory of a process, shared pages by share."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no PSS")


def eventually(server: ServerProcess, condition: Callable[[], bool], what: str, bound_secs: float = 20.0) -> None:
    """Wait until ``condition`` holds."""
    server.wait_for(condition, what, bound_secs)
