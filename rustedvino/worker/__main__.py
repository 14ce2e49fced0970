"""Entry of a worker process: ``python -m rustedvino.worker``. Started by the server only."""

import argparse
import faulthandler
import os
import sys

from rustedvino.worker import platform
from rustedvino.worker.channel import FrameChannel
from rustedvino.worker.loop import Engine, Worker


def _engine(role: str) -> tuple[Engine, dict[str, str]]:
    """Import what a role needs. Imports are here so that a utility worker does not pay for the runtime."""
    if role == "utility":
        from rustedvino.engines.utility import UtilityEngine

        return UtilityEngine(), {}
    from rustedvino.engines.host import ModelEngine, runtime_versions

    return ModelEngine(), runtime_versions()


def main() -> int:
    """Run one worker. Returns its exit code."""
    parser = argparse.ArgumentParser(prog="rustedvino.worker")
    parser.add_argument("--role", choices=["model", "utility"], required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--fd", type=int)
    parser.add_argument("--share", action="store_true")
    arguments = parser.parse_args()
    platform.enter_worker(arguments.parent)
    faulthandler.enable()
    channel = FrameChannel(platform.inherit_socket(arguments.fd))
    engine, versions = _engine(arguments.role)
    return Worker(channel, arguments.role, engine, versions).run()


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Native threads may still run: the interpreter's orderly end can crash in their destructors.
    os._exit(code)
