"""What can go wrong for a request inside the hub, one class per remedy."""

from typing import ClassVar


class HubError(Exception):
    """Base. ``code`` is the wire code; ``retry_after_secs`` is None where a retry would not help."""

    code: ClassVar[str] = "internal_error"

    def __init__(self, message: str, *, retry_after_secs: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_secs = retry_after_secs


class UnknownModel(HubError):
    """No model of that id is configured: fix the id."""

    code = "model_not_found"


class UnknownSession(HubError):
    """No voice session of that id is open: it has ended, or never was."""

    code = "session_not_found"


class Busy(HubError):
    """The waiting line is full, or the wait ended before a slot was free: try again later."""

    code = "rate_limit_exceeded"


class NotReady(HubError):
    """The model cannot take the request now. ``code`` says why."""

    def __init__(self, code: str, message: str, *, retry_after_secs: float | None) -> None:
        super().__init__(message, retry_after_secs=retry_after_secs)
        self.reason = code


class WorkerLost(HubError):
    """The worker ended while it ran the request: try again."""

    code = "worker_lost"


class DevicePoisoned(WorkerLost):
    """The worker's device refused all further work; a fresh worker opens it anew: try again."""

    code = "gpu_poisoned"


class Unloading(HubError):
    """The request was ended by an unload or by the shutdown: try again."""

    code = "model_unloading"


class NeverFits(HubError):
    """The request alone is larger than the model's KV pool or batch: ask for less. ``field`` names what."""

    code = "pool_capacity_exceeded"

    def __init__(self, message: str, *, field: str) -> None:
        super().__init__(message)
        self.field = field


class PromptTooLong(NeverFits):
    """The prompt alone is longer than the loaded model takes: shorten it."""

    code = "context_length_exceeded"


class Unsupported(NeverFits):
    """The loaded model cannot do what ``field`` asks for: leave it out."""

    code = "unsupported_value"


class BadInput(HubError):
    """The engine refused the request's content: change it."""

    code = "invalid_value"


class Suspect(HubError):
    """The same request was running in two worker deaths: it is not run again."""

    code = "request_refused"


class EngineFailed(HubError):
    """The engine gave no proper result for this request although it took it."""

    code = "engine_error"
