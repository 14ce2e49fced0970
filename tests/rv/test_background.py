"""Records of background servers."""

import os
import stat
from pathlib import Path

import pytest

from rustedvino.rv import background, processes
from rustedvino.rv.background import Record
from rustedvino.rv.errors import RvError

pytestmark = pytest.mark.usefixtures("home")


def record(**changes: object) -> Record:
    own = processes.identity(os.getpid())
    assert own is not None
    return Record(os.getpid(), own, "http://127.0.0.1:1", "/c.json", "/log", ("--supervise",), 3.0)._replace(**changes)


def test_a_record_is_found_while_its_process_lives() -> None:
    config = Path("/c.json")
    assert background.find(config) is None
    background.write(config, record())
    assert background.find(config) == record()
    assert background.find(Path("/other/c.json")) is None
    assert background.find(None) is None
    background.forget(config)
    background.forget(config)
    assert background.read(config) is None


def test_another_process_with_the_number_is_not_taken_for_it() -> None:
    background.write(None, record(identity="another boot:1"))
    assert background.find(None) is None
    assert background.read(None) is not None


def test_the_same_config_by_another_way_is_the_same(tmp_path: Path) -> None:
    real = tmp_path / "c.json"
    real.write_text("{}")
    (tmp_path / "link.json").symlink_to(real)
    background.write(real, record())
    assert background.find(tmp_path / "x" / ".." / "c.json") is not None


def test_records_are_private_and_half_ones_are_none() -> None:
    background.write(None, record())
    path = background.log_path(None).with_suffix(".json")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_text('{"pid": 1')
    assert background.read(None) is None


def test_only_one_at_a_time() -> None:
    with background.locked(None):
        with pytest.raises(RvError, match="another rv"), background.locked(None):
            pass
        with background.locked(Path("/other.json")):
            pass
    with background.locked(None):
        pass
