"""The keys file beside the config."""

import json
import stat
from pathlib import Path

import pytest

from rustedvino.rv.errors import RvError
from rustedvino.rv.keys_file import add_key, admin_key


def test_the_admin_key_comes_first(tmp_path: Path) -> None:
    path = tmp_path / "config.keys.json"
    assert admin_key(path) is None
    path.write_text(json.dumps({"api_keys": ["user"], "admin_api_keys": ["boss"]}))
    assert admin_key(path) == "boss"
    path.write_text(json.dumps({"api_keys": ["user"]}))
    assert admin_key(path) == "user"


def test_new_keys_are_added_to_what_is_there(tmp_path: Path) -> None:
    path = tmp_path / "config.keys.json"
    first = add_key(path, admin=True)
    second = add_key(path, admin=False)
    path.write_text(json.dumps({**json.loads(path.read_text()), "_note": "kept"}))
    third = add_key(path, admin=False)
    assert json.loads(path.read_text()) == {"api_keys": [second, third], "admin_api_keys": [first], "_note": "kept"}
    assert len({first, second, third}) == 3
    assert all(len(key) > 40 and key.isascii() for key in (first, second, third))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "content", ["{secret", '["secret"]', '{"api_keys": "secret"}', '{"admin_api_keys": ["secret\\n"]}']
)
def test_a_broken_file_is_left_alone_and_its_keys_are_not_told(tmp_path: Path, content: str) -> None:
    path = tmp_path / "config.keys.json"
    path.write_text(content)
    for use in (admin_key, lambda path: add_key(path, admin=False)):
        with pytest.raises(RvError) as caught:
            use(path)
        assert "secret" not in str(caught.value.as_json())
    assert path.read_text() == content


def test_the_server_reads_what_was_made(tmp_path: Path) -> None:
    from rustedvino.config.keys import load_keys

    path = tmp_path / "config.keys.json"
    add_key(path, admin=True)
    add_key(path, admin=False)
    keys = load_keys(path)
    assert (len(keys.keys), keys.admin_count, list(keys.warnings)) == (2, 1, [])
