"""The table of per-model settings, and the ranges both tables share."""

from typing import Final

from rustedvino.config import types
from rustedvino.config.kinds import (
    Boolean,
    Choice,
    Group,
    Integer,
    ListOf,
    MapOf,
    Number,
    PathTo,
    PluginScalar,
    Setting,
    Text,
    device_fault,
    model_id_fault,
)
from rustedvino.config.plugin import plugin_property_fault

GB: Final = Number(0, 2**20)
SECS: Final = Number(0, 366 * 86_400)
SECS_ABOVE_0: Final = Number(0, 366 * 86_400, above=True)
MILLISECS: Final = Integer(0)
AT_LEAST_0: Final = Integer(0)
AT_LEAST_1: Final = Integer(1)
FLAG: Final = Boolean()
DEVICE: Final = Text("a device name", device_fault)
MODEL_ID: Final = Text("a model id", model_id_fault)
MODEL_KIND: Final = Choice(types.ModelKind)
NAMES: Final = ListOf(Text(), "texts")

SPECULATIVE: Final = (
    Setting("draft_model", MODEL_ID, meaning="Folder under models_dir of the small model that proposes tokens."),
    Setting(
        "draft_vram_gb",
        GB,
        default=None,
        unit="GB",
        meaning="Memory estimate of the draft model; null = its size on disk.",
    ),
    Setting("draft_device", DEVICE, default=None, meaning="Device of the draft model; null = that of its target."),
    Setting("num_assistant_tokens", Integer(1, 64), default=5, unit="tokens", meaning="Tokens proposed per step."),
    Setting(
        "verify_on_load",
        FLAG,
        default=True,
        meaning="Check at load, at full precision and with six short prompts, that greedy text with and without the "
        "draft model is the same. It takes two more loads and the memory of full precision.",
    ),
    Setting(
        "sampled_requests",
        Choice(types.SampledRequests),
        default="refuse",
        live=True,
        meaning="What becomes of a request with a temperature above 0, which the runtime cannot serve with a draft: "
        '"refuse" answers 400, "greedy" generates at temperature 0 and reports so in `sampling`. A request without a '
        "temperature is greedy on a model with a draft.",
    ),
)

MODEL: Final = (
    Setting(
        "vram_gb",
        GB,
        default=None,
        unit="GB",
        example=8.5,
        meaning="Memory estimate of the loaded model; null = its size on disk.",
    ),
    Setting(
        "kind",
        MODEL_KIND,
        default=None,
        example="text_gen",
        meaning="What the model does; null = detected from its files. It cannot be changed later.",
    ),
    Setting("pinned", FLAG, default=False, live=True, meaning="Never evict this model to make room for another."),
    Setting(
        "priority",
        Integer(-1_000_000, 1_000_000),
        default=0,
        live=True,
        meaning="Models of lower priority are evicted first.",
    ),
    Setting("evictable", FLAG, default=True, live=True, meaning="Whether the model may be evicted to make room."),
    Setting(
        "kv_cache_gb",
        GB,
        default=None,
        unit="GB",
        example=2.0,
        meaning="Size of this model's KV pool; null = default_kv_cache_gb, 0 = sized automatically.",
    ),
    Setting(
        "chat_template",
        PathTo("template"),
        default=None,
        meaning="Chat template in place of the model's own; a file under models_dir or the config's folder.",
    ),
    Setting(
        "max_concurrent_streams",
        AT_LEAST_1,
        default=None,
        example=8,
        unit="sequences",
        live=True,
        meaning="Running sequences of this model; null = max_num_seqs.",
    ),
    Setting(
        "load",
        Choice(types.LoadMode),
        default="eager",
        example="on_demand",
        live=True,
        meaning='"eager" loads at start; "on_demand" lets the first request start the load and wait for it.',
    ),
    Setting("device", DEVICE, default=None, example="GPU", meaning="Device of this model; null = by placement."),
    Setting(
        "tier_preference",
        ListOf(Choice(types.Tier), "device tiers: heavy, strong-igpu, weak-igpu, npu, fallback"),
        default=[],
        example=["heavy", "strong-igpu"],
        meaning="Tiers of devices to try, best first; empty = by the model's size.",
    ),
    Setting(
        "reasoning_parser",
        Choice(types.ReasoningParser),
        default=None,
        example="qwen3",
        meaning="How reasoning is told from the answer; null = detected from the chat template.",
    ),
    Setting(
        "max_prompt_len",
        AT_LEAST_1,
        default=None,
        unit="tokens",
        meaning="NPU only: longest prompt the model is compiled for; null = the runtime's 1024.",
    ),
    Setting(
        "min_response_len",
        AT_LEAST_1,
        default=None,
        unit="tokens",
        meaning="NPU only: room kept for the answer; null = the runtime's 128.",
    ),
    Setting(
        "speculative",
        Group(SPECULATIVE, types.SpeculativeSettings, "an object with the settings of a draft model"),
        default=None,
        meaning="Speculative decoding with a draft model; null = off.",
    ),
    Setting("precision", Text(), default=None, example="int4", meaning="Precision of the weights, reported only."),
    Setting("model_source", Text(), default=None, example="Qwen/Qwen3-8B", meaning="Origin, reported only."),
    Setting(
        "model_revision",
        Text(),
        default=None,
        example="main",
        meaning="Revision of the origin, reported only.",
    ),
    Setting(
        "capabilities",
        NAMES,
        default=[],
        example=["tool_calling"],
        live=True,
        meaning='What the model is good for, such as "tool_calling"; used to choose models and reported.',
    ),
    Setting(
        "eviction_grace_secs",
        SECS,
        default=None,
        example=10.0,
        unit="s",
        live=True,
        meaning="Idle time before this model may be evicted; null = the global setting.",
    ),
    Setting(
        "idle_unload_secs",
        SECS,
        default=None,
        example=900,
        unit="s",
        live=True,
        meaning="Unload this model when idle for so long, 0 = never; null = the global setting.",
    ),
    Setting(
        "plugin_config",
        MapOf(PluginScalar(), "OpenVINO properties", plugin_property_fault),
        default={},
        example={"PERFORMANCE_HINT": "LATENCY"},
        meaning="Further OpenVINO properties, from the list below.",
    ),
    Setting(
        "num_threads",
        AT_LEAST_1,
        default=None,
        unit="threads",
        meaning="CPU threads; null = the global setting.",
    ),
    Setting(
        "repetition_penalty",
        Number(0, 10, above=True),
        default=None,
        example=1.05,
        live=True,
        meaning="For requests that give none (never with tools or response_format); null = the model's own.",
    ),
)

MODEL_ENTRY: Final = Group(MODEL, types.ModelSettings, "an object with the settings of a model")
