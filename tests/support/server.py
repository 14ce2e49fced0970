"""A real server process for tests: its config, its log, its end."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Final, Self

import httpx
import pytest

REPOSITORY: Final = Path(__file__).resolve().parents[2]
TINY_MODELS: Final = REPOSITORY / "tests" / "models"
PACKAGED_MODELS: Final = REPOSITORY / "rustedvino" / "models"

F32: Final = {"plugin_config": {"INFERENCE_PRECISION_HINT": "f32", "KV_CACHE_PRECISION": "f32"}}
"""Settings of a model whose answers do not depend on its neighbours in a batch: in bf16 they do, a little, and with
keys and values of 8 bits."""

LISTENING: Final = re.compile(r"listening on http://(?P<host>.+):(?P<port>\d+)")
START_SECS: Final = 60.0
READY_SECS: Final = 120.0
STOP_SECS: Final = 30.0
ANSWER_SECS: Final = 60.0
_MARKER: Final = "RUSTEDVINO_TEST_SERVER"
"""In the environment of a server and of all its workers, so that none of them is missed or mistaken."""


def model_source(name: str) -> Path:
    """The folder of a model that tests have at hand."""
    for place in (TINY_MODELS, PACKAGED_MODELS):
        if (place / name).is_dir():
            return place / name
    raise AssertionError(f"no model {name!r} at hand")


def write_config(
    folder: Path,
    models: Iterable[str] | Mapping[str, Mapping[str, Any]],
    *,
    sources: Mapping[str, Path] | None = None,
    **settings: Any,
) -> Path:
    """Write ``folder/config.json`` for models on the CPU and return its path.

    ``models``: ids, or ids with their per-model settings. An id is served from the folder of that name in tests/models
    or the package, else from ``sources[id]``; ids whose source is neither must already be in ``folder/models``.
    """
    entries = models if isinstance(models, Mapping) else {model_id: {} for model_id in models}
    models_dir = folder / "models"
    models_dir.mkdir(parents=True, exist_ok=True)
    for model_id in entries:
        place = models_dir / model_id
        if not place.exists() and not place.is_symlink():
            place.symlink_to((sources or {}).get(model_id) or model_source(model_id), target_is_directory=True)
    config = {
        "models_dir": "models",
        "device": "CPU",
        "total_vram_gb": 0,
        "models": {model_id: dict(entry) for model_id, entry in entries.items()},
        **settings,
    }
    path = folder / "config.json"
    path.write_text(json.dumps(config, indent=2))
    return path


def describe_process(pid: int) -> str:
    """Command line, state and parent of a process, for a failure's message."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        status = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return "gone by now"
    return " ".join([command, *(line for line in status if line.startswith(("State", "PPid")))])


def parent_of(pid: int) -> int | None:
    """Process id of the parent; None for a process that has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


class ServerProcess:
    """One server. ``with ServerProcess(...) as server`` starts it, waits for /health, and at the end stops it by
    SIGTERM and asserts exit code 0 and that no process of it is left.

    ``arguments`` come after ``python -m rustedvino.server``; ``command`` replaces that head.
    """

    def __init__(
        self,
        *arguments: str | Path,
        command: Iterable[str | Path] = (sys.executable, "-m", "rustedvino.server"),
        environment: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self.arguments = [str(part) for part in (*command, *arguments)]
        self.marker = uuid.uuid4().hex
        self._environment = {**os.environ, **(environment or {}), _MARKER: self.marker}
        self._cwd = cwd
        self._lines: list[str] = []
        self._news = threading.Condition()
        self._readers: list[threading.Thread] = []
        self._open_pipes = 0
        self._process: subprocess.Popen[str] | None = None
        self._client: httpx.Client | None = None
        self.port = 0
        self.started_at = 0.0
        """time.monotonic() of the start of the process."""

    @classmethod
    def serving(
        cls,
        folder: Path,
        models: Iterable[str] | Mapping[str, Mapping[str, Any]],
        *,
        sources: Mapping[str, Path] | None = None,
        environment: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> Self:
        """A server of these models on a free port, see ``write_config``."""
        config = write_config(folder, models, sources=sources, **settings)
        return cls("--config", config, "--port", "0", environment=environment, cwd=folder)

    # Life.

    def start(self) -> Self:
        """Start the process and wait until it listens."""
        self.started_at = time.monotonic()
        self._process = process = subprocess.Popen(
            self.arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            env=self._environment,
            cwd=self._cwd,
        )
        assert process.stdout is not None
        assert process.stderr is not None
        self._open_pipes = 2
        for pipe in (process.stdout, process.stderr):
            reader = threading.Thread(target=self._read, args=(pipe,), daemon=True)
            reader.start()
            self._readers.append(reader)
        try:
            found = self.wait_log(LISTENING, START_SECS)
            self.port = int(found["port"])
        except BaseException:
            self.kill()
            raise
        return self

    def __enter__(self) -> Self:
        self.start()
        try:
            self.wait_health()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:  # keep the test's own failure
            self.kill()
            return
        try:
            self.stop()
        finally:
            self.kill()

    def stop(self, bound_secs: float = STOP_SECS) -> None:
        """SIGTERM, if it still runs; then the exit code must be 0 and every worker gone."""
        workers = self.workers()
        if self.running:
            self.signal(signal.SIGTERM)
        assert self.wait_exit(bound_secs) == 0, self.log
        assert not set(workers) & set(self.processes()), f"workers outlived the server:\n{self.log}"
        self.assert_none_left()

    def assert_none_left(self, bound_secs: float = 5.0) -> None:
        """No process of an ended server is left. A child that a worker had for a moment may take one to notice."""
        deadline = time.monotonic() + bound_secs
        while left := self.processes():
            assert time.monotonic() < deadline, f"{[describe_process(pid) for pid in left]} left over:\n{self.log}"
            time.sleep(0.02)

    def kill(self) -> None:
        """End whatever is left, without any check. May be called again."""
        if self._client is not None:
            self._client.close()
            self._client = None
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(10)
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        for reader in self._readers:
            reader.join(10)
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()

    def signal(self, number: int) -> None:
        """Send a signal to the server process alone."""
        assert self._process is not None
        self._process.send_signal(number)

    def wait_exit(self, bound_secs: float = STOP_SECS) -> int:
        """The exit code, once the process has ended and its log is complete."""
        assert self._process is not None
        try:
            code = self._process.wait(bound_secs)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the server did not end within {bound_secs:g} s:\n{self.log}") from None
        for reader in self._readers:
            reader.join(10)
        return code

    @property
    def running(self) -> bool:
        """Whether the server process has not ended."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Process id of the server."""
        assert self._process is not None
        return self._process.pid

    def processes(self) -> list[int]:
        """Process ids of the server and all its workers that exist now, orphans and zombies of others left out."""
        wanted = f"{_MARKER}={self.marker}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue
        return found

    def workers(self) -> list[int]:
        """Process ids of its workers: its own children, not what these may start."""
        return [pid for pid in self.processes() if parent_of(pid) == self.pid]

    # Its log.

    def _read(self, pipe: IO[str]) -> None:
        for line in pipe:
            with self._news:
                self._lines.append(line)
                self._news.notify_all()
        with self._news:
            self._open_pipes -= 1
            self._news.notify_all()

    @property
    def log(self) -> str:
        """What it has printed so far, both streams."""
        with self._news:
            return "".join(self._lines)

    def wait_log(
        self, pattern: str | re.Pattern[str], bound_secs: float = START_SECS, *, start: int = 0
    ) -> re.Match[str]:
        """The first match of ``pattern`` in a line of the log from line ``start`` on."""
        compiled = re.compile(pattern)
        deadline = time.monotonic() + bound_secs
        seen = start
        with self._news:
            while True:
                for line in self._lines[seen:]:
                    found = compiled.search(line)
                    if found is not None:
                        return found
                seen = len(self._lines)
                left = deadline - time.monotonic()
                if left <= 0 or self._open_pipes == 0:
                    text = "".join(self._lines)
                    raise AssertionError(f"{compiled.pattern!r} did not appear in the log:\n{text}")
                self._news.wait(left)

    # Its answers.

    @property
    def url(self) -> str:
        """Base URL without a slash at the end."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def client(self) -> httpx.Client:
        """A client for the base URL, kept open."""
        if self._client is None:
            self._client = httpx.Client(base_url=self.url, timeout=ANSWER_SECS, trust_env=False)
        return self._client

    def wait_health(self, bound_secs: float = START_SECS) -> Self:
        """Wait until /health answers 200."""
        self.wait_for(lambda: self.client.get("/health").status_code == 200, "/health", bound_secs)
        return self

    def wait_ready(self, bound_secs: float = READY_SECS) -> Self:
        """Wait until /readyz answers 200."""
        last: dict[str, Any] = {}

        def ready() -> bool:
            reply = self.client.get("/readyz")
            last["reply"] = reply.text
            return reply.status_code == 200

        self.wait_for(ready, lambda: f"/readyz: {last.get('reply')}", bound_secs)
        return self

    def wait_states(self, states: Mapping[str, str], bound_secs: float = READY_SECS) -> Self:
        """Wait until /v1/models shows these states by model id."""
        last: dict[str, Any] = {}

        def reached() -> bool:
            cards = self.client.get("/v1/models").json()["data"]
            last["states"] = {card["id"]: card["state"] for card in cards}
            return all(last["states"].get(model) == state for model, state in states.items())

        self.wait_for(reached, lambda: f"states {states}, got {last.get('states')}", bound_secs)
        return self

    def wait_for(self, condition: Callable[[], bool], what: str | Callable[[], str], bound_secs: float) -> None:
        """Poll ``condition`` until it holds; connection errors count as no."""
        deadline = time.monotonic() + bound_secs
        while True:
            try:
                if condition():
                    return
            except httpx.TransportError:
                pass
            assert self.running, f"the server ended:\n{self.log}"
            if time.monotonic() > deadline:
                text = what if isinstance(what, str) else what()
                raise AssertionError(f"not within {bound_secs:g} s: {text}\n{self.log}")
            time.sleep(0.02)

    def post(self, path: str, body: object, **options: Any) -> httpx.Response:
        """POST JSON."""
        return self.client.post(path, json=body, **options)


def sse_data(text: str) -> list[str]:
    """The payloads of a stream of events, comments left out; every event must be one ``data:`` line."""
    payloads = []
    for event in text.split("\n\n"):
        lines = [line for line in event.split("\n") if line and not line.startswith(":")]
        if not lines:
            continue
        assert len(lines) == 1, event
        assert lines[0].startswith("data: "), event
        payloads.append(lines[0].removeprefix("data: "))
    return payloads


def sse_chunks(text: str) -> list[dict[str, Any]]:
    """The JSON chunks of a complete stream; it must end with [DONE]."""
    payloads = sse_data(text)
    assert payloads, "an empty stream"
    assert payloads[-1] == "[DONE]", payloads[-1]
    assert "[DONE]" not in payloads[:-1]
    return [json.loads(payload) for payload in payloads[:-1]]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server of tiny-qwen3, tiny-qwen3-chat, tiny-llama3 and rv-demo, shared by tests that do not disturb others."""
    folder = tmp_path_factory.mktemp("server")
    models = dict.fromkeys(["rv-demo", "tiny-qwen3", "tiny-qwen3-chat", "tiny-llama3"], F32)
    with ServerProcess.serving(folder, models, num_threads=1, spare_workers=0, sse_keepalive_secs=0) as process:
        yield process.wait_ready()
