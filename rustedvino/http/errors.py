"""From what the hub says to what a client is told."""

from rustedvino.api import errors as api
from rustedvino.api.errors import ApiError
from rustedvino.hub.errors import (
    BadInput,
    Busy,
    EngineFailed,
    HubError,
    NeverFits,
    NotReady,
    Suspect,
    UnknownModel,
    UnknownSession,
)

DEFAULT_RETRY_AFTER_SECS = 1.0


def from_hub(error: HubError, request_id: str) -> ApiError:
    """The answer to a request that the hub could not serve."""
    retry = error.retry_after_secs if error.retry_after_secs is not None else DEFAULT_RETRY_AFTER_SECS
    match error:
        case UnknownModel():
            return ApiError(404, error.message, param="model", code=error.code)
        case UnknownSession():
            return ApiError(404, error.message, code=error.code)
        case Busy():
            return api.rate_limited(error.message, retry)
        case NotReady():
            return api.unavailable(error.reason, error.message, retry)
        case NeverFits():
            return api.bad_request(error.message, error.field, error.code)
        case BadInput():
            return api.bad_request(error.message, None, error.code)
        case Suspect() | EngineFailed():
            message = f"{error.message} (request id: {request_id})"
            return ApiError(500, message, type=api.SERVER, code=error.code)
        case _:
            return api.unavailable(error.code, error.message, retry)
