import json
import os
import signal
import stat
import sys
from functools import partial

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from rustedvino.config import demo_config, load_config
from rustedvino.config.problems import ConfigError
from rustedvino.config.store import (
    ConfigNotWritable,
    ConfigStore,
    EntryExists,
    add_model,
    remove_model,
    render,
    replace_file,
    set_model,
    set_preload,
)

MINIMAL = {"models_dir": "models", "device": "CPU", "total_vram_gb": 0}


@pytest.fixture
def write(tmp_path):
    (tmp_path / "models").mkdir()

    def write(content=None, **more):
        data = (
            content if isinstance(content, bytes) else json.dumps(MINIMAL | (content or {}) | more, indent=2).encode()
        )
        path = tmp_path / "config.json"
        path.write_bytes(data)
        return path

    return write


def open_store(path):
    return ConfigStore(load_config(path))


def content(path):
    return json.loads(path.read_bytes().decode("utf-8-sig"))


async def test_a_change_keeps_what_is_not_its_own(write):
    before = {
        "//": "top",
        "models": {"// first": "why", "a": {"_note": [1, 2.50], "priority": 3}, "b": {"pinned": True}},
        "_end": {"nested": {"deep": None}},
        "port": 8000,
    }
    path = write(before)
    store = open_store(path)
    config = await store.change(set_model("a", {"priority": None, "vram_gb": 1.5}, {}))
    after = MINIMAL | before
    after["models"]["a"] = {"_note": [1, 2.5], "vram_gb": 1.5}
    assert content(path) == after
    assert list(content(path)) == list(after)
    assert list(content(path)["models"]) == ["// first", "a", "b"]
    assert (config.settings.models["a"].vram_gb, config.settings.models["a"].priority) == (1.5, 0)
    assert store.config is config
    assert path.read_text() == json.dumps(after, indent=2)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{\n    "a": 1\n}\n', '{\n    "a": 2\n}\n'),
        ('{\n\t"a": 1\n}', '{\n\t"a": 2\n}'),
        ('{\r\n "a": 1\r\n}\r\n', '{\r\n "a": 2\r\n}\r\n'),
        ('{"a": 1}', '{\n  "a": 2\n}\n'),
        ('\ufeff{\n  "a": 1\n}\n', '\ufeff{\n  "a": 2\n}\n'),
    ],
    ids=["four", "tab", "crlf", "compact", "bom"],
)
def test_the_manner_of_the_file_is_kept(text, expected):
    assert render({"a": 2}, like=text.encode()).decode() == expected


def test_texts_are_written_as_they_are_unless_they_cannot():
    assert render({"a": "é日"}, like=b"{}").decode() == '{\n  "a": "é日"\n}\n'
    assert json.loads(render({"a": "\ud800é"}, like=b"{}")) == {"a": "\ud800é"}


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
json_objects = st.dictionaries(
    st.text(),
    st.recursive(
        scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3), max_leaves=6
    ),
    max_size=4,
)


@given(json_objects)
@settings(max_examples=60, deadline=None)
def test_what_is_rendered_reads_back(raw):
    data = render(raw, like=b"{}")
    assert json.loads(data) == raw
    assert render(json.loads(data), like=data) == data


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "9" * 5000, "1e999"])
async def test_a_comment_that_json_cannot_hold_stops_the_change(write, number):
    path = write(json.dumps(MINIMAL)[:-1].encode() + f', "_x": {number}}}'.encode())
    before = path.read_bytes()
    with pytest.raises(ConfigNotWritable, match="cannot be saved"):
        await open_store(path).change(set_preload([]))
    assert path.read_bytes() == before


async def test_edits_of_the_file_by_others_are_kept(write):
    path = write(models={"a": {"priority": 1}, "b": {"priority": 2}})
    store = open_store(path)
    other = content(path)
    other["models"]["b"]["priority"] = 7
    other["models"]["c"] = {}
    other["port"] = 9000
    path.write_text(json.dumps(other))
    await store.change(set_model("a", {"pinned": True}, {}))
    other["models"]["a"]["pinned"] = True
    assert content(path) == other


async def test_concurrent_changes_all_arrive(write):
    path = write(models={name: {} for name in "abcd"})
    store = open_store(path)
    fields = {"priority": 3, "vram_gb": 1.5, "pinned": True, "load": "on_demand"}
    async with trio.open_nursery() as nursery:
        for name in "abcd":
            for field, value in fields.items():
                nursery.start_soon(store.change, set_model(name, {field: value}, {}))
    assert content(path)["models"] == dict.fromkeys("abcd", fields)
    assert sorted(item.name for item in path.parent.iterdir()) == ["config.json", "models"]


async def test_an_entry_the_file_has_lost_is_written_whole(write):
    path = write(models={})
    await open_store(path).change(set_model("a", {"pinned": True}, {"priority": 3}))
    assert content(path)["models"] == {"a": {"priority": 3, "pinned": True}}


async def test_adding_and_removing(write):
    path = write(models={"a": {}}, preload=["a"])
    store = open_store(path)
    await store.change(add_model("b", {"priority": 1}))
    assert content(path)["models"] == {"a": {}, "b": {"priority": 1}}
    with pytest.raises(EntryExists):
        await store.change(add_model("b", {}))
    await store.change(set_preload(["b", "a"]))
    await store.change(remove_model("a"))
    assert content(path) == MINIMAL | {"models": {"b": {"priority": 1}}, "preload": ["b"]}
    await store.change(remove_model("never there"))


async def test_a_change_that_changes_nothing_is_not_written(write):
    path = write(models={"a": {"priority": 1}})
    path.chmod(0o400)
    before = path.stat()
    await open_store(path).change(set_model("a", {"priority": 1, "pinned": None}, {}))
    assert path.stat().st_ino == before.st_ino


async def test_a_change_to_an_invalid_content_is_refused(write):
    path = write(models={"a": {}})
    before = path.read_bytes()
    with pytest.raises(ConfigError) as caught:
        await open_store(path).change(set_preload(["unknown"]))
    assert [problem.path for problem in caught.value.problems] == ["preload[0]"]
    assert path.read_bytes() == before


async def test_a_file_that_is_broken_meanwhile_is_left_alone(write):
    path = write(models={"a": {}})
    store = open_store(path)
    path.write_text('{"models_dir": ')
    with pytest.raises(ConfigError, match="not JSON"):
        await store.change(set_preload(["a"]))
    assert path.read_text() == '{"models_dir": '
    with pytest.raises(ConfigError, match="not JSON"):
        await store.read()


async def test_without_a_file_nothing_is_saved():
    store = ConfigStore(demo_config())
    with pytest.raises(ConfigNotWritable, match="without a config file") as caught:
        await store.change(set_preload([]))
    assert caught.value.path is None
    with pytest.raises(ConfigNotWritable):
        await store.read()


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o660])
def test_the_mode_stays(write, mode):
    path = write()
    path.chmod(mode)
    replace_file(path, b"new")
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_a_link_stays_a_link(write, tmp_path):
    real = write()
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "elsewhere" / "link.json"
    link.symlink_to("../config.json")
    replace_file(link, b"new")
    assert link.is_symlink()
    assert os.readlink(link) == "../config.json"
    assert real.read_bytes() == b"new"
    assert [item.name for item in link.parent.iterdir()] == ["link.json"]


def fails(error, *_, **__):
    raise error


@pytest.mark.parametrize(
    ("call", "error"),
    [
        ("rustedvino.config.store.os.replace", OSError(16, "Device or resource busy")),
        ("rustedvino.config.store.tempfile.mkstemp", OSError(30, "Read-only file system")),
        ("rustedvino.config.store.os.fsync", OSError(28, "No space left on device")),
    ],
)
def test_what_the_system_refuses_is_told_and_leaves_nothing(write, monkeypatch, call, error):
    path = write()
    before = path.read_bytes()
    monkeypatch.setattr(call, partial(fails, error))
    with pytest.raises(ConfigNotWritable) as caught:
        replace_file(path, b"new")
    assert str(caught.value) == f"{path} cannot be saved: {error.strerror}"
    assert caught.value.path == path
    assert path.read_bytes() == before
    assert sorted(item.name for item in path.parent.iterdir()) == ["config.json", "models"]


def test_a_read_only_file_is_refused_even_to_root(write):
    path = write()
    path.chmod(0o444)
    with pytest.raises(ConfigNotWritable, match="read-only"):
        replace_file(path, b"new")


@pytest.mark.parametrize("gone", ["file", "folder"])
def test_a_file_that_is_gone_is_told(write, gone):
    path = write()
    path.unlink()
    with pytest.raises(ConfigNotWritable, match="No such file"):
        replace_file(path if gone == "file" else path.parent / "none" / "config.json", b"new")


CRASH = """
import os, signal, sys
from pathlib import Path
import rustedvino.config.store as store

def die(*_, **__):
    os.kill(os.getpid(), signal.SIGKILL)

setattr(os, sys.argv[2], die)
store.replace_file(Path(sys.argv[1]), b"x" * 100_000)
"""


@pytest.mark.parametrize("call", ["fsync", "chmod", "replace"])
async def test_a_death_in_the_middle_leaves_the_old_file(write, call):
    path = write(models={"a": {}})
    before = path.read_bytes()
    command = [sys.executable, "-c", CRASH, str(path), call]
    with trio.fail_after(60):
        ended = await trio.run_process(command, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert path.read_bytes() == before
    await open_store(path).change(set_model("a", {"pinned": True}, {}))  # what was left over is in nobody's way
    assert content(path)["models"] == {"a": {"pinned": True}}


async def test_cancellation_comes_before_the_file_is_touched(write):
    path = write(models={"a": {}})
    store = open_store(path)
    before = path.read_bytes()
    with trio.CancelScope() as scope:
        scope.cancel()
        await store.change(set_model("a", {"pinned": True}, {}))
    assert scope.cancelled_caught
    assert path.read_bytes() == before


async def test_a_change_under_way_is_not_cancelled(write):
    path = write(models={"a": {}})
    store = open_store(path)
    begun = trio.Event()
    token = trio.lowlevel.current_trio_token()
    reached: list[str] = []

    def edit(raw):
        trio.from_thread.run_sync(begun.set, trio_token=token)
        trio.from_thread.run_sync(scope.cancel, trio_token=token)
        raw["port"] = 1234

    with trio.CancelScope() as scope:
        await store.change(edit)
        reached.append("right after")
        await trio.lowlevel.checkpoint()
        reached.append("later")
    assert begun.is_set()
    assert reached == ["right after"]
    assert content(path)["port"] == 1234
