"""The JSON files of a model folder, and what is said when one cannot be used."""

import json
from pathlib import Path
from typing import Any, Final

MAX_JSON_BYTES: Final = 64 * 1024 * 1024
_LFS_START: Final = b"version https://git-lfs"


class ModelProblem(Exception):
    """The folder does not hold a model that can be loaded; the text says what is wrong and with which file."""


class WrongKind(ModelProblem):
    """The configured ``kind`` is not what the files are."""


def lfs_pointer(start: bytes) -> bool:
    """Whether a file that begins so stands for another one, which a clone without Git LFS left where it was."""
    return start.startswith(_LFS_START)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object. Raises ModelProblem naming the file."""
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise ModelProblem(f"{path.name} is larger than {MAX_JSON_BYTES} bytes")
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise ModelProblem(f"{path.name} is missing") from error
    except OSError as error:
        raise ModelProblem(f"{path.name} cannot be read: {error.strerror}") from error
    if lfs_pointer(content):
        raise ModelProblem(f"{path.name} is a Git LFS pointer: the file itself was not downloaded")
    try:
        value = json.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ModelProblem(f"{path.name} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelProblem(f"{path.name} is not a JSON object")
    return value
