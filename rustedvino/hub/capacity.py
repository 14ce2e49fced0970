"""What a loaded model has room for: sequences, tokens and blocks of its KV pool."""

from collections.abc import Mapping
from typing import Any

from attrs import frozen

from rustedvino.hub.errors import NeverFits, PromptTooLong, Unsupported
from rustedvino.hub.lease import GenerationRequest


@frozen
class Capacity:
    """Room of one loaded model. ``facts`` are its worker's, ``slots`` the sequences that may run at once."""

    model_id: str
    slots: int
    facts: Mapping[str, Any]

    @property
    def blocks_total(self) -> int:
        """Blocks of the KV pool; 0 before the first load."""
        return int(self.facts.get("num_kv_blocks", 0))

    @property
    def block_size(self) -> int:
        """Tokens per block."""
        return int(self.facts["block_size"])

    def blocks(self, request: GenerationRequest) -> int:
        """Blocks that one sequence of the request may come to need."""
        return -(-(request.prompt_tokens + self.new_tokens(request)) // self.block_size)

    def new_tokens(self, request: GenerationRequest) -> int:
        """Tokens that one sequence of the request may generate: what it asks for, within context and pool."""
        wanted = request.max_new_tokens
        if "context_tokens" in self.facts:  # less than the model's own
            wanted = max(1, min(wanted, self.facts["context_tokens"] - request.prompt_tokens))
        if not request.shrinkable:
            return wanted
        per_sequence = self.blocks_total // request.sequences * self.block_size
        return max(1, min(wanted, per_sequence - request.prompt_tokens))

    def check(self, request: GenerationRequest) -> None:
        """Raise PromptTooLong, Unsupported or NeverFits for a request that the model, even idle, could not run."""
        self._check_supported(request)
        if request.sequences > self.slots:
            raise NeverFits(
                f"n is {request.sequences}, but {self.model_id!r} runs at most {self.slots} sequences at once",
                field="n",
            )
        needed = self.blocks(request) * request.sequences
        if needed > self.blocks_total:
            size = self.block_size
            raise NeverFits(
                f"{request.sequences} × ({request.prompt_tokens} prompt + {self.new_tokens(request)} new tokens) need "
                f"{needed * size} tokens of KV pool; the pool of {self.model_id!r} holds {self.blocks_total * size}",
                field="max_tokens" if not request.shrinkable else request.prompt_field,
            )

    def _check_supported(self, request: GenerationRequest) -> None:
        most = self.facts.get("max_prompt_tokens")
        if most is not None and request.prompt_tokens > most:
            setting = self.facts.get("max_prompt_setting")
            reason = "a model with a draft takes no more" if setting is None else f"the setting {setting}"
            raise PromptTooLong(
                f"the prompt has {request.prompt_tokens} tokens; {self.model_id!r} takes at most {most} ({reason})",
                field=request.prompt_field,
            )
        for name, reason in self.facts.get("refuses", {}).items():
            if any(options.get(name) for options in request.options):
                raise Unsupported(f"'{name}' cannot be used with {self.model_id!r}: {reason}", field=name)
