"""What an operation of an administrator is refused with, one class per remedy."""

from rustedvino.config.kinds import model_id_fault


class AdminRefusal(Exception):
    """An operation that was not carried out. ``code`` is the wire code."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.message = message
        self.code = code


class BadSetting(AdminRefusal):
    """Something given is wrong: correct it. ``field`` is its path."""

    def __init__(self, field: str, message: str, code: str = "invalid_value") -> None:
        super().__init__(message, code)
        self.field = field


class WrongState(AdminRefusal):
    """The model's state, or the file's, does not allow it."""


class Cooldown(AdminRefusal):
    """It was done too short a time ago."""

    def __init__(self, message: str, retry_after_secs: float) -> None:
        super().__init__(message, "resize_cooldown")
        self.retry_after_secs = retry_after_secs


def check_model_id(model_id: str) -> None:
    """Raise BadSetting for a text that cannot be a model id."""
    fault = model_id_fault(model_id)
    if fault is not None:
        raise BadSetting("model_id", fault)
