"""The tables of settings that stand in objects of their own inside the global ones."""

from typing import Final

from rustedvino.config import types
from rustedvino.config.kinds import Group, ListOf, Setting
from rustedvino.config.model_table import (
    AT_LEAST_0,
    MODEL_ID,
    MODEL_KIND,
    NAMES,
    SECS,
    SECS_ABOVE_0,
)

REALTIME_DEFAULTS: Final = (
    Setting("stt_model", MODEL_ID, default=None, meaning="Speech recognition."),
    Setting("llm_model", MODEL_ID, default=None, meaning="The model that answers."),
    Setting("tts_model", MODEL_ID, default=None, meaning="Speech synthesis."),
    Setting("embed_model", MODEL_ID, default=None, meaning="Embeddings for the memory of a session."),
)

REALTIME_LLM_MINIMUM: Final = (
    Setting("kinds", ListOf(MODEL_KIND, "model kinds"), default=[], meaning="Kinds that will do; empty = any."),
    Setting("min_context_tokens", AT_LEAST_0, default=0, unit="tokens", meaning="Least context length."),
    Setting("require_capabilities", NAMES, default=[], meaning="Capabilities a model must list."),
)

REALTIME_VIABLE_MINIMUM: Final = (
    Setting(
        "llm",
        Group(REALTIME_LLM_MINIMUM, types.RealtimeLlmMinimum, "an object with minimums of a language model"),
        default={},
        meaning="Minimums of the model that answers.",
    ),
)

SUPERVISOR: Final = (
    Setting(
        "backoff_base_secs",
        SECS_ABOVE_0,
        default=5,
        unit="s",
        meaning="Wait before the first restart; doubles each time.",
    ),
    Setting("backoff_max_secs", SECS_ABOVE_0, default=60, unit="s", meaning="Longest wait before a restart."),
    Setting("max_restarts", AT_LEAST_0, default=5, meaning="Restarts within restart_window_secs before giving up."),
    Setting(
        "restart_window_secs",
        SECS_ABOVE_0,
        default=600,
        unit="s",
        meaning="Time over which restarts are counted.",
    ),
    Setting(
        "health_timeout_secs",
        SECS_ABOVE_0,
        default=90,
        unit="s",
        meaning="Time a start may take to become healthy.",
    ),
    Setting(
        "hang_kill_grace_secs",
        SECS,
        default=10,
        unit="s",
        meaning="Time between asking a hung process to end and killing it.",
    ),
    Setting(
        "watchdog_poll_secs",
        SECS_ABOVE_0,
        default=30,
        unit="s",
        meaning="Time between looks at the oldest generation.",
    ),
    Setting(
        "watchdog_hang_ceiling_secs",
        SECS_ABOVE_0,
        default=600,
        unit="s",
        meaning="Age at which a generation counts as hung.",
    ),
)
