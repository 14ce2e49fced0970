import types as python_types
from typing import get_type_hints

import attrs
import pytest

from rustedvino.config import types
from rustedvino.config.kinds import (
    UNSET,
    Boolean,
    Choice,
    Group,
    Integer,
    ListOf,
    MapOf,
    Number,
    PathTo,
    PluginScalar,
    Text,
)
from rustedvino.config.model_table import MODEL, MODEL_ENTRY
from rustedvino.config.problems import Reading
from rustedvino.config.table import GLOBAL, SERVER

# The contract, written out once more: a changed default must be changed here on purpose.
GLOBAL_DEFAULTS = {
    "models_dir": UNSET,
    "device": UNSET,
    "default_placement": "auto",
    "preload": [],
    "models": {},
    "total_vram_gb": UNSET,
    "max_num_seqs": 16,
    "max_num_batched_tokens": 512,
    "num_threads": None,
    "cache_size_gb": 0.0,
    "default_kv_cache_gb": 0.0,
    "vram_safety_margin_gb": 1.0,
    "min_kv_cache_gb": 1.0,
    "system_ram_reservation_gb": None,
    "system_ram_budget_gb": None,
    "light_model_max_gb": 2.0,
    "light_stt_max_gb": 1.0,
    "dgpu_size_ceiling_fraction": 0.8,
    "domain_budgets": {},
    "device_budgets": {},
    "device_admission_queue_timeout_ms": 5000,
    "admission_queue_timeout_ms": 5000,
    "max_queue_depth": 128,
    "kv_cache_precision": "u8",
    "enable_prefix_caching": True,
    "npu_footprint_factor": 1.5,
    "cors_allowed_origins": [],
    "keys_file": None,
    "eviction_grace_secs": 2.0,
    "min_residency_secs": 10,
    "load_timeout_secs": 600,
    "load_wait_secs": 300,
    "drain_timeout_secs": 30,
    "shutdown_drain_secs": 30,
    "worker_stall_secs": 60,
    "client_stall_secs": 60,
    "spare_workers": 1,
    "allow_remote_images": False,
    "realtime_defaults": None,
    "realtime_viable_minimum": None,
    "embedding_device": None,
    "default_embed_model": None,
    "embedding_pooling": "mean",
    "embedding_normalize": True,
    "max_prompt_array": 16,
    "max_embedding_inputs": 256,
    "max_embedding_batch_tokens": 32768,
    "max_tokens_cap": 8192,
    "bind_addr": "127.0.0.1",
    "port": 11437,
    "allow_insecure_public_bind": False,
    "ov_cache_dir": None,
    "ov_cache_max_gb": 0.0,
    "ov_cache_sweep_interval_secs": 21600,
    "kv_pressure_monitor_enabled": False,
    "kv_pressure_threshold_pct": None,
    "kv_pressure_sustained_secs": None,
    "kv_pressure_sweep_interval_secs": 15,
    "kv_resize_cooldown_secs": 30,
    "idle_unload_secs": 0,
    "sse_keepalive_secs": 15,
    "log_level": "info",
    "log_format": "text",
    "log_prompts": False,
    "supervisor": {},
}
MODEL_DEFAULTS = {
    "vram_gb": None,
    "kind": None,
    "pinned": False,
    "priority": 0,
    "evictable": True,
    "kv_cache_gb": None,
    "chat_template": None,
    "max_concurrent_streams": None,
    "load": "eager",
    "device": None,
    "tier_preference": [],
    "reasoning_parser": None,
    "max_prompt_len": None,
    "min_response_len": None,
    "speculative": None,
    "precision": None,
    "model_source": None,
    "model_revision": None,
    "capabilities": [],
    "eviction_grace_secs": None,
    "idle_unload_secs": None,
    "plugin_config": {},
    "num_threads": None,
    "repetition_penalty": None,
}
NESTED_DEFAULTS = {
    types.SupervisorSettings: {
        "backoff_base_secs": 5,
        "backoff_max_secs": 60,
        "max_restarts": 5,
        "restart_window_secs": 600,
        "health_timeout_secs": 90,
        "hang_kill_grace_secs": 10,
        "watchdog_poll_secs": 30,
        "watchdog_hang_ceiling_secs": 600,
    },
    types.SpeculativeSettings: {
        "draft_model": UNSET,
        "draft_vram_gb": None,
        "draft_device": None,
        "num_assistant_tokens": 5,
        "verify_on_load": True,
        "sampled_requests": "refuse",
    },
    types.RealtimeDefaults: dict.fromkeys(("stt_model", "llm_model", "tts_model", "embed_model")),
    types.RealtimeViableMinimum: {"llm": {}},
    types.RealtimeLlmMinimum: {"kinds": [], "min_context_tokens": 0, "require_capabilities": []},
}


def groups(group):
    yield group
    for row in group.rows:
        inner = row.kind.item if isinstance(row.kind, MapOf) else row.kind
        if isinstance(inner, Group):
            yield from groups(inner)


ALL_GROUPS = list(groups(SERVER))
ALL_ROWS = [(group.build, row) for group in ALL_GROUPS for row in group.rows]
each_row = pytest.mark.parametrize(
    ("cls", "row"), ALL_ROWS, ids=[f"{cls.__name__}.{row.name}" for cls, row in ALL_ROWS]
)


def annotation(kind):
    """The type of the attrs field that holds what ``kind`` reads."""
    match kind:
        case Boolean():
            return bool
        case Integer():
            return int
        case Number():
            return float
        case Text():
            return str
        case Choice(literal=literal):
            return literal
        case PathTo():
            return types.Path
        case PluginScalar():
            return types.PluginValue
        case ListOf(item=item):
            return python_types.GenericAlias(tuple, (annotation(item), ...))
        case MapOf(item=item):
            return python_types.GenericAlias(dict, (str, annotation(item)))
        case Group(build=cls):
            return cls


def test_defaults_are_those_of_the_contract():
    assert {row.name: row.default for row in GLOBAL} == GLOBAL_DEFAULTS
    assert {row.name: row.default for row in MODEL} == MODEL_DEFAULTS
    nested = {group.build: {row.name: row.default for row in group.rows} for group in ALL_GROUPS}
    del nested[types.ServerSettings], nested[types.ModelSettings]
    assert nested == NESTED_DEFAULTS


@pytest.mark.parametrize("group", ALL_GROUPS, ids=lambda group: group.build.__name__)
def test_rows_and_fields_have_the_same_names_in_the_same_order(group):
    assert [row.name for row in group.rows] == [field.name for field in attrs.fields(group.build)]


@each_row
def test_the_field_has_the_type_the_row_reads(cls, row):
    expected = annotation(row.kind)
    assert get_type_hints(cls)[row.name] == (expected | None if row.nullable else expected)


@each_row
def test_the_default_of_the_field_is_what_the_row_reads_from_its_default(cls, row, tmp_path):
    default = getattr(attrs.fields(cls), row.name).default
    if row.required:
        assert default is attrs.NOTHING
        return
    if isinstance(default, attrs.Factory):
        default = default.factory()
    reading = Reading(tmp_path)
    read = row.read(row.default, row.name, reading)
    assert not reading.problems
    assert read == default
    assert type(read) is type(default)


@each_row
def test_every_row_says_what_it_means_in_one_clear_sentence(cls, row):
    assert row.meaning.endswith(".")
    assert row.meaning[0].isupper() or row.meaning[0] == '"'
    assert "|" not in row.meaning + row.describe()


@each_row
def test_units_are_given_where_the_name_has_one(cls, row):
    units = {"_gb": "GB", "_secs": "s", "_ms": "ms", "_pct": "%", "_tokens": "tokens"}
    for ending, unit in units.items():
        if row.name.endswith(ending):
            assert row.unit == unit


def test_required_rows_have_an_example_where_a_file_needs_one():
    assert all(row.example is not UNSET for row in GLOBAL if row.required)


def test_kind_is_never_live():
    assert not next(row for row in MODEL if row.name == "kind").live
    assert MODEL_ENTRY.rows is MODEL
