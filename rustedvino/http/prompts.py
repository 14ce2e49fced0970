"""Prompts in the log, for who asked for them with ``log_prompts``."""

import logging

from rustedvino.config.types import ServerSettings

log = logging.getLogger("rustedvino.prompts")


def log_prompt(settings: ServerSettings, model_id: str, prompt: str) -> None:
    """Log what a model is about to read, as text. Credentials in it are masked as everywhere in the log."""
    if settings.log_prompts:
        log.info("prompt of %d characters: %s", len(prompt), prompt, extra={"model": model_id})
