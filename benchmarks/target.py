"""The two things that are compared: a server process, and what its worker is given for a model."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NoReturn, Self

from benchmarks.loadgen import random_ids
from benchmarks.measure import children, command_line, end
from rustedvino.config import load_config
from rustedvino.hub.model_files import inspect_folder
from rustedvino.hub.pool import batched_tokens, pool_blocks

START_SECS = 120.0
STOP_SECS = 45.0
MAX_STREAMS = 32
KV_CACHE_GB = 1.0
DEVICE = "CPU"
LISTENING = re.compile(r"listening on http://[^:]+:(\d+)")


def settings_of(folder: Path, *, threads: int | None = None, **more: Any) -> dict[str, Any]:
    """The server's settings for a benchmark of one model: defaults, but room for 32 streams and no spare."""
    return {
        "models_dir": str(folder.parent),
        "device": DEVICE,
        "total_vram_gb": 0,
        "default_placement": "device",
        "preload": [folder.name],
        "models": {folder.name: {"kv_cache_gb": KV_CACHE_GB}},
        "max_num_seqs": MAX_STREAMS,
        "num_threads": threads,
        "spare_workers": 0,
        "client_stall_secs": 60,
        **more,
    }


def write_settings(path: Path, settings: dict[str, Any]) -> Path:
    """Write a config file and return its path."""
    path.write_text(json.dumps(settings, indent=2))
    return path


def bare_spec(config_path: Path, folder: Path) -> dict[str, Any]:
    """What the bare loop gives the runtime: the numbers the server derives from the same config file."""
    settings = load_config(config_path).settings
    model = settings.models[folder.name]
    properties: dict[str, Any] = {}
    if settings.kv_cache_precision:
        properties["KV_CACHE_PRECISION"] = settings.kv_cache_precision
    if model.num_threads or settings.num_threads:
        properties["INFERENCE_NUM_THREADS"] = model.num_threads or settings.num_threads
    return {
        "path": str(folder),
        "device": DEVICE,
        "properties": properties,
        "num_kv_blocks": pool_blocks(inspect_folder(folder), settings, model, DEVICE),
        "max_num_batched_tokens": batched_tokens(settings, "CPU", settings.max_running_seqs),
        "max_num_seqs": settings.max_running_seqs,
        "enable_prefix_caching": settings.enable_prefix_caching,
    }


def vocabulary_of(folder: Path) -> int:
    """Entries of the model's vocabulary. Raises SystemExit for a folder that does not say."""
    size = inspect_folder(folder).vocab_size
    if size is None:
        raise SystemExit(f"{folder.name}: config.json does not say the size of the vocabulary")
    return size


def prompts_of(generator: random.Random, streams: int, prompt_tokens: int, vocabulary: int) -> list[list[int]]:
    """Fresh prompts of ordinary tokens; those of control tokens are at the end of a vocabulary."""
    return [random_ids(generator, prompt_tokens, vocabulary) for _ in range(streams)]


class ServerProcess:
    """The server as users start it, on a free port; a context manager that ends it by SIGTERM.

    Attributes: ``pid``, ``port``, ``worker_pid``. Start-up waits until the model is ready. While it is open, SIGTERM
    raises SystemExit in the main thread, so that a benchmark that is stopped leaves no server behind.
    """

    def __init__(self, folder: Path, *, threads: int | None = None, **more: Any) -> None:
        self.model = folder.name
        self.scratch = Path(tempfile.mkdtemp(prefix="benchmark-"))
        self.config_path = write_settings(self.scratch / "config.json", settings_of(folder, threads=threads, **more))
        self.port = 0
        self._log: list[str] = []
        self._listening = threading.Event()
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int:
        """Process id of the server."""
        assert self._process is not None
        return self._process.pid

    @property
    def worker_pid(self) -> int:
        """Process id of the one worker that has a model."""
        found = [
            child
            for child in children(self.pid)
            if (words := command_line(child)) and "rustedvino.worker" in words and "model" in words
        ]
        if len(found) != 1:
            raise SystemExit(f"one model worker was expected, {len(found)} are there")
        return found[0]

    def __enter__(self) -> Self:
        signal.signal(signal.SIGTERM, _leave)
        command = [sys.executable, "-m", "rustedvino.server", "--config", str(self.config_path), "--port", "0"]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=dict(os.environ))
        threading.Thread(target=self._read_log, daemon=True).start()
        if not self._listening.wait(START_SECS) or not self.port:
            self.__exit__(None, None, None)
            raise SystemExit("the server did not start:\n" + "".join(self._log[-20:]))
        self._wait_ready()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        end(self._process, STOP_SECS)
        shutil.rmtree(self.scratch, ignore_errors=True)

    def get(self, path: str) -> bytes:
        """The body of a GET. Raises OSError, also for a status that is an error."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
            body: bytes = answer.read()
            return body

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + START_SECS
        while time.monotonic() < deadline:
            try:
                self.get("/readyz")
            except OSError:
                time.sleep(0.1)
            else:
                return
        self.__exit__(None, None, None)
        raise SystemExit("the model did not become ready:\n" + "".join(self._log[-20:]))

    def _read_log(self) -> None:
        assert self._process is not None
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._log.append(line)
            del self._log[:-200]
            found = LISTENING.search(line)
            if found is not None:
                self.port = int(found[1])
                self._listening.set()
        self._listening.set()


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
