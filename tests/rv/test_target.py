"""Which server is meant, and which key it gets."""

import argparse
import json
from pathlib import Path

import pytest

from rustedvino.rv import background
from rustedvino.rv.background import Record
from rustedvino.rv.errors import Unreachable, UsageError
from rustedvino.rv.target import address, local_url, resolve


def options(config: str | None = None, host: str | None = None, key: str | None = None) -> argparse.Namespace:
    return argparse.Namespace(config=config, host=host, key=key)


def write_config(folder: Path, **settings: object) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(settings))
    (folder / "config.keys.json").write_text(json.dumps({"admin_api_keys": ["boss-key"], "api_keys": []}))
    return path


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("gpu", "http://gpu:11437"),
        ("gpu:80", "http://gpu:80"),
        ("::1", "http://[::1]:11437"),
        ("[::1]", "http://[::1]:11437"),
        ("[::1]:80", "http://[::1]:80"),
        ("https://gpu", "https://gpu"),
    ],
)
def test_addresses(host: str, url: str) -> None:
    assert address(host) == url


def test_listening_everywhere_is_reached_on_loopback() -> None:
    assert local_url("0.0.0.0", 1) == "http://127.0.0.1:1"
    assert local_url("::", 1) == "http://[::1]:1"
    assert local_url("192.168.1.5", 1) == "http://192.168.1.5:1"


@pytest.mark.usefixtures("home")
def test_without_anything_it_is_the_default_address() -> None:
    target = resolve(options())
    assert (target.base_url, target.key, target.config) == ("http://127.0.0.1:11437", None, None)


def test_the_config_says_where_and_its_keys_file_which_key(home: Path) -> None:
    write_config(home, port=5000)
    target = resolve(options())
    assert target.base_url == "http://127.0.0.1:5000"
    assert target.key is not None
    assert (target.key.value, target.key.source) == ("boss-key", str(home / "config.keys.json"))


def test_a_given_key_wins(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_config(home)
    monkeypatch.setenv("RUSTEDVINO_KEY", "from-env")
    key = resolve(options()).key
    assert key == ("from-env", "RUSTEDVINO_KEY")
    assert resolve(options(key="given")).key == ("given", "--key")
    with pytest.raises(UsageError, match="printable"):
        resolve(options(key="a\nb"))


def test_local_keys_never_go_to_another_host(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_config(home)
    for target in (resolve(options(host="evil:1")), resolve(options(config="config.json", host="evil:1"))):
        assert (target.key, target.config, target.base_url) == (None, None, "http://evil:1")
        with pytest.raises(UsageError, match="use it there"):
            target.require_config("pull")
    monkeypatch.setenv("RUSTEDVINO_HOST", "evil:1")
    assert resolve(options()).key is None


def test_a_config_is_needed_for_files(home: Path) -> None:
    with pytest.raises(UsageError, match="needs a config"):
        resolve(options()).require_config("pull")
    write_config(home)
    assert resolve(options()).require_config("pull").path == home / "config.json"


def test_a_background_server_is_where_it_was_started(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_config(home, port=0)
    record = Record(4711, "then", "http://127.0.0.1:5001", str(path), "/the/log", (), 30.0)
    monkeypatch.setattr(background, "find", lambda config: record if config == path else None)
    target = resolve(options())
    assert target.base_url == "http://127.0.0.1:5001"
    assert target.record == record


def test_a_background_server_that_does_not_listen_yet_is_starting(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_config(home)
    record = Record(4711, "then", "http://127.0.0.1:1", str(path), "/the/log", (), 30.0)
    monkeypatch.setattr(background, "find", lambda _: record)
    with pytest.raises(Unreachable, match="is starting: process 4711") as caught:
        resolve(options()).client().get("/health")
    assert caught.value.hint == "its log is /the/log"
