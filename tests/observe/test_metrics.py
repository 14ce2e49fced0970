"""What a scrape shows: the whole contract, from the start, and nothing stale."""

import re
from collections.abc import Iterator

import pytest
from attrs import define, evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from rustedvino.observe.families import (
    DURATION_BUCKETS,
    FAMILIES,
    INTER_TOKEN_BUCKETS,
    PREFIX,
    RTF_BUCKETS,
    TTFT_BUCKETS,
)
from rustedvino.observe.metrics import MemorySnapshot, Metrics, ModelSnapshot, ServerSnapshot
from rustedvino.observe.tally import TokenClock

READY = ModelSnapshot(
    model="m",
    device="GPU.0",
    kind="text_gen",
    loaded=True,
    pinned=True,
    priority=3,
    running=2,
    waiting=5,
    max_running=16,
    load_secs=12.5,
    process_gpu_bytes=700,
    memory_bytes=900,
    estimate_bytes=800,
    kv_pool_bytes=3 * 2**30,
    kv_usage_percent=42.0,
    kv_pressure_flagged=True,
)
UNLOADED = ModelSnapshot(model="m", device="GPU.0", kind="text_gen", max_running=16)
SPEECH = ModelSnapshot(model="s", device="CPU", kind="stt")
FULL = ServerSnapshot(
    models=(READY, SPEECH),
    memory=(
        MemorySnapshot(label="device", name="GPU.0", total_bytes=16, used_bytes=4),
        MemorySnapshot(label="domain", name="vram:0", total_bytes=16, used_bytes=4),
        MemorySnapshot(label="domain", name="system_ram", total_bytes=None, used_bytes=1),
    ),
    ov_cache_bytes=10,
)
LABELS = {"model": "m", "device": "GPU.0", "kind": "text_gen"}


@define(eq=False)
class Source:
    state: ServerSnapshot = FULL

    def snapshot(self) -> ServerSnapshot:
        return self.state


def make(state: ServerSnapshot = FULL) -> tuple[Metrics, Source]:
    source = Source(state)
    return Metrics(source, clock=lambda: 1000.0), source


def samples(metrics: Metrics) -> Iterator[Sample]:
    for family in text_string_to_metric_families(metrics.render().body.decode()):
        yield from family.samples


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    """The value of one sample, None when it is absent."""
    found = [sample.value for sample in samples(metrics) if sample.name == PREFIX + name and sample.labels == labels]
    assert len(found) <= 1
    return found[0] if found else None


def test_names_types_and_labels_are_those_of_the_contract() -> None:
    metrics, _ = make()
    metrics.keys.set_keys(["a-key-of-some-length"])
    metrics.key_used("a-key-of-some-length")
    found = {family.name: family for family in text_string_to_metric_families(metrics.render().body.decode())}
    assert set(found) == {PREFIX + family.name.removesuffix("_total") for family in FAMILIES}
    for family in FAMILIES:
        shown = found[PREFIX + family.name.removesuffix("_total")]
        assert shown.type == family.type
        assert shown.documentation == family.meaning
        assert shown.samples, family.name
        for sample in shown.samples:
            labels = set(sample.labels) - {"le"}
            assert labels in [set(family.labels), set(family.also or family.labels)], family.name
            if family.type == "counter":
                assert sample.name == PREFIX + family.name
        if family.also is not None:
            assert {frozenset(sample.labels) for sample in shown.samples} == {
                frozenset(family.labels),
                frozenset(family.also),
            }


@pytest.mark.parametrize(
    ("name", "labels", "bounds"),
    [
        ("ttft_seconds", LABELS, TTFT_BUCKETS),
        ("inter_token_seconds", LABELS, INTER_TOKEN_BUCKETS),
        ("request_duration_seconds", {**LABELS, "modality": "text"}, DURATION_BUCKETS),
        ("rtf_ratio", {"model": "s", "device": "CPU", "kind": "stt"}, RTF_BUCKETS),
    ],
)
def test_buckets(name: str, labels: dict[str, str], bounds: tuple[float, ...]) -> None:
    metrics, _ = make()
    shown = [
        float(sample.labels["le"])
        for sample in samples(metrics)
        if sample.name == f"{PREFIX}{name}_bucket" and {**sample.labels, **labels} == sample.labels
    ]
    assert shown == [*bounds, float("inf")]


def test_gauges_show_the_moment() -> None:
    metrics, _ = make()
    expected = {
        "model_loaded": 1,
        "model_load_duration_seconds": 12.5,
        "model_pinned": 1,
        "model_priority": 3,
        "requests_running": 2,
        "requests_max": 16,
        "requests_waiting": 5,
        "process_gpu_memory_bytes": 700,
        "model_memory_bytes": 900,
        "model_gpu_memory_estimate_bytes": 800,
        "kv_cache_pool_gb": 3.0,
        "kv_cache_usage_percent": 42.0,
        "kv_cache_usage_supported": 1,
        "kv_cache_pressure_flagged": 1,
    }
    assert {name: value(metrics, name, **LABELS) for name in expected} == expected
    assert value(metrics, "vram_total_bytes", device="GPU.0") == 16
    assert value(metrics, "vram_used_bytes", domain="vram:0") == 4
    assert value(metrics, "vram_used_bytes", domain="system_ram") == 1
    assert value(metrics, "vram_total_bytes", domain="system_ram") is None
    assert value(metrics, "ov_cache_bytes") == 10


def test_an_unloaded_model_leaves_no_stale_value() -> None:
    metrics, source = make()
    metrics.render()
    source.state = evolve(FULL, models=(UNLOADED,))
    gauges = [
        (sample.name, sample.value)
        for family in text_string_to_metric_families(metrics.render().body.decode())
        if family.type == "gauge"
        for sample in family.samples
        if sample.labels.get("model") == "m" and sample.value
    ]
    assert gauges == [(f"{PREFIX}requests_max", 16)]


def test_a_load_duration_without_the_model_is_not_shown() -> None:
    metrics, _ = make(ServerSnapshot(models=(evolve(READY, loaded=False),)))
    assert value(metrics, "model_load_duration_seconds", **LABELS) is None


def test_a_deregistered_model_is_gone() -> None:
    metrics, source = make()
    metrics.model("m").admitted("text", 5)
    source.state = ServerSnapshot()
    metrics.forget("m")
    assert not any("m" in sample.labels.values() for sample in samples(metrics))
    source.state = FULL
    assert value(metrics, "requests_total", **LABELS, modality="text") == 0


def test_counters_are_there_at_zero_from_the_start() -> None:
    metrics, _ = make(ServerSnapshot(models=(UNLOADED,)))
    metrics.keys.set_keys(["a-key-of-some-length"])
    for name, labels in [
        ("requests_total", {**LABELS, "modality": "text"}),
        ("tokens_generated_total", LABELS),
        ("prompt_tokens_total", LABELS),
        *(
            ("worker_restarts_total", {**LABELS, "reason": reason})
            for reason in ("crash", "engine_fault", "oom", "stall", "protocol", "gpu_poisoned", "start_failed")
        ),
        *(
            ("context_length_exceeded_total", {"model": "m", "gate": gate})
            for gate in ("length", "tokens", "max_prompt_len")
        ),
        ("pool_capacity_rejected_total", {"model": "m"}),
        ("own_budget_rejected_total", {"model": "m"}),
        ("ttft_seconds_count", LABELS),
        ("ttft_seconds_sum", LABELS),
        ("key_usage_total", {"key_suffix": "length"}),
        ("realtime_connections_total", {}),
        *(
            ("realtime_turns_total", {"result": result})
            for result in ("ok", "stt_error", "llm_error", "cancelled", "barge_in", "admission_rejected")
        ),
        *(("realtime_tts_sentences_total", {"result": result}) for result in ("ok", "dropped")),
        ("realtime_stt_duration_seconds_count", {}),
        ("ov_cache_pruned_bytes_total", {}),
        ("ov_cache_pruned_files_total", {}),
    ]:
        assert value(metrics, name, **labels) == 0, (name, labels)


def test_what_happened_is_counted() -> None:
    metrics, _ = make()
    tally = metrics.model("m")
    tally.admitted("text", prompt_tokens=12)
    tally.admitted("decision", prompt_tokens=3)
    tally.answered("text", 3.0)
    clock = metrics.token_clock()
    tally.tokens(clock, 1, 1000.25)
    tally.tokens(clock, 2, 1000.34)
    tally.restarted("stall")
    tally.context_length_exceeded["tokens"] += 1
    tally.pool_capacity_rejected += 1
    metrics.realtime.turns["barge_in"] += 1
    metrics.realtime.llm.observe(1.5)
    assert value(metrics, "requests_total", **LABELS, modality="text") == 1
    assert value(metrics, "requests_total", **LABELS, modality="decision") == 1  # once it is used
    assert value(metrics, "requests_total", **LABELS, modality="image") is None
    assert value(metrics, "prompt_tokens_total", **LABELS) == 15
    assert value(metrics, "tokens_generated_total", **LABELS) == 3
    assert value(metrics, "ttft_seconds_bucket", **LABELS, le="0.2") == 0
    assert value(metrics, "ttft_seconds_bucket", **LABELS, le="0.3") == 1
    assert value(metrics, "inter_token_seconds_count", **LABELS) == 2
    assert value(metrics, "inter_token_seconds_sum", **LABELS) == pytest.approx(0.09)
    assert value(metrics, "inter_token_seconds_bucket", **LABELS, le="0.04") == 0
    assert value(metrics, "inter_token_seconds_bucket", **LABELS, le="0.05") == 2
    assert value(metrics, "request_duration_seconds_bucket", **LABELS, modality="text", le="2.0") == 0
    assert value(metrics, "request_duration_seconds_bucket", **LABELS, modality="text", le="5.0") == 1
    assert value(metrics, "worker_restarts_total", **LABELS, reason="stall") == 1
    assert value(metrics, "context_length_exceeded_total", model="m", gate="tokens") == 1
    assert value(metrics, "pool_capacity_rejected_total", model="m") == 1
    assert value(metrics, "realtime_turns_total", result="barge_in") == 1
    assert value(metrics, "realtime_llm_duration_seconds_sum") == 1.5


def test_keys_show_their_end_and_their_last_use(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics, _ = make()
    metrics.keys.set_keys(["sk-abcdefgh123456", "tiny-key"])
    assert value(metrics, "key_last_seen_timestamp_seconds", key_suffix="123456") is None
    monkeypatch.setattr("rustedvino.observe.metrics.time.time", lambda: 1_700_000_000.0)
    metrics.key_used("sk-abcdefgh123456")
    metrics.key_used("tiny-key")
    assert value(metrics, "key_usage_total", key_suffix="123456") == 1
    assert value(metrics, "key_last_seen_timestamp_seconds", key_suffix="123456") == 1_700_000_000
    text = metrics.render().body.decode()
    assert "abcdefgh" not in text
    assert "tiny" not in text


@given(name=st.text(min_size=1, max_size=40))
@settings(max_examples=100, deadline=None)
def test_any_model_id_survives_the_format(name: str) -> None:
    name = name.encode("utf-8", "replace").decode()
    metrics, _ = make(ServerSnapshot(models=(evolve(READY, model=name),)))
    body = metrics.render().body.decode()
    # The parser of the library splits at every kind of line end; the format knows only one.
    if len(body.splitlines()) == body.count("\n"):
        assert value(metrics, "requests_running", model=name, device="GPU.0", kind="text_gen") == 2
    assert all(re.match(rf"(# (HELP|TYPE) )?{PREFIX}", line) for line in body.rstrip("\n").split("\n"))


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("", "text/plain; version=0.0.4; charset=utf-8"),
        ("*/*", "text/plain; version=0.0.4; charset=utf-8"),
        ("application/openmetrics-text; version=1.0.0,text/plain;q=0.5", "application/openmetrics-text; version=1.0.0"),
        ("application/openmetrics-text; version=x.y", "text/plain; version=0.0.4; charset=utf-8"),
        ("text/plain; version=", "text/plain; version=0.0.4; charset=utf-8"),
        (";;,,;", "text/plain; version=0.0.4; charset=utf-8"),
    ],
)
def test_the_format_is_what_was_asked_for(accept: str, content_type: str) -> None:
    rendered = make()[0].render(accept)
    assert rendered.content_type.startswith(content_type)
    if "openmetrics" in content_type:
        names = {family.name for family in parse_openmetrics(rendered.body.decode())}
        assert len(names) == len(FAMILIES)
    else:
        assert rendered.body.startswith(b"# HELP rustedvino_model_loaded ")


@given(accept=st.text(st.sampled_from("application/openmetrics-text;version=10.x, plain*q"), max_size=80))
@settings(max_examples=150, deadline=None)
def test_no_accept_header_breaks_a_scrape(accept: str) -> None:
    assert make(ServerSnapshot())[0].render(accept).body


def test_the_state_is_of_the_moment_it_was_taken() -> None:
    metrics, source = make()
    scrape = metrics.scrape()
    source.state = ServerSnapshot()
    assert b'rustedvino_requests_running{device="GPU.0",kind="text_gen",model="m"} 2.0' in scrape.render().body


def test_rate_comes_from_the_tally() -> None:
    now = 1000.0
    metrics = Metrics(Source(), clock=lambda: now)
    tally, clock = metrics.model("m"), TokenClock(now)
    tally.tokens(clock, 1, now)
    tally.tokens(clock, 50, 1004.0)
    now = 1005.0
    assert value(metrics, "tokens_per_second", **LABELS) == 10.0
