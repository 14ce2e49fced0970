"""``/metrics``: what was counted, and what the server looks like at the moment of the scrape.

Gauges are read from the server for each scrape and kept nowhere, so a model that was unloaded leaves no stale value.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Final, Protocol

import trio
from attrs import define, field, frozen
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, choose_encoder, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from rustedvino.config.types import BYTES_PER_GB
from rustedvino.observe.families import (
    FAMILIES,
    GENERATING_KINDS,
    KIND_MODALITIES,
    PREFIX,
    SPEECH_KINDS,
    Family,
    Modality,
)
from rustedvino.observe.tally import Histogram, KeyTally, ModelTally, RealtimeTally, TokenClock

Labels = tuple[str, ...]
Value = float | Histogram
Sample = tuple[Labels, Value]


@frozen(kw_only=True)
class ModelSnapshot:
    """A registered model at one moment. None: not known, or not there while it is not loaded; the gauge is absent."""

    model: str
    device: str
    kind: str
    """``unknown`` until the model's files were looked at."""
    loaded: bool = False
    pinned: bool = False
    priority: int = 0
    running: int = 0
    waiting: int = 0
    max_running: int = 0
    load_secs: float | None = None
    process_gpu_bytes: int | None = None
    memory_bytes: int | None = None
    estimate_bytes: int | None = None
    kv_pool_bytes: int | None = None
    kv_usage_percent: float | None = None
    """None when the engine does not report it."""
    kv_pressure_flagged: bool = False


@frozen(kw_only=True)
class MemorySnapshot:
    """Memory of a device or of a domain, whichever ``label`` names. ``total_bytes`` None: not gated."""

    label: str
    """``device`` or ``domain``."""
    name: str
    total_bytes: int | None
    used_bytes: int


@frozen(kw_only=True)
class ServerSnapshot:
    """Everything that gauges show, at one moment."""

    models: tuple[ModelSnapshot, ...] = ()
    memory: tuple[MemorySnapshot, ...] = ()
    ov_cache_bytes: int | None = None


class MetricsSource(Protocol):
    """What the server gives a scrape. Called on the event loop; must not wait."""

    def snapshot(self) -> ServerSnapshot:
        """The state now, with every registered model in it."""
        ...


@frozen
class Rendered:
    """An answer to a scrape."""

    body: bytes
    content_type: str


@define(eq=False)
class Metrics:
    """All counts of one server. ``clock`` must be the one that TokenClock times are taken from."""

    source: MetricsSource
    clock: Callable[[], float] = trio.current_time
    realtime: RealtimeTally = field(factory=RealtimeTally)
    keys: KeyTally = field(factory=KeyTally)
    ov_cache_pruned_bytes: int = 0
    ov_cache_pruned_files: int = 0
    _models: dict[str, ModelTally] = field(factory=dict)

    def model(self, model_id: str) -> ModelTally:
        """The counts of a registered model. Keep the object: it stays valid until the model is deregistered."""
        tally = self._models.get(model_id)
        if tally is None:
            tally = self._models[model_id] = ModelTally()
        return tally

    def forget(self, model_id: str) -> None:
        """The model was deregistered."""
        self._models.pop(model_id, None)

    def token_clock(self) -> TokenClock:
        """For a sequence that is asked for now."""
        return TokenClock(self.clock())

    def key_used(self, key: str) -> None:
        """A request was authenticated by this key."""
        self.keys.used(key, time.time())

    def scrape(self) -> "Scrape":
        """Take the state of this moment. Rendering it may then be done in a thread."""
        snapshot, now = self.source.snapshot(), self.clock()
        tallies = [(model, self.model(model.model)) for model in snapshot.models]
        return Scrape(self, snapshot, [(model, tally, tally.rate(now)) for model, tally in tallies])

    def render(self, accept: str = "") -> Rendered:
        """The answer to a scrape whose Accept header this is. Never raises for what a client sends."""
        return self.scrape().render(accept)


@define(eq=False)
class Scrape(Collector):
    """The families of one scrape."""

    metrics: Metrics
    snapshot: ServerSnapshot
    models: list[tuple[ModelSnapshot, ModelTally, float]]

    def render(self, accept: str = "") -> Rendered:
        """As text, in the version of the format that ``accept`` prefers among those we speak."""
        try:
            encoder, content_type = choose_encoder(accept)
            return Rendered(encoder(self), content_type)
        except (TypeError, ValueError):  # a version that is no version: what everybody understands
            return Rendered(generate_latest(self), CONTENT_TYPE_PLAIN_0_0_4)

    def collect(self) -> Iterator[Metric]:
        """Every family of the contract, with the samples it has now."""
        values = {**self._model_values(), **self._server_values()}
        for family in FAMILIES:
            yield _FAMILY_MAKERS[family.type](family, values[family.name])

    def _model_values(self) -> Mapping[str, list[Sample]]:
        values: dict[str, list[Sample]] = {family.name: [] for family in FAMILIES}

        def put(name: str, labels: Labels, value: Value | None) -> None:
            if value is not None:
                values[name].append((labels, value))

        for model, tally, rate in self.models:
            labels = (model.model, model.device, model.kind)
            put("model_loaded", labels, int(model.loaded))
            put("model_pinned", labels, int(model.pinned))
            put("model_priority", labels, model.priority)
            put("requests_running", labels, model.running)
            put("requests_max", labels, model.max_running)
            put("requests_waiting", labels, model.waiting)
            put("tokens_per_second", labels, rate)
            if model.loaded:
                put("model_load_duration_seconds", labels, model.load_secs)
            put("process_gpu_memory_bytes", labels, model.process_gpu_bytes)
            put("model_memory_bytes", labels, model.memory_bytes)
            put("model_gpu_memory_estimate_bytes", labels, model.estimate_bytes)
            pool = model.kv_pool_bytes
            put("kv_cache_pool_gb", labels, None if pool is None else pool / BYTES_PER_GB)
            put("kv_cache_usage_percent", labels, model.kv_usage_percent)
            put("kv_cache_usage_supported", labels, int(model.kv_usage_percent is not None))
            put("kv_cache_pressure_flagged", labels, int(model.kv_pressure_flagged))
            self._put_counts(put, model, tally)
        return values

    def _put_counts(
        self, put: Callable[[str, Labels, Value | None], None], model: ModelSnapshot, tally: ModelTally
    ) -> None:
        labels = (model.model, model.device, model.kind)
        put("tokens_generated_total", labels, tally.tokens_generated)
        put("prompt_tokens_total", labels, tally.prompt_tokens)
        put("pool_capacity_rejected_total", (model.model,), tally.pool_capacity_rejected)
        put("own_budget_rejected_total", (model.model,), tally.own_budget_rejected)
        for reason, count in tally.restarts.items():
            put("worker_restarts_total", (*labels, reason), count)
        for gate, count in tally.context_length_exceeded.items():
            put("context_length_exceeded_total", (model.model, gate), count)
        served: Iterable[Modality] = KIND_MODALITIES.get(model.kind, ())
        for modality, count in tally.requests.items():
            if count or modality in served:
                put("requests_total", (*labels, modality), count)
                put("request_duration_seconds", (*labels, modality), tally.durations[modality])
        if model.kind in GENERATING_KINDS or tally.tokens_generated:
            put("ttft_seconds", labels, tally.ttft)
            put("inter_token_seconds", labels, tally.inter_token)
            put("schema_compile_seconds", labels, tally.schema_compile)
        if model.kind in SPEECH_KINDS:
            put("rtf_ratio", labels, tally.rtf)

    def _server_values(self) -> Mapping[str, list[Sample]]:
        metrics, snapshot = self.metrics, self.snapshot
        realtime, keys = metrics.realtime, metrics.keys
        values: dict[str, list[Sample]] = {
            "vram_total_bytes": [
                ((part.label, part.name), part.total_bytes) for part in snapshot.memory if part.total_bytes is not None
            ],
            "vram_used_bytes": [((part.label, part.name), part.used_bytes) for part in snapshot.memory],
            "ov_cache_bytes": [] if snapshot.ov_cache_bytes is None else [((), snapshot.ov_cache_bytes)],
            "ov_cache_pruned_bytes_total": [((), metrics.ov_cache_pruned_bytes)],
            "ov_cache_pruned_files_total": [((), metrics.ov_cache_pruned_files)],
            "key_usage_total": [((suffix,), count) for suffix, count in dict(keys.uses).items()],
            "key_last_seen_timestamp_seconds": [((suffix,), at) for suffix, at in keys.last_seen.items()],
            "realtime_connections_total": [((), realtime.connections)],
            "realtime_turns_total": [((result,), count) for result, count in realtime.turns.items()],
            "realtime_tts_sentences_total": [((result,), count) for result, count in realtime.sentences.items()],
            "realtime_stt_duration_seconds": [((), realtime.stt)],
            "realtime_llm_duration_seconds": [((), realtime.llm)],
        }
        return values


def _gauge(family: Family, samples: list[Sample]) -> Metric:
    name = PREFIX + family.name
    metric = GaugeMetricFamily(name, family.meaning, labels=family.labels)
    for labels, value in samples:
        assert not isinstance(value, Histogram)
        if family.also is None:
            metric.add_metric(labels, value)
        else:  # two label sets under one name: the samples say which
            label, text = labels
            metric.add_sample(name, {label: text}, value)
    return metric


def _counter(family: Family, samples: list[Sample]) -> Metric:
    metric = CounterMetricFamily(PREFIX + family.name, family.meaning, labels=family.labels)
    for labels, value in samples:
        assert not isinstance(value, Histogram)
        metric.add_metric(labels, value)
    return metric


def _histogram(family: Family, samples: list[Sample]) -> Metric:
    metric = HistogramMetricFamily(PREFIX + family.name, family.meaning, labels=family.labels)
    bounds = [*map(str, family.buckets), "+Inf"]
    for labels, value in samples:
        assert isinstance(value, Histogram)
        total = value.sum
        metric.add_metric(labels, list(zip(bounds, accumulate(list(value.counts)), strict=True)), total)
    return metric


_FAMILY_MAKERS: Final = {"gauge": _gauge, "counter": _counter, "histogram": _histogram}
