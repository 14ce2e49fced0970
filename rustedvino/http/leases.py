"""Leases of the request that is being answered: given back and counted when it ends, however it ends."""

import contextlib
from collections.abc import Iterator
from typing import Literal

from quart import Request

from rustedvino.api.errors import ApiError
from rustedvino.http.asgi import request_access, request_cleanup
from rustedvino.hub.hub import Model
from rustedvino.hub.lease import GenerationRequest, Lease


class Leases:
    """Takes leases of one model for one request."""

    def __init__(self, request: Request, model: Model) -> None:
        self._cleanup = request_cleanup(request)
        self._access = request_access(request)
        self._access.model = model.actor.model_id
        self._actor = model.actor

    async def take(self, plan: GenerationRequest) -> Lease:
        """Wait for a lease; it is closed with the request. Raises HubError."""
        lease = await self._actor.lease(plan)
        self._cleanup.callback(self._end, lease)
        return lease

    def _end(self, lease: Lease) -> None:
        lease.close()
        access = self._access
        access.prompt_tokens = (access.prompt_tokens or 0) + lease.request.prompt_tokens
        access.completion_tokens = (access.completion_tokens or 0) + sum(
            len(sequence.tokens) for sequence in lease.sequences
        )


@contextlib.contextmanager
def counting_context_errors(model: Model, gate: Literal["length", "tokens", "max_prompt_len"]) -> Iterator[None]:
    """Count the prompts that a gate finds too long for the model."""
    try:
        yield
    except ApiError as error:
        if error.code == "context_length_exceeded":
            model.actor.tally.context_length_exceeded[gate] += 1
        raise
