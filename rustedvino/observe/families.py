"""The contract of ``/metrics``: every family with its type, labels and meaning. docs/METRICS.md is compared with it.

``python -m rustedvino.observe.families`` prints the table of that page.
"""

from typing import Final, Literal

from attrs import frozen

PREFIX: Final = "rustedvino_"

FamilyType = Literal["gauge", "counter", "histogram"]
Modality = Literal["text", "vision", "embedding", "rerank", "transcription", "speech", "image", "decision"]
RestartReason = Literal["crash", "engine_fault", "oom", "stall", "protocol", "gpu_poisoned", "start_failed"]
ContextGate = Literal["length", "tokens", "max_prompt_len"]
TurnResult = Literal["ok", "stt_error", "llm_error", "cancelled", "barge_in", "admission_rejected"]
SentenceResult = Literal["ok", "dropped"]

TTFT_BUCKETS: Final = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0, 10.0)
DURATION_BUCKETS: Final = (0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0)
RTF_BUCKETS: Final = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 5.0)
SCHEMA_COMPILE_BUCKETS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0)
INTER_TOKEN_BUCKETS: Final = (0.005, 0.01, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0)

MODEL: Final = ("model", "device", "kind")

KIND_MODALITIES: Final[dict[str, tuple[Modality, ...]]] = {
    "text_gen": ("text",),
    "vision": ("text", "vision"),
    "embedding": ("embedding",),
    "reranking": ("rerank",),
    "stt": ("transcription",),
    "tts": ("speech",),
    "image_gen": ("image",),
    "decision": ("decision",),
}
"""Which modalities a kind serves: their counters are there, at 0, before the first request. Others appear when used."""
GENERATING_KINDS: Final = frozenset({"text_gen", "vision"})
SPEECH_KINDS: Final = frozenset({"stt", "tts"})


@frozen
class Family:
    """One metric. ``name`` is without the prefix, with ``_total`` on a counter; ``labels`` are those of its samples.

    ``also`` is a second set of labels that samples of the same name may have instead.
    """

    name: str
    type: FamilyType
    labels: tuple[str, ...]
    meaning: str
    also: tuple[str, ...] | None = None
    buckets: tuple[float, ...] = ()


FAMILIES: Final = (
    Family("model_loaded", "gauge", MODEL, "1 while the model is ready for requests, else 0."),
    Family("model_load_duration_seconds", "gauge", MODEL, "How long the load of the resident model took."),
    Family("model_pinned", "gauge", MODEL, "1 when the model is never evicted."),
    Family("model_priority", "gauge", MODEL, "Its eviction priority; the lowest goes first."),
    Family("requests_running", "gauge", MODEL, "Sequences that run now (n=4 counts four)."),
    Family("requests_max", "gauge", MODEL, "Sequences that may run at once."),
    Family("requests_waiting", "gauge", MODEL, "Requests that wait for a slot or for a load."),
    Family("requests_total", "counter", (*MODEL, "modality"), "Requests that were admitted to the model."),
    Family("tokens_generated_total", "counter", MODEL, "Tokens that the model generated."),
    Family("prompt_tokens_total", "counter", MODEL, "Prompt tokens of admitted requests."),
    Family("tokens_per_second", "gauge", MODEL, "Generated tokens per second over the last 5 to 10 s, all sequences."),
    Family("worker_restarts_total", "counter", (*MODEL, "reason"), "Restarts of the model's worker, by what ended it."),
    Family(
        "context_length_exceeded_total",
        "counter",
        ("model", "gate"),
        "Prompts refused as too long: by their length alone, by their tokens, or by an NPU's max_prompt_len.",
    ),
    Family(
        "pool_capacity_rejected_total",
        "counter",
        ("model",),
        "Requests refused with 429 because the KV pool or the slots stayed full.",
    ),
    Family(
        "own_budget_rejected_total",
        "counter",
        ("model",),
        "Requests refused with 400 because alone they need more than the model's whole KV pool or slots.",
    ),
    Family(
        "ttft_seconds",
        "histogram",
        MODEL,
        "From the request's arrival to the first token of each sequence, waiting included.",
        buckets=TTFT_BUCKETS,
    ),
    Family(
        "inter_token_seconds",
        "histogram",
        MODEL,
        "Between one token of a sequence and the next; tokens that come together share their gap.",
        buckets=INTER_TOKEN_BUCKETS,
    ),
    Family(
        "request_duration_seconds",
        "histogram",
        (*MODEL, "modality"),
        "From a request's arrival to the end of its answer.",
        buckets=DURATION_BUCKETS,
    ),
    Family(
        "rtf_ratio",
        "histogram",
        MODEL,
        "Processing time of speech divided by the length of the audio; below 1 is faster than real time.",
        buckets=RTF_BUCKETS,
    ),
    Family(
        "schema_compile_seconds",
        "histogram",
        MODEL,
        "Length of the steps that compiled an output schema new to the model's worker; all its streams wait for one.",
        buckets=SCHEMA_COMPILE_BUCKETS,
    ),
    Family(
        "vram_total_bytes",
        "gauge",
        ("device",),
        "Memory that models may use: once by device, once by memory domain. Do not add the two.",
        also=("domain",),
    ),
    Family(
        "vram_used_bytes",
        "gauge",
        ("device",),
        "Memory that models are charged for: once by device, once by memory domain. Do not add the two.",
        also=("domain",),
    ),
    Family("process_gpu_memory_bytes", "gauge", MODEL, "GPU memory of the model's process as the driver reports it."),
    Family("model_memory_bytes", "gauge", MODEL, "Memory of the model's own process, measured: system and GPU memory."),
    Family("model_gpu_memory_estimate_bytes", "gauge", MODEL, "What it was estimated to need when it was loaded."),
    Family("kv_cache_pool_gb", "gauge", MODEL, "Size of its KV pool; 1 GB is 2**30 bytes."),
    Family("kv_cache_usage_percent", "gauge", MODEL, "Used share of its KV pool, 0 to 100."),
    Family("kv_cache_usage_supported", "gauge", MODEL, "1 while the runtime reports the use of its KV pool, else 0."),
    Family(
        "kv_cache_pressure_flagged",
        "gauge",
        MODEL,
        "1 while the use of its KV pool stays at or above kv_pressure_threshold_pct, see kv_pressure_monitor_enabled.",
    ),
    Family("ov_cache_bytes", "gauge", (), "Size of the compile cache; absent when there is none or it cannot be read."),
    Family("ov_cache_pruned_bytes_total", "counter", (), "Bytes removed from the compile cache to keep its cap."),
    Family("ov_cache_pruned_files_total", "counter", (), "Files removed from the compile cache to keep its cap."),
    Family(
        "key_usage_total",
        "counter",
        ("key_suffix",),
        "Authenticated requests by the last 6 characters of their key; keys under 12 characters are not shown.",
    ),
    Family(
        "key_last_seen_timestamp_seconds",
        "gauge",
        ("key_suffix",),
        "When the key was last used, in seconds since 1970; absent before its first use.",
    ),
    Family("realtime_connections_total", "counter", (), "Voice sessions that were opened."),
    Family("realtime_turns_total", "counter", ("result",), "Turns of voice sessions by how they ended."),
    Family(
        "realtime_stt_duration_seconds",
        "histogram",
        (),
        "Time to the transcript of what was said in a turn.",
        buckets=DURATION_BUCKETS,
    ),
    Family(
        "realtime_llm_duration_seconds",
        "histogram",
        (),
        "Time of a turn's generation.",
        buckets=DURATION_BUCKETS,
    ),
    Family("realtime_tts_sentences_total", "counter", ("result",), "Sentences spoken, and those dropped."),
)


def markdown_table() -> str:
    """The table of docs/METRICS.md."""
    lines = ["| name | type | labels | meaning |", "|---|---|---|---|"]
    for family in FAMILIES:
        labels = ", ".join(family.labels) or "–"
        if family.also is not None:
            labels += " or " + ", ".join(family.also)
        lines.append(f"| `{PREFIX}{family.name}` | {family.type} | {labels} | {family.meaning} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(markdown_table())
