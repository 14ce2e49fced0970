"""Loads and unloads without end: does the server come back to where it was?

Tiny models are loaded and unloaded by the admin API while requests run: streams, whole answers, long streams that an
unload cuts off, clients who leave, loads whose client leaves, unloads of a model that is loading. Every answer must be
one that the documentation names. After a warm-up and after each stretch the traffic is stopped, and the server must
have what it had: memory of its own (USS), descriptors, Trio tasks, Python objects, processes; and the machine its
available memory. Linux only; ends with 1 when something is not back.

    python -m benchmarks.soak --cycles 300
"""

import argparse
import ctypes
import gc
import http.client
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Self

import attrs

from benchmarks.measure import children, end, load_average, table
from benchmarks.target import LISTENING
from rustedvino.hub.memory import available_ram_bytes, process_memory

REPOSITORY: Final = Path(__file__).resolve().parents[1]
MODELS: Final = ("tiny-qwen3", "tiny-llama3")
REPORT_VARIABLE: Final = "RUSTEDVINO_SOAK_REPORT"
CLIENTS: Final = 6
SERVED_PER_CYCLE: Final = 6
"""Requests that a model answers between its load and its unload, at the least."""
SHORT_TOKENS: Final = 24
LONG_TOKENS: Final = 3000
LOAD_ATTEMPTS: Final = 5
THINK_SECS: Final = 0.05
START_SECS: Final = 120.0
ANSWER_SECS: Final = 120.0
SETTLE_SECS: Final = 30.0
"""How long counts may take to come back once the traffic has stopped: a spare worker starts, a pipe is drained."""
MEMORY_SETTLE_SECS: Final = 60.0
MIB: Final = 2**20
USS_SHARE: Final = 0.04
"""Growth of the server's own memory that is no leak: the log ring and caches fill, and free pieces lie among others."""
OBJECTS_SLACK: Final = 2500
"""Between moments of rest the number goes up and down by so much: what the last requests left in caches and records."""
OBJECTS_PER_CYCLE: Final = 5
AVAILABLE_SHARE: Final = 0.02
LOST: Final = "no answer"

DOCUMENTED: Final = frozenset(
    {
        "200",
        "200 stream",
        "200 stream, then model_unloading",
        "429 rate_limit_exceeded",
        "503 model_loading",
        "503 model_not_loaded",
        "503 model_unloading",
        "left",
    }
)
"""What a client may see; no worker dies here, so nothing may be lost."""
ADMIN_DOCUMENTED: Final = frozenset({"200", "409 model_not_loaded", "503 model_unloading", "left"})


@attrs.frozen(kw_only=True)
class Figures:
    """What the server has at one moment of rest."""

    cycles: int
    uss_bytes: int
    fds: int
    tasks: int
    objects: int
    processes: int
    available_bytes: int

    def row(self) -> list[str]:
        """Cells of the table."""
        sizes = [f"{self.uss_bytes / MIB:.1f}", str(self.fds), str(self.tasks), str(self.objects), str(self.processes)]
        return [str(self.cycles), *sizes, f"{self.available_bytes / MIB:.0f}"]


HEAD: Final = ("cycles", "USS MiB", "fds", "tasks", "objects", "processes", "available MiB")


class Server:
    """The server as a process of its own that also says, when asked by a signal, how many tasks and objects it has."""

    def __init__(self) -> None:
        self.scratch = Path(tempfile.mkdtemp(prefix="soak-"))
        self.port = 0
        self._report = self.scratch / "report.json"
        self._log: list[str] = []
        self._listening = threading.Event()
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        models = self.scratch / "models"
        models.mkdir()
        for model in MODELS:
            (models / model).symlink_to(REPOSITORY / "tests" / "models" / model, target_is_directory=True)
        settings = {
            "models_dir": "models",
            "device": "CPU",
            "total_vram_gb": 0,
            "models": {model: {"kv_cache_gb": 0.2, "max_concurrent_streams": CLIENTS} for model in MODELS},
            "num_threads": 1,
            "spare_workers": 1,
            "min_kv_cache_gb": 0.01,
            "drain_timeout_secs": 0.3,
        }
        config = self.scratch / "config.json"
        config.write_text(json.dumps(settings))
        command = [sys.executable, "-m", "benchmarks.soak", "--serve", str(config)]
        environment = {**os.environ, REPORT_VARIABLE: str(self._report)}
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment, cwd=REPOSITORY)
        threading.Thread(target=self._read_log, daemon=True).start()
        if not self._listening.wait(START_SECS) or not self.port:
            self.__exit__()
            raise SystemExit("the server did not start:\n" + self.log_tail())
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        end(self._process, ANSWER_SECS)
        shutil.rmtree(self.scratch, ignore_errors=True)

    @property
    def pid(self) -> int:
        """Process id."""
        assert self._process is not None
        return self._process.pid

    def log_tail(self) -> str:
        """The last lines of its log."""
        return "".join(self._log[-20:])

    def _read_log(self) -> None:
        assert self._process is not None
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._log.append(line)
            del self._log[:-200]
            if found := LISTENING.search(line):
                self.port = int(found[1])
                self._listening.set()
        self._listening.set()  # it ended

    def inside(self) -> tuple[int, int]:
        """Living Trio tasks and Python objects of the server, garbage collected."""
        self._report.unlink(missing_ok=True)
        os.kill(self.pid, signal.SIGUSR1)
        wait_until(self._report.exists, "the server's report")
        report = json.loads(self._report.read_text())
        return report["tasks"], report["objects"]

    def figures(self, cycles: int) -> Figures:
        """What it has now."""
        tasks, objects = self.inside()
        memory = process_memory(self.pid)
        available = available_ram_bytes()
        if memory is None or available is None:
            raise SystemExit("this system does not say what a process uses")
        return Figures(
            cycles=cycles,
            uss_bytes=memory.uss_bytes,
            fds=len(os.listdir(f"/proc/{self.pid}/fd")),
            tasks=tasks,
            objects=objects,
            processes=len(children(self.pid)),
            available_bytes=available,
        )

    # Requests, each on a connection of its own.

    def open(self, method: str, path: str, body: dict[str, Any] | None = None) -> http.client.HTTPConnection:
        """Send a request."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=ANSWER_SECS)
        content = None if body is None else json.dumps(body)
        headers = {"connection": "close"} | ({} if body is None else {"content-type": "application/json"})
        connection.request(method, path, content, headers)
        return connection

    def ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Status and code of an unstreamed answer in words, and its JSON."""
        connection = self.open(method, path, body)
        try:
            reply = connection.getresponse()
            answer = json.loads(reply.read())
            if reply.status < 400:
                return str(reply.status), answer
            return error_words(reply, answer), answer
        finally:
            connection.close()

    def cards(self) -> dict[str, dict[str, Any]]:
        """All models as an administrator sees them."""
        _, answer = self.ask("GET", "/v1/admin/models")
        return {entry["model_id"]: entry for entry in answer["models"]}


def error_words(reply: http.client.HTTPResponse, answer: dict[str, Any]) -> str:
    """Status and code; and what is wrong with the answer, if something is."""
    words = f"{reply.status} {answer['error']['code']}"
    # What waiting cannot change has no Retry-After: nobody loads that model by itself.
    if reply.status in (429, 503) and "model_not_loaded" not in words and not reply.getheader("retry-after"):
        words += " without Retry-After"
    return words


def wait_until(condition: Callable[[], bool], what: str, bound_secs: float = ANSWER_SECS) -> None:
    """Poll until ``condition`` holds. Raises SystemExit when it does not in time."""
    deadline = time.monotonic() + bound_secs
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"{what} did not come within {bound_secs:g} s")
        time.sleep(0.01)


class Traffic:
    """Clients that ask all models for all sorts of answers until paused or stopped; ``outcomes`` counts what came."""

    def __init__(self, server: Server) -> None:
        self.outcomes: Counter[str] = Counter()
        self.served: Counter[str] = Counter()
        """Answers that had content, by model."""
        self._server = server
        self._running = threading.Event()
        self._over = False
        self._lock = threading.Condition()
        self._busy = 0
        self._threads = [threading.Thread(target=self._client, args=(number,)) for number in range(CLIENTS)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        self._running.set()
        for thread in self._threads:
            thread.join()

    def resume(self) -> None:
        """Go on."""
        self._running.set()

    def pause(self) -> None:
        """Begin no more requests, and wait until those that run have ended."""
        self._running.clear()
        with self._lock:
            if not self._lock.wait_for(lambda: not self._busy, ANSWER_SECS):
                raise SystemExit("requests do not end")

    def _client(self, number: int) -> None:
        chance = random.Random(number)
        while not self._over:
            self._running.wait()
            with self._lock:
                self._busy += 1
            try:
                outcome = self._request(chance.choice(MODELS), chance.choice(("stream", "whole", "long", "leave")))
            except (OSError, http.client.HTTPException, ValueError) as error:
                outcome = f"{LOST}: {error!r}"
            with self._lock:
                self.outcomes[outcome] += 1
                self._busy -= 1
                self._lock.notify_all()
            time.sleep(THINK_SECS)

    def _request(self, model: str, how: str) -> str:
        tokens = SHORT_TOKENS if how in ("stream", "whole") else LONG_TOKENS
        body = {"model": model, "prompt": f"{how} {time.monotonic()}", "max_tokens": tokens, "ignore_eos": True}
        if how == "whole":
            outcome, _ = self._server.ask("POST", "/v1/completions", body)
            self._count(model, outcome == "200")
            return outcome
        connection = self._server.open("POST", "/v1/completions", {**body, "stream": True})
        try:
            reply = connection.getresponse()
            if reply.status >= 400:
                return error_words(reply, json.loads(reply.read()))
            if how == "leave":
                self._count(model, bool(reply.read1(1)))
                return "left"
            events = reply.read().decode().split("\n\n")
            self._count(model, len(events) > 2)
            last = [event for event in events if event.startswith("data: ")][-1].removeprefix("data: ")
            return "200 stream" if last == "[DONE]" else f"200 stream, then {json.loads(last)['error']['code']}"
        finally:
            connection.close()

    def _count(self, model: str, with_content: bool) -> None:
        if with_content:
            with self._lock:
                self.served[model] += 1


class Soak:
    """The cycles of one server."""

    def __init__(self, server: Server, traffic: Traffic) -> None:
        self.admin: Counter[str] = Counter()
        self.cycles = 0
        self._server, self._traffic = server, traffic

    def run(self, cycles: int) -> None:
        """So many loads and unloads under traffic; then no traffic, and nothing loaded."""
        self._traffic.resume()
        for _ in range(cycles):
            self._cycle(MODELS[self.cycles % len(MODELS)])
            self.cycles += 1
        self._traffic.pause()

    def _cycle(self, model: str) -> None:
        path = f"/v1/admin/models/{model}"
        if self.cycles % 5 == 3:
            self._load_and_leave(model, path)
        elif self.cycles % 5 == 4:
            self._unload_while_loading(model, path)
        for _ in range(LOAD_ATTEMPTS):  # one that joins a load that is being given up ends with it
            outcome, _ = self._server.ask("POST", f"{path}/load")
            self._note(outcome)
            if outcome == "200":
                break
        else:
            raise SystemExit(f"{model} is not loaded: {dict(self.admin)}\n{self._server.log_tail()}")
        served = self._traffic.served[model] + SERVED_PER_CYCLE
        wait_until(lambda: self._traffic.served[model] >= served, f"answers of {model}")
        self._note(self._server.ask("DELETE", path)[0])

    def _load_and_leave(self, model: str, path: str) -> None:
        connection = self._server.open("POST", f"{path}/load")
        wait_until(lambda: self._server.cards()[model]["state"] != "not_loaded", f"the load of {model}")
        assert connection.sock is not None
        connection.sock.shutdown(socket.SHUT_RDWR)
        connection.close()
        self._note("left")
        wait_until(
            lambda: self._server.cards()[model]["state"] in ("not_loaded", "ready"), f"the end of {model}'s load"
        )

    def _unload_while_loading(self, model: str, path: str) -> None:
        connection = self._server.open("POST", f"{path}/load")
        try:
            wait_until(lambda: self._server.cards()[model]["state"] != "not_loaded", f"the load of {model}")
            self._note(self._server.ask("DELETE", path)[0])
            reply = connection.getresponse()
            answer = json.loads(reply.read())
            self._note(str(reply.status) if reply.status < 400 else error_words(reply, answer))
        finally:
            connection.close()

    def _note(self, outcome: str) -> None:
        self.admin[outcome] += 1

    def rest(self, before: Figures | None) -> Figures:
        """Figures at rest; those that count are waited for until they are back at ``before``, as long as may be."""
        wait_until(lambda: all(card["state"] == "not_loaded" for card in self._server.cards().values()), "rest")
        deadline = time.monotonic() + SETTLE_SECS
        previous = self._server.figures(self.cycles)
        while True:
            time.sleep(0.2)
            now = self._server.figures(self.cycles)
            if before is None:
                if counts(now) == counts(previous) and now.processes >= 2:  # the utility worker and the spare
                    return now
            elif counts(now) == counts(before):
                return now
            if time.monotonic() > deadline:
                return now
            previous = now


def counts(figures: Figures) -> tuple[int, int, int]:
    """What must be exactly what it was."""
    return figures.fds, figures.tasks, figures.processes


def faults(first: Figures, last: Figures, outcomes: Counter[str], admin: Counter[str]) -> list[str]:
    """What is not as it should be, but for the machine's memory."""
    found = [
        f"{name}: {before} before, {after} after"
        for name, before, after in zip(("fds", "tasks", "processes"), counts(first), counts(last), strict=True)
        if before != after
    ]
    if last.uss_bytes > first.uss_bytes * (1 + USS_SHARE):
        found.append(f"USS grew by {(last.uss_bytes - first.uss_bytes) / MIB:.1f} MiB")
    grown = last.objects - first.objects
    if grown > OBJECTS_SLACK + OBJECTS_PER_CYCLE * (last.cycles - first.cycles):
        found.append(f"{grown} Python objects more after {last.cycles - first.cycles} cycles")
    found += [
        f"a client got: {outcome} ({count} times)" for outcome, count in outcomes.items() if outcome not in DOCUMENTED
    ]
    found += [
        f"an administrator got: {outcome} ({count} times)"
        for outcome, count in admin.items()
        if outcome not in ADMIN_DOCUMENTED
    ]
    return found


def memory_is_back(start_bytes: int) -> tuple[bool, int]:
    """Whether the machine has its memory back, waited for, and what is available."""
    deadline = time.monotonic() + MEMORY_SETTLE_SECS
    while True:
        now = available_ram_bytes() or 0
        if now >= start_bytes * (1 - AVAILABLE_SHARE):  # more of it is somebody else's doing
            return True, now
        if time.monotonic() > deadline:
            return False, now
        time.sleep(0.5)


def serve(config: str) -> int:
    """Be the server, and answer SIGUSR1 by a file with the number of tasks and objects."""
    import trio

    from rustedvino.server import main as server_main

    target = Path(os.environ.pop(REPORT_VARIABLE))

    libc = ctypes.CDLL(None)

    def report(*_: object) -> None:
        gc.collect()
        libc.malloc_trim(0)  # what the allocator keeps for later is not in use
        figures = {"tasks": trio.lowlevel.current_statistics().tasks_living, "objects": len(gc.get_objects())}
        part = target.with_suffix(".part")
        part.write_text(json.dumps(figures))
        part.rename(target)

    signal.signal(signal.SIGUSR1, report)
    sys.argv = ["rustedvino", "--config", config, "--port", "0"]
    return int(server_main() or 0)


def main() -> int:
    """Run the command line. 1 when something did not come back or an answer was not one of those documented."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=300)
    # The ring of log lines, 5,000 of them, is full after some 100 cycles; half of it is within what may grow.
    parser.add_argument("--warm-up", type=int, default=60, help="cycles before the first figures")
    parser.add_argument("--stretch", type=int, default=50, help="cycles from one row of the table to the next")
    parser.add_argument(
        "--shared-machine", action="store_true", help="others use memory too: do not look at the machine's"
    )
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve is not None:
        return serve(arguments.serve)
    began = time.monotonic()
    with Server() as server, Traffic(server) as traffic:
        soak = Soak(server, traffic)
        soak.run(arguments.warm_up)
        rows = [soak.rest(None)]
        while soak.cycles < arguments.warm_up + arguments.cycles:
            soak.run(min(arguments.stretch, arguments.warm_up + arguments.cycles - soak.cycles))
            rows.append(soak.rest(rows[0]))
        found = faults(rows[0], rows[-1], traffic.outcomes, soak.admin)
        if not arguments.shared_machine:
            back, available = memory_is_back(rows[0].available_bytes)
            if not back:
                found.append(f"available memory: {rows[0].available_bytes} bytes before, {available} after")
    print(table(HEAD, [figures.row() for figures in rows]))
    print(f"requests: {dict(sorted(traffic.outcomes.items()))}")
    print(f"admin: {dict(sorted(soak.admin.items()))}")
    print(f"{time.monotonic() - began:.0f} s, load average {load_average():.1f}")
    for fault in found:
        print(f"FAULT: {fault}")
    if found:
        print(server.log_tail())
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
