"""The real worker program."""

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import trio

from rustedvino.hub.process import WorkerProcess
from rustedvino.worker.protocol import PROTOCOL_VERSION


def mapped_files(pid: int) -> str:
    return Path(f"/proc/{pid}/maps").read_text()


def test_a_worker_does_without_the_servers_event_loop() -> None:
    text = "import sys, rustedvino.worker.__main__, rustedvino.engines.host; print('trio' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", text], timeout=60) == b"False\n"


async def test_hello_of_a_model_worker_names_the_runtime() -> None:
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            worker = WorkerProcess(role="model", stall_secs=60)
            await nursery.start(worker.run)
            await worker.hello()
            assert worker.facts["protocol"] == PROTOCOL_VERSION
            assert worker.facts["pid"] == worker.pid
            assert worker.facts["role"] == "model"
            assert worker.facts["openvino"].startswith(version("openvino"))
            assert worker.facts["openvino_genai"].startswith(version("openvino-genai"))
            worker.send("shutdown")
            await worker.ended.wait()
            assert worker.end is not None
            assert (worker.end.kind, worker.end.exit_code) == ("exit", 0)


async def test_a_utility_worker_does_not_import_the_runtime() -> None:
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            worker = WorkerProcess(role="utility", stall_secs=60)
            await nursery.start(worker.run)
            await worker.hello()
            assert "openvino" not in mapped_files(worker.pid)
            nursery.cancel_scope.cancel()


def test_the_program_explains_itself_without_its_arguments() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rustedvino.worker"], capture_output=True, timeout=60, check=False, env=dict(os.environ)
    )
    assert done.returncode == 2
    assert b"--role" in done.stderr
