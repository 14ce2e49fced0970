import os

import pytest

from rustedvino.config.kinds import (
    INT_MAX,
    TEMPLATE_MAX_BYTES,
    Boolean,
    Choice,
    Integer,
    ListOf,
    MapOf,
    Number,
    PathTo,
    PluginScalar,
    Text,
    bind_addr_fault,
    device_fault,
    model_id_fault,
    origin_fault,
    plain_text_fault,
)
from rustedvino.config.problems import INVALID, JsonObject, Literal, Reading
from rustedvino.config.types import Placement


@pytest.fixture
def reading(tmp_path):
    folder, models_dir = tmp_path / "conf", tmp_path / "models"
    folder.mkdir()
    models_dir.mkdir()
    return Reading(folder, models_dir=models_dir)


@pytest.mark.parametrize(
    ("kind", "value", "result"),
    [
        (Boolean(), False, False),
        (Integer(0, 5), 0, 0),
        (Integer(0, 5), 5, 5),
        (Number(0, 1), 1, 1.0),
        (Number(0, 1), 0, 0.0),
        (Choice(Placement), "auto", "auto"),
        (Text(), "ü", "ü"),
        (ListOf(Integer(0), "numbers"), [1, 2], (1, 2)),
        (MapOf(Integer(0), "numbers", plain_text_fault), {"a": 1}, {"a": 1}),
        (PluginScalar(), 1.5, 1.5),
        (PluginScalar(), True, True),
        (PluginScalar(), "YES", "YES"),
    ],
)
def test_good_values_are_read(kind, value, result, reading):
    read = kind.read(value, "x", reading)
    assert read == result
    assert type(read) is type(result)
    assert not reading.problems


@pytest.mark.parametrize(
    ("kind", "value", "where"),
    [
        (Boolean(), 1, "x"),
        (Boolean(), "true", "x"),
        (Integer(0), True, "x"),
        (Integer(0), 1.0, "x"),
        (Integer(0), "5", "x"),
        (Integer(0), -1, "x"),
        (Integer(0), INT_MAX + 1, "x"),
        (Number(0, 9), "5", "x"),
        (Number(0, 9), False, "x"),
        (Number(0, 9), float("inf"), "x"),
        (Number(0, 9), float("nan"), "x"),
        (Number(0, 9), 10**400, "x"),
        (Number(0, 9), Literal("NaN"), "x"),
        (Number(0, 9, above=True), 0, "x"),
        (Choice(Placement), "Auto", "x"),
        (Choice(Placement), ["auto"], "x"),
        (Text(), "", "x"),
        (Text(), "a\0b", "x"),
        (Text(), "\ud800", "x"),
        (Text(), "x" * 5000, "x"),
        (ListOf(Integer(0), "numbers"), (1,), "x"),
        (ListOf(Integer(0), "numbers"), [1, "a"], "x[1]"),
        (ListOf(Integer(0), "numbers"), [1, 1], "x[1]"),
        (MapOf(Integer(0), "numbers", plain_text_fault), [], "x"),
        (MapOf(Integer(0), "numbers", plain_text_fault), {"a": None}, "x.a"),
        (MapOf(Integer(0), "numbers", plain_text_fault), {"": 1}, 'x[""]'),
        (MapOf(Integer(0), "numbers", plain_text_fault), JsonObject([("a", 1), ("a", 1)]), "x.a"),
        (PluginScalar(), None, "x"),
        (PluginScalar(), [], "x"),
        (PluginScalar(), 10**30, "x"),
        (PluginScalar(), float("inf"), "x"),
    ],
)
def test_bad_values_are_one_problem_at_their_place(kind, value, where, reading):
    kind.read(value, "x", reading)
    assert [problem.path for problem in reading.problems] == [where]


@pytest.mark.parametrize("model_id", ["qwen", "Qwen2.5-7B", "ü", "a b", "..a", "x" * 255])
def test_folder_names_are_model_ids(model_id):
    assert model_id_fault(model_id) is None


@pytest.mark.parametrize(
    "model_id",
    ["", ".", "..", "...", "a/b", "a\\b", "C:", "c:x", "a\0", "a\n", " a", "a ", "x" * 256, "ü" * 128],
)
def test_anything_else_is_no_model_id(model_id):
    assert model_id_fault(model_id) is not None


def test_devices():
    assert [name for name in ("CPU", "GPU", "GPU.1", "NPU", "GPU.0.1") if device_fault(name)] == []
    for name in ("", "cpu", "AUTO", "GPU.", "GPU.x", "HETERO:GPU,CPU", "CPU\n"):
        assert device_fault(name) is not None
    assert device_fault("gpu.1").endswith('did you mean "GPU.1"?')


def test_origins():
    for good in ("http://localhost:3000", "https://chat.example.com", "https://[::1]:8443"):
        assert origin_fault(good) is None
    for bad in (
        "*",
        "null",
        "https://a.b/",
        "https://a.b/c",
        "chat.example.com",
        "https://*.b",
        "https://a.b\n",
    ):
        assert origin_fault(bad) is not None


def test_bind_addresses():
    for good in ("127.0.0.1", "::1", "0.0.0.0", "localhost", "my-host.example"):
        assert bind_addr_fault(good) is None
    for bad in ("127.0.0.1:80", "[::1]", "127.0.0", "a b", "-x", "http://a", ""):
        assert bind_addr_fault(bad) is not None


def test_paths_start_at_the_folder_of_the_config(reading, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (reading.folder / "f").write_text("")
    assert PathTo("file").read("f", "x", reading) == reading.folder / "f"
    assert PathTo("folder").read("../models", "x", reading) == reading.folder / "../models"
    assert PathTo("anything").read("none", "x", reading) == reading.folder / "none"
    assert PathTo("anything").read(str(tmp_path / "abs"), "x", reading) == tmp_path / "abs"
    assert not reading.problems


@pytest.mark.parametrize(
    ("target", "value"), [("file", "."), ("file", "none"), ("folder", "none"), ("anything", ""), ("file", 3)]
)
def test_paths_that_lead_nowhere_are_refused(target, value, reading):
    assert PathTo(target).read(value, "x", reading) is INVALID
    assert len(reading.problems) == 1


def test_a_template_may_stand_under_the_models_folder_or_the_config_folder(reading):
    for root in (reading.folder, reading.models_dir):
        path = root / "sub" / "t.jinja"
        path.parent.mkdir()
        path.write_text("{{ messages }}")
        assert PathTo("template").read(str(path), "x", reading) == path.resolve()
    assert not reading.problems


@pytest.mark.parametrize("case", ["missing", "outside", "link", "loop", "folder", "binary", "large", "pipe"])
def test_other_templates_are_refused(case, reading, tmp_path):
    outside = tmp_path / "outside.jinja"
    outside.write_text("x")
    path = reading.folder / "t.jinja"
    match case:
        case "outside":
            path = outside
        case "link":
            path.symlink_to(outside)
        case "loop":
            path.symlink_to(path)
        case "folder":
            path.mkdir()
        case "binary":
            path.write_bytes(b"\xff\xfe")
        case "large":
            path.write_bytes(b" " * (TEMPLATE_MAX_BYTES + 1))
        case "pipe":
            os.mkfifo(path)
    assert PathTo("template").read(str(path), "x", reading) is INVALID
    assert [problem.path for problem in reading.problems] == ["x"]
