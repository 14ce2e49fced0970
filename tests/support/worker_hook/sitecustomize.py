"""Misbehaviour of worker processes, for tests: this folder is put on PYTHONPATH, RUSTEDVINO_TEST_WORKER says what.

``illegal_instruction``: the import of the runtime dies, as on a processor without the needed instructions.
``slow_load=SECS``: a load takes so much longer.
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


class SlowLoad:
    def __init__(self, secs):
        self.secs = secs

    def find_spec(self, name, path=None, target=None):
        if name != ENGINE_HOST:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def execute_and_wrap(module):
            execute(module)
            load = module.ModelEngine.load

            def slow_load(engine, given):
                time.sleep(self.secs)
                return load(engine, given)

            module.ModelEngine.load = slow_load

        spec.loader.exec_module = execute_and_wrap
        return spec


def spin(*_):
    sum(itertools.repeat(0))


if "rustedvino.worker" in sys.orig_argv:
    what, _, value = os.environ["RUSTEDVINO_TEST_WORKER"].partition("=")
    if what == "illegal_instruction":
        sys.meta_path.insert(0, DyingImport())
    elif what == "slow_load":
        sys.meta_path.insert(0, SlowLoad(float(value)))
    elif what == "spin":
        signal.signal(signal.SIGUSR1, spin)
    else:
        raise SystemExit(f"unknown misbehaviour {what!r}")
