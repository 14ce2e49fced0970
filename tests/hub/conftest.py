"""Model folders to break."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.actors import model_folder


@pytest.fixture
def copy_of(tmp_path: Path) -> Callable[[str], Path]:
    """Makes a folder of links to the files of a model at hand; replacing one leaves the model as it is."""

    def copy(name: str) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        for file in model_folder(name).iterdir():
            if file.suffix in (".json", ".jinja"):
                shutil.copy(file, folder)
            else:
                (folder / file.name).symlink_to(file)
        return folder

    return copy
