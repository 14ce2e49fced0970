"""Fixtures that tests of several areas share."""

import ctypes
import sys
from typing import Final

import pytest

pytest_plugins = ["tests.support.server"]

_SS_DISABLE: Final = 2


class _SignalStack(ctypes.Structure):
    _fields_ = (("ss_sp", ctypes.c_void_p), ("ss_flags", ctypes.c_int), ("ss_size", ctypes.c_size_t))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let signals use the normal stack.

    On a CPU with AMX the runtime gives the thread that opens a pipeline a signal stack of its own, and leaves a
    freed one behind where pipelines do not end in reverse order (seen with 2026.4.1): the next signal with a Python
    handler would end this process. Workers are not concerned: they ignore the signals that others handle.
    """
    if sys.platform == "linux":
        off = _SignalStack(None, _SS_DISABLE, 0)
        if ctypes.CDLL(None, use_errno=True).sigaltstack(ctypes.byref(off), None) != 0:
            raise OSError(ctypes.get_errno(), "sigaltstack")
