"""Shell completion."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from rustedvino.rv.completion import bash, fish, zsh
from rustedvino.rv.verbs import VERBS
from tests.rv.conftest import Ended

SHELLS = {"bash": bash, "zsh": zsh, "fish": fish}


@pytest.mark.parametrize("shell", SHELLS)
def test_every_verb_and_option_is_in_it(rv: Callable[..., Ended], shell: str) -> None:
    script = rv("completion", shell).out
    assert script == SHELLS[shell]()
    assert all(verb.name in script for verb in VERBS)
    assert "-l kv-cache-gb" in script or "--kv-cache-gb" in script


@pytest.mark.parametrize("shell", SHELLS)
def test_the_shell_can_read_it(shell: str, tmp_path: Path) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    (tmp_path / "script").write_text(SHELLS[shell]())
    subprocess.run([program, "-n", tmp_path / "script"], check=True, capture_output=True)


def complete(tmp_path: Path, *words: str) -> list[str]:
    """What bash offers for the last word. `rv` is a program that knows two models, one with an id like a trap."""
    (tmp_path / "script").write_text(bash())
    rv = tmp_path / "rv"
    rv.write_text('#!/bin/sh\necho \'{"models": [{"model_id": "qwen"}, {"model_id": "$(touch owned) x"}]}\'\n')
    rv.chmod(0o755)
    ask = 'source ./script; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _rv; printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(
        ["bash", "-c", ask, "bash", "rv", *words],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.split("\n")[:-1]


def test_bash_completes(tmp_path: Path) -> None:
    assert complete(tmp_path, "rel") == ["reload-config", "reload-keys"]
    assert complete(tmp_path, "--no-color", "unl") == ["unload"]
    assert complete(tmp_path, "load", "--f") == ["--force"]
    assert complete(tmp_path, "completion", "z") == ["zsh"]
    assert complete(tmp_path, "load", "q") == ["qwen"]


def test_ids_of_a_server_are_not_run_by_the_shell(tmp_path: Path) -> None:
    assert complete(tmp_path, "load", "") == ["qwen", r"\$\(touch\ owned\)\ x"]
    assert not (tmp_path / "owned").exists()
