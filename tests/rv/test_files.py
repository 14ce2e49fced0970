"""Folders of the user and private files."""

import os
import stat
from pathlib import Path

import pytest

from rustedvino.places import config_folder
from rustedvino.rv.files import make_private_folder, state_folder, write_private


@pytest.mark.usefixtures("home")
def test_folders_follow_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert config_folder() == tmp_path / "home/.config/rustedvino"
    assert state_folder() == tmp_path / "home/.local/state/rustedvino"
    monkeypatch.setenv("XDG_CONFIG_HOME", "/etc/xdg")
    monkeypatch.setenv("XDG_STATE_HOME", "relative/is/ignored")
    assert config_folder() == Path("/etc/xdg/rustedvino")
    assert state_folder() == tmp_path / "home/.local/state/rustedvino"


def test_a_private_file_replaces_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text("old")
    path.chmod(0o644)
    write_private(path, b"new")
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["keys.json"]


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    write_private(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"


def test_nothing_is_left_behind_when_it_fails(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError, match="taken"):
        write_private(tmp_path / "taken", b"new")
    assert os.listdir(tmp_path) == ["taken"]


def test_private_folders(tmp_path: Path) -> None:
    make_private_folder(tmp_path / "a" / "b")
    make_private_folder(tmp_path / "a" / "b")
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700
