"""Finding the config and reading what rv needs of it."""

import json
from pathlib import Path
from typing import Any

import pytest

from rustedvino.config import load_config
from rustedvino.rv.config_file import find_config, read_config
from rustedvino.rv.errors import RvError, UsageError


def write(path: Path, **settings: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"models_dir": "m", "device": "CPU", "total_vram_gb": 0, **settings}))
    return path


def test_the_order_of_places(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_config(None) is None
    own = write(tmp_path / "home/.config/rustedvino/config.json")
    assert find_config(None) == own
    here = write(home / "config.json")
    assert find_config(None) == here
    named = write(tmp_path / "named.json")
    monkeypatch.setenv("RUSTEDVINO_CONFIG", str(named))
    assert find_config(None) == named
    assert find_config("config.json") == here


def test_a_config_that_was_named_must_exist(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(home / "config.json")
    with pytest.raises(UsageError, match=r"--config: there is no file .*nope\.json"):
        find_config("nope.json")
    monkeypatch.setenv("RUSTEDVINO_CONFIG", "nope.json")
    with pytest.raises(UsageError, match="RUSTEDVINO_CONFIG"):
        find_config(None)


def test_it_reads_what_the_server_reads(tmp_path: Path) -> None:
    """Defaults and relative paths are the same on both sides."""
    (tmp_path / "m").mkdir()
    (tmp_path / "k").mkdir()
    (tmp_path / "k/x.json").write_text("{}")
    for settings in ({}, {"port": 5, "bind_addr": "::1", "shutdown_drain_secs": 3, "keys_file": "k/x.json", "_c": 1}):
        path = write(tmp_path / "my.config.json", **settings, models={"a": {}})
        ours, theirs = read_config(path), load_config(path)
        assert ours.port == theirs.settings.port
        assert ours.bind_addr == theirs.settings.bind_addr
        assert ours.models_dir == theirs.settings.models_dir
        assert ours.keys_path == theirs.keys_path
        assert ours.shutdown_drain_secs == theirs.settings.shutdown_drain_secs
        assert ours.model_ids == tuple(theirs.settings.models)


def test_a_byte_order_mark_is_fine(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b'\xef\xbb\xbf{"port": 80}')
    assert read_config(path).port == 80
    assert read_config(path).models_dir is None


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "not JSON"),
        ("[]", "JSON object"),
        ('{"port": "80"}', 'port is "80"'),
        ('{"port": true}', "port is true"),
        ('{"port": 70000}', "between 0 and 65535"),
        ('{"bind_addr": 1}', "bind_addr is 1"),
        ("[" * 100000, "not JSON"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path: Path, content: str, problem: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(content)
    with pytest.raises(RvError, match=problem) as caught:
        read_config(path)
    assert "--check-config" in (caught.value.hint or "")
