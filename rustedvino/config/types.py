"""The settings as frozen values. Names, defaults and units are explained in `rustedvino.config.table`."""

from pathlib import Path
from typing import Final, Literal

from attrs import Factory, frozen

Placement = Literal["auto", "device"]
KvCachePrecision = Literal["", "u8", "f16", "f32"]
EmbeddingPooling = Literal["mean", "cls", "last_token"]
LogLevel = Literal["debug", "info", "warning", "error", "critical"]
LogFormat = Literal["text", "json"]
ModelKind = Literal["text_gen", "vision", "embedding", "reranking", "stt", "tts", "image_gen", "decision"]
LoadMode = Literal["eager", "on_demand"]
Tier = Literal["heavy", "strong-igpu", "weak-igpu", "npu", "fallback"]
ReasoningParser = Literal["qwen3", "gpt_oss", "mistral", "phi"]
SampledRequests = Literal["refuse", "greedy"]
PluginValue = str | bool | int | float

BYTES_PER_GB: Final = 2**30
UNLIMITED_NUM_SEQS: Final = 256
"""What ``max_num_seqs`` 0 stands for."""


def gb_to_bytes(gb: float) -> int:
    """Whole bytes of a size in GB; everywhere in this project 1 GB is 2**30 bytes."""
    return round(gb * BYTES_PER_GB)


@frozen(kw_only=True)
class SpeculativeSettings:
    """A draft model that proposes tokens for the model it is set on."""

    draft_model: str
    draft_vram_gb: float | None = None
    draft_device: str | None = None
    num_assistant_tokens: int = 5
    verify_on_load: bool = True
    sampled_requests: SampledRequests = "refuse"


@frozen(kw_only=True)
class ModelSettings:
    """One entry of ``models``. None means: detected, or as the global setting says."""

    vram_gb: float | None = None
    kind: ModelKind | None = None
    pinned: bool = False
    priority: int = 0
    evictable: bool = True
    kv_cache_gb: float | None = None
    chat_template: Path | None = None
    max_concurrent_streams: int | None = None
    load: LoadMode = "eager"
    device: str | None = None
    tier_preference: tuple[Tier, ...] = ()
    reasoning_parser: ReasoningParser | None = None
    max_prompt_len: int | None = None
    min_response_len: int | None = None
    speculative: SpeculativeSettings | None = None
    precision: str | None = None
    model_source: str | None = None
    model_revision: str | None = None
    capabilities: tuple[str, ...] = ()
    eviction_grace_secs: float | None = None
    idle_unload_secs: float | None = None
    plugin_config: dict[str, PluginValue] = Factory(dict)
    num_threads: int | None = None
    repetition_penalty: float | None = None


@frozen(kw_only=True)
class RealtimeDefaults:
    """Model ids a voice session uses when the client names none."""

    stt_model: str | None = None
    llm_model: str | None = None
    tts_model: str | None = None
    embed_model: str | None = None


@frozen(kw_only=True)
class RealtimeLlmMinimum:
    """What a language model needs to be chosen for a voice session."""

    kinds: tuple[ModelKind, ...] = ()
    min_context_tokens: int = 0
    require_capabilities: tuple[str, ...] = ()


@frozen(kw_only=True)
class RealtimeViableMinimum:
    """What models need to be chosen for a voice session."""

    llm: RealtimeLlmMinimum = RealtimeLlmMinimum()


@frozen(kw_only=True)
class SupervisorSettings:
    """How ``--supervise`` and the actors restart what died."""

    backoff_base_secs: float = 5.0
    backoff_max_secs: float = 60.0
    max_restarts: int = 5
    restart_window_secs: float = 600.0
    health_timeout_secs: float = 90.0
    hang_kill_grace_secs: float = 10.0
    watchdog_poll_secs: float = 30.0
    watchdog_hang_ceiling_secs: float = 600.0


@frozen(kw_only=True)
class ServerSettings:
    """Every global setting; paths are absolute when read by `load_config`."""

    models_dir: Path
    device: str
    default_placement: Placement = "auto"
    preload: tuple[str, ...] = ()
    models: dict[str, ModelSettings] = Factory(dict)
    total_vram_gb: float
    max_num_seqs: int = 16
    max_num_batched_tokens: int = 512
    num_threads: int | None = None
    cache_size_gb: float = 0.0
    default_kv_cache_gb: float = 0.0
    vram_safety_margin_gb: float = 1.0
    min_kv_cache_gb: float = 1.0
    system_ram_reservation_gb: float | None = None
    system_ram_budget_gb: float | None = None
    light_model_max_gb: float = 2.0
    light_stt_max_gb: float = 1.0
    dgpu_size_ceiling_fraction: float = 0.8
    domain_budgets: dict[str, float] = Factory(dict)
    device_budgets: dict[str, int] = Factory(dict)
    device_admission_queue_timeout_ms: int = 5000
    admission_queue_timeout_ms: int = 5000
    max_queue_depth: int = 128
    kv_cache_precision: KvCachePrecision = "u8"
    enable_prefix_caching: bool = True
    npu_footprint_factor: float = 1.5
    cors_allowed_origins: tuple[str, ...] = ()
    keys_file: Path | None = None
    eviction_grace_secs: float = 2.0
    min_residency_secs: float = 10.0
    load_timeout_secs: float = 600.0
    load_wait_secs: float = 300.0
    drain_timeout_secs: float = 30.0
    shutdown_drain_secs: float = 30.0
    worker_stall_secs: float = 60.0
    client_stall_secs: float = 60.0
    spare_workers: int = 1
    allow_remote_images: bool = False
    realtime_defaults: RealtimeDefaults | None = None
    realtime_viable_minimum: RealtimeViableMinimum | None = None
    embedding_device: str | None = None
    default_embed_model: str | None = None
    embedding_pooling: EmbeddingPooling = "mean"
    embedding_normalize: bool = True
    max_prompt_array: int = 16
    max_embedding_inputs: int = 256
    max_embedding_batch_tokens: int = 32768
    max_tokens_cap: int = 8192
    bind_addr: str = "127.0.0.1"
    port: int = 11437
    allow_insecure_public_bind: bool = False
    ov_cache_dir: Path | None = None
    ov_cache_max_gb: float = 0.0
    ov_cache_sweep_interval_secs: float = 21600.0
    kv_pressure_monitor_enabled: bool = False
    kv_pressure_threshold_pct: float | None = None
    kv_pressure_sustained_secs: float | None = None
    kv_pressure_sweep_interval_secs: float = 15.0
    kv_resize_cooldown_secs: float = 30.0
    idle_unload_secs: float = 0.0
    sse_keepalive_secs: float = 15.0
    log_level: LogLevel = "info"
    log_format: LogFormat = "text"
    log_prompts: bool = False
    supervisor: SupervisorSettings = SupervisorSettings()

    @property
    def max_running_seqs(self) -> int:
        """``max_num_seqs`` with 0 replaced by what it stands for."""
        return self.max_num_seqs or UNLIMITED_NUM_SEQS


@frozen(kw_only=True)
class LoadedConfig:
    """Settings and where they came from.

    ``path`` is the absolute path of the file, None for built-in settings; relative paths start at ``folder``;
    ``raw`` is the file's content as it was written, for saving changes without adding defaults.
    """

    settings: ServerSettings
    path: Path | None
    folder: Path
    raw: dict[str, object]

    @property
    def keys_path(self) -> Path | None:
        """Where the keys are read from; the file need not exist. None for built-in settings."""
        if self.settings.keys_file is not None:
            return self.settings.keys_file
        return None if self.path is None else self.path.with_name(keys_file_name(self.path))


def keys_file_name(config_path: Path) -> str:
    """The name of the keys file that belongs beside a config file (``config.json``: ``config.keys.json``)."""
    return f"{config_path.stem}.keys.json"
