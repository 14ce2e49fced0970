import json
import os

import attrs
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from rustedvino.config.kinds import (
    Boolean,
    Choice,
    Group,
    Integer,
    ListOf,
    MapOf,
    Number,
    PluginScalar,
    Text,
    bind_addr_fault,
    device_fault,
    model_id_fault,
    origin_fault,
)
from rustedvino.config.load import (
    COMMENT_PREFIXES,
    CONFIG_MAX_BYTES,
    DEMO_MODEL_ID,
    check_bind,
    demo_config,
    dump_settings,
    is_loopback,
    load_config,
    read_model_settings,
    read_settings,
)
from rustedvino.config.model_table import MODEL_ENTRY
from rustedvino.config.plugin import PLUGIN_PROPERTIES, plugin_property_fault
from rustedvino.config.problems import ConfigError, join, printable
from rustedvino.config.table import SERVER
from rustedvino.config.types import ModelSettings, SpeculativeSettings, SupervisorSettings

MINIMAL = {"models_dir": "models", "device": "CPU", "total_vram_gb": 0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("conf")
    (folder / "models" / "qwen").mkdir(parents=True)
    (folder / "t.jinja").write_text("{{ messages }}")
    return folder


@pytest.fixture
def load(tmp_path):
    """Writes a config (text, bytes or additions to the minimal one) and loads it."""

    def load(content, name="config.json"):
        (tmp_path / "models").mkdir(exist_ok=True)
        if isinstance(content, dict):
            content = json.dumps(MINIMAL | content)
        path = tmp_path / name
        path.write_bytes(content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content)
        return load_config(path)

    return load


@pytest.fixture
def problems(load):
    def problems(content, **kwargs):
        with pytest.raises(ConfigError) as caught:
            load(content, **kwargs)
        return {problem.path: problem.message for problem in caught.value.problems}

    return problems


def with_member(text):
    return json.dumps(MINIMAL)[:-1] + ", " + text + "}"


def test_a_minimal_config_has_the_defaults(load, tmp_path):
    loaded = load({})
    assert loaded.path == tmp_path / "config.json"
    assert loaded.folder == tmp_path
    assert loaded.raw == MINIMAL
    assert loaded.settings.models_dir == tmp_path / "models"
    assert loaded.settings.total_vram_gb == 0.0
    assert loaded.settings.port == 11437
    assert loaded.settings.supervisor == SupervisorSettings()


def test_nested_settings_become_values(load):
    speculative = {"draft_model": "small", "num_assistant_tokens": 3}
    models = {"qwen": {"vram_gb": 4, "speculative": speculative, "plugin_config": {"NUM_STREAMS": 1}}}
    settings = load({"models": models, "preload": ["qwen"], "supervisor": {"max_restarts": 1}}).settings
    assert settings.models["qwen"] == ModelSettings(
        vram_gb=4.0,
        speculative=SpeculativeSettings(draft_model="small", num_assistant_tokens=3),
        plugin_config={"NUM_STREAMS": 1},
    )
    assert settings.preload == ("qwen",)
    assert settings.supervisor == SupervisorSettings(max_restarts=1)


def test_a_byte_order_mark_is_fine(load):
    assert load(b"\xef\xbb\xbf" + json.dumps(MINIMAL).encode()).settings.device == "CPU"


def test_all_problems_are_reported_at_once_with_path_and_suggestion(problems):
    found = problems(
        {
            "models_dir": "nowhere",
            "devise": "GPU",
            "port": 65536,
            "models": {"qwen": {"vram": 1, "vram_gb": "8", "load": "egear"}, "a/b": {}},
            "preload": ["qwne"],
            "supervisor": {"max_restart": 1},
            "kv_pressure_monitor_enabled": True,
            "bind_addr": "0.0.0.0",
        }
    )
    assert 'did you mean "device"?' in found.pop("devise")
    assert found.pop("port") == "must be a whole number from 0 to 65535, got 65536"
    assert 'did you mean "vram_gb"?' in found.pop("models.qwen.vram")
    assert found.pop("models.qwen.vram_gb").endswith('got "8"')
    assert 'did you mean "eager"?' in found.pop("models.qwen.load")
    assert 'did you mean "qwen"?' in found.pop("preload[0]")
    assert 'did you mean "max_restarts"?' in found.pop("supervisor.max_restart")
    rest = {
        "models_dir",
        'models["a/b"]',
        "kv_pressure_threshold_pct",
        "kv_pressure_sustained_secs",
        "bind_addr",
    }
    assert set(found) == rest


def test_required_settings_are_named_when_missing(problems):
    assert set(problems("{}")) == {"models_dir", "device", "total_vram_gb"}


def test_a_per_model_setting_at_the_top_says_where_it_belongs(problems):
    assert problems({"vram_gb": 3}) == {"vram_gb": "is a setting of one model: it belongs under models.<id>"}


@pytest.mark.parametrize("name", ["api_keys", "admin_api_keys", "keys", "API_KEY"])
def test_keys_in_the_config_are_refused_without_being_repeated(problems, name):
    found = problems({name: ["sk-secret"], "models": {"m": {name: "sk-secret"}}}, name="prod.json")
    assert found.keys() == {name, f"models.m.{name}"}
    for message in found.values():
        assert "prod.keys.json" in message
        assert "sk-secret" not in message


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ('"port": 1, "port": 2', "port"),
        ('"models": {"a": {}, "a": {}}', "models.a"),
        ('"models": {"a": {"pinned": true, "pinned": true}}', "models.a.pinned"),
        ('"supervisor": {"max_restarts": 1, "max_restarts": 1}', "supervisor.max_restarts"),
        ('"domain_budgets": {"ram": 1, "ram": 1}', "domain_budgets.ram"),
    ],
)
def test_a_name_written_twice_is_a_problem(problems, text, path):
    assert problems(with_member(text)) == {path: "is written more than once"}


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity", "1e999", "9" * 5000])
@pytest.mark.parametrize("name", ["port", "cache_size_gb"])
def test_numbers_that_are_none_are_refused_at_their_place(problems, literal, name):
    assert set(problems(with_member(f'"{name}": {literal}'))) == {name}


def test_null_is_allowed_where_the_default_is_null_only(load, problems):
    models = {"m": dict.fromkeys(row.name for row in MODEL_ENTRY.rows if row.nullable)}
    nulls = dict.fromkeys(row.name for row in SERVER.rows if row.nullable)
    assert load(nulls | {"models": models}).settings.models == {"m": ModelSettings()}
    others = dict.fromkeys(row.name for row in SERVER.rows if not row.nullable)
    assert set(problems(others)) == set(others)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is not JSON"),
        (b"[]", "must hold one JSON object"),
        (b'{"a": 1,}', "line 1, column"),
        (b'{"a": "\xff"}', "is not UTF-8"),
        (json.dumps(MINIMAL).encode("utf-16"), "is not UTF-8"),
        (b'{"a":' * 200_000, "nested too deeply"),
        (b" " * (CONFIG_MAX_BYTES + 1), "is larger than"),
    ],
    ids=["empty", "list", "comma", "latin", "utf16", "deep", "large"],
)
def test_a_file_that_cannot_be_parsed_is_one_problem_of_the_file(problems, content, words):
    found = problems(content)
    assert found.keys() == {""}
    assert words in found[""]


def test_a_file_that_cannot_be_read_is_one_problem_of_the_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path, words in [
        ("none.json", "existing"),
        (".", "folder"),
        ("pipe", "existing"),
        ("a\0b", "existing"),
    ]:
        with pytest.raises(ConfigError, match=words):
            load_config(tmp_path / path)


def test_paths_start_at_the_config_not_at_the_working_folder(load, tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "models").mkdir(parents=True)
    monkeypatch.chdir(elsewhere)
    (tmp_path / "my.keys").write_text("{}")
    (tmp_path / "t.jinja").write_text("x")
    config = {"keys_file": "my.keys", "ov_cache_dir": "cache", "models": {"m": {"chat_template": "t.jinja"}}}
    loaded = load(config)
    assert loaded.settings.models_dir == tmp_path / "models"
    assert loaded.settings.keys_file == loaded.keys_path == tmp_path / "my.keys"
    assert loaded.settings.ov_cache_dir == tmp_path / "cache"
    assert loaded.settings.models["m"].chat_template == (tmp_path / "t.jinja").resolve()
    monkeypatch.chdir(tmp_path)
    assert load_config("config.json") == loaded


def test_a_template_outside_is_refused_through_a_link_too(problems, tmp_path_factory, tmp_path):
    outside = tmp_path_factory.mktemp("outside") / "t.jinja"
    outside.write_text("x")
    (tmp_path / "link.jinja").symlink_to(outside)
    found = problems({"models": {"a": {"chat_template": str(outside)}, "b": {"chat_template": "link.jinja"}}})
    assert found.keys() == {"models.a.chat_template", "models.b.chat_template"}


def test_pressure_monitor_needs_both_numbers(load, problems):
    on = {"kv_pressure_monitor_enabled": True}
    assert set(problems(on | {"kv_pressure_threshold_pct": 90})) == {"kv_pressure_sustained_secs"}
    assert set(problems(on | {"kv_pressure_sustained_secs": None, "kv_pressure_threshold_pct": 1})) == {
        "kv_pressure_sustained_secs"
    }
    load(on | {"kv_pressure_threshold_pct": 90, "kv_pressure_sustained_secs": 1})


def test_listening_beyond_loopback_needs_keys_or_permission(load, problems, tmp_path):
    public = {"bind_addr": "0.0.0.0"}
    assert set(problems(public)) == {"bind_addr"}
    assert set(problems(public | {"keys_file": "none"})) == {"keys_file"}
    load(public | {"allow_insecure_public_bind": True})
    (tmp_path / "config.keys.json").write_text("{}")
    settings = load(public).settings
    assert check_bind(settings, has_keys=True) is None
    assert check_bind(settings, has_keys=False).path == "bind_addr"
    assert check_bind(attrs.evolve(settings, bind_addr="::1"), has_keys=False) is None
    assert check_bind(attrs.evolve(settings, allow_insecure_public_bind=True), has_keys=False) is None


def test_loopback_addresses():
    assert all(is_loopback(address) for address in ("127.0.0.1", "127.9.9.9", "::1", "localhost", "LOCALHOST"))
    assert not any(is_loopback(address) for address in ("0.0.0.0", "::", "192.168.1.2", "my-host"))


def test_the_demo_needs_no_file_and_its_model_is_there():
    loaded = demo_config()
    assert loaded.path is None
    assert loaded.keys_path is None
    assert loaded.settings.device == "CPU"
    assert loaded.settings.total_vram_gb == 0
    assert list(loaded.settings.models) == [DEMO_MODEL_ID]
    assert (loaded.settings.models_dir / DEMO_MODEL_ID / "openvino_model.xml").is_file()


def test_one_model_entry_can_be_read_by_itself(folder):
    read = {"folder": folder, "models_dir": folder / "models"}
    entry = read_model_settings({"chat_template": "t.jinja", "priority": 2}, "", **read)
    assert entry == ModelSettings(chat_template=(folder / "t.jinja").resolve(), priority=2)
    with pytest.raises(ConfigError) as caught:
        read_model_settings({"pined": True, "priority": "2"}, "models.m", **read)
    assert {problem.path for problem in caught.value.problems} == {"models.m.pined", "models.m.priority"}
    with pytest.raises(ConfigError, match="must be an object"):
        read_model_settings([], "", **read)


# Random settings, made from the table itself.

model_ids = st.text(min_size=1, max_size=12).filter(lambda text: model_id_fault(text) is None)
TEXTS = {
    model_id_fault: model_ids,
    device_fault: st.sampled_from(["CPU", "GPU", "GPU.1", "NPU"]),
    origin_fault: st.sampled_from(["http://localhost:3000", "https://a.example"]),
    bind_addr_fault: st.sampled_from(["127.0.0.1", "::1", "localhost"]),
    plugin_property_fault: st.sampled_from(sorted(PLUGIN_PROPERTIES)),
}
plain_texts = st.text(st.characters(min_codepoint=32, exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8)
FIXED = {
    "models_dir": st.just("models"),
    "preload": st.just([]),
    "chat_template": st.sampled_from([None, "t.jinja"]),
    "keys_file": st.none(),
    "ov_cache_dir": st.sampled_from([None, "cache"]),
    "kv_pressure_monitor_enabled": st.just(False),
}


def values(kind):
    match kind:
        case Boolean():
            return st.booleans()
        case Integer(minimum=low, maximum=high):
            return st.integers(low, high)
        case Number(minimum=low, maximum=high, above=above):
            whole = st.integers(int(low) + above, int(high))
            return st.floats(low, high, exclude_min=above) | whole
        case Choice():
            return st.sampled_from(kind.options)
        case Text(fault=fault):
            return TEXTS.get(fault, plain_texts)
        case PluginScalar():
            return st.booleans() | st.integers(-100, 100) | st.floats(-9, 9) | plain_texts
        case ListOf(item=item):
            return st.lists(values(item), unique=True, max_size=3)
        case MapOf(item=item, name_fault=fault):
            names = TEXTS.get(fault, plain_texts).filter(lambda name: not name.startswith(COMMENT_PREFIXES))
            return st.dictionaries(names, values(item), max_size=2)
        case Group():
            return objects(kind)


def objects(group):
    required, optional = {}, {}
    for row in group.rows:
        strategy = FIXED[row.name] if row.name in FIXED else values(row.kind)
        (required if row.required else optional)[row.name] = st.none() | strategy if row.nullable else strategy
    return st.fixed_dictionaries(required, optional=optional)


def wrong(kind):
    """JSON values that ``kind`` never takes."""
    scalars = [st.text(max_size=5).map(lambda text: text + "\0"), st.just([None]), st.just({"\0": None})]
    match kind:
        case Boolean():
            scalars += [st.integers(), st.none()]
        case Integer():
            scalars += [st.booleans(), st.floats(allow_nan=False), st.just("5")]
        case Number():
            scalars += [st.booleans(), st.just("5"), st.just(1e300), st.just(-0.5)]
        case _:
            scalars += [st.booleans(), st.integers(), st.floats(allow_nan=False)]
    if isinstance(kind, ListOf):
        del scalars[1]
    if isinstance(kind, MapOf | Group):
        del scalars[2]
    if isinstance(kind, PluginScalar):
        scalars = scalars[:3]
    return st.one_of(scalars)


def places(raw, group, where=""):
    """Every value in ``raw``: the object that holds it, its name, its kind and its path."""
    for row in group.rows:
        value, path = raw.get(row.name), join(where, row.name)
        if row.name in raw:
            yield raw, row.name, row.kind, path
        if isinstance(value, dict) and isinstance(row.kind, Group):
            yield from places(value, row.kind, path)
        if isinstance(value, dict) and isinstance(row.kind, MapOf):
            for name, entry in value.items():
                yield value, name, row.kind.item, join(path, name)
                if isinstance(row.kind.item, Group):
                    yield from places(entry, row.kind.item, join(path, name))


NESTED = {row.name for row in SERVER.rows if isinstance(row.kind, Group)}
quick = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@quick
@given(raw=objects(SERVER))
def test_valid_settings_survive_a_dump_and_a_load(folder, raw):
    raw["preload"] = list(raw.get("models", {}))
    read = read_settings(raw, folder)
    dumped = dump_settings(read)
    assert json.loads(json.dumps(dumped)) == dumped
    assert list(dumped) == [row.name for row in SERVER.rows]
    assert read_settings(dumped, folder) == read
    for name in raw.keys() - {"models_dir", "ov_cache_dir", "models"} - NESTED:
        assert dumped[name] == raw[name]


@quick
@given(raw=objects(SERVER), data=st.data())
def test_one_wrong_value_is_exactly_one_problem_at_its_path(folder, raw, data):
    holder, name, kind, path = data.draw(st.sampled_from(list(places(raw, SERVER))))
    holder[name] = data.draw(wrong(kind))
    with pytest.raises(ConfigError) as caught:
        read_settings(raw, folder)
    assert [problem.path for problem in caught.value.problems] == [path]


@quick
@given(raw=objects(SERVER), name=st.text(max_size=30))
def test_one_unknown_name_is_exactly_one_problem_at_its_path(folder, raw, name):
    assume(name not in {row.name for row in SERVER.rows})
    with pytest.raises(ConfigError) as caught:
        read_settings(raw | {name: 1}, folder)
    assert [problem.path for problem in caught.value.problems] == [printable(join("", name))]


# Comments.


def test_comments_are_ignored_wherever_they_stand_and_kept_in_raw(load):
    content = {
        "//": "a comment",
        "_why": {"any": ["thing", 1]},
        "supervisor": {"_note": 1, "max_restarts": 3},
        "domain_budgets": {"// cards": None, "system_ram": 4},
        "models": {
            "//": "the first is for tests",
            "m": {"_pinned": True, "//": 2, "plugin_config": {"_": 1}, "speculative": {"_": 1, "draft_model": "d"}},
        },
    }
    config = load(content)
    assert config.raw == MINIMAL | content
    assert config.settings.supervisor.max_restarts == 3
    assert config.settings.domain_budgets == {"system_ram": 4}
    assert config.settings.models == {"m": ModelSettings(speculative=SpeculativeSettings(draft_model="d"))}


def test_an_id_may_begin_with_an_underscore(load):
    assert list(load({"models": {"_m": {}}, "preload": ["_m"]}).settings.models) == ["_m"]


@pytest.mark.parametrize("name", ["/x", "-_x", "# x", " _x", "comment"])
def test_other_keys_are_no_comments(problems, name):
    assert list(problems({name: 1})) == [join("", name)]


def test_a_comment_written_twice_cannot_be_kept(problems):
    text = with_member('"//": 1, "//": 2, "models": {"m": {"_a": 1, "_a": 2}}')
    assert problems(text) == {join("", "//"): "is written more than once", "models.m._a": "is written more than once"}


def test_a_model_entry_alone_may_have_comments(folder):
    settings = read_model_settings({"_a": 1, "priority": 2}, "m", folder=folder, models_dir=folder)
    assert settings == ModelSettings(priority=2)


@pytest.mark.parametrize("value", ['{"a":' * 60 + "1" + "}" * 60, "[" * 60 + "]" * 60])
def test_comments_are_bounded_in_depth(problems, value):
    assert problems(with_member(f'"_deep": {value}')) == {
        "": "the file is not usable: its values are nested too deeply"
    }
