"""Settings of the server: their types, the table that explains them, and reading them from a file."""

from rustedvino.config.load import (
    check_bind,
    demo_config,
    dump_settings,
    is_loopback,
    load_config,
    read_model_settings,
    read_settings,
)
from rustedvino.config.problems import ConfigError, ConfigProblem
from rustedvino.config.types import (
    LoadedConfig,
    ModelSettings,
    RealtimeDefaults,
    RealtimeLlmMinimum,
    RealtimeViableMinimum,
    ServerSettings,
    SpeculativeSettings,
    SupervisorSettings,
    gb_to_bytes,
)

__all__ = [
    "ConfigError",
    "ConfigProblem",
    "LoadedConfig",
    "ModelSettings",
    "RealtimeDefaults",
    "RealtimeLlmMinimum",
    "RealtimeViableMinimum",
    "ServerSettings",
    "SpeculativeSettings",
    "SupervisorSettings",
    "check_bind",
    "demo_config",
    "dump_settings",
    "gb_to_bytes",
    "is_loopback",
    "load_config",
    "read_model_settings",
    "read_settings",
]
