"""Misbehaviour of worker processes, for tests: this folder is put on PYTHONPATH, RUSTEDVINO_TEST_WORKER says what.

``illegal_instruction``: the import of the runtime dies, as on a processor without the needed instructions.
``slow_load=SECS``: a load takes so much longer.
``step_error=FILE``: once FILE is there, the next step of any worker raises the text in it, and FILE is gone.
``limited_load=FILE``: a load may map no more than the number of bytes in FILE, while that file is there.
``spin``: SIGUSR1 makes the worker spin in native code for ever, without looking at anything.
"""

import importlib.util
import itertools
import os
import signal
import sys
import time

RUNTIME = ("openvino", "openvino_genai")
ENGINE_HOST = "rustedvino.engines.host"


class DyingImport:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in RUNTIME:
            os.kill(os.getpid(), signal.SIGILL)


class WrappedEngine:
    """Lets a method of the engine do something else first."""

    def __init__(self, method, before):
        self.method = method
        self.before = before

    def find_spec(self, name, path=None, target=None):
        if name != ENGINE_HOST:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def execute_and_wrap(module):
            execute(module)
            original = getattr(module.ModelEngine, self.method)

            def wrapped(*given):
                self.before()
                return original(*given)

            setattr(module.ModelEngine, self.method, wrapped)

        spec.loader.exec_module = execute_and_wrap
        return spec


def raise_once(path):
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
        os.unlink(path)
    except FileNotFoundError:
        return
    raise RuntimeError(text)


def limit(path):
    if os.path.exists(path):
        from rustedvino.worker import platform

        with open(path) as file:
            platform.limit_resources(address_space_bytes=int(file.read()))


def spin(*_):
    sum(itertools.repeat(0))


if "rustedvino.worker" in sys.orig_argv:
    what, _, value = os.environ["RUSTEDVINO_TEST_WORKER"].partition("=")
    if what == "illegal_instruction":
        sys.meta_path.insert(0, DyingImport())
    elif what == "slow_load":
        sys.meta_path.insert(0, WrappedEngine("load", lambda: time.sleep(float(value))))
    elif what == "limited_load":
        sys.meta_path.insert(0, WrappedEngine("load", lambda: limit(value)))
    elif what == "step_error":
        sys.meta_path.insert(0, WrappedEngine("step", lambda: raise_once(value)))
    elif what == "spin":
        signal.signal(signal.SIGUSR1, spin)
    else:
        raise SystemExit(f"unknown misbehaviour {what!r}")
