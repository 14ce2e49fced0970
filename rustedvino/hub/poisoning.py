"""Which devices were lost to a worker: a driver error after which the device refuses that process all further work."""

import time

from attrs import define, frozen


@frozen(kw_only=True)
class Poisoning:
    """One loss. ``at`` is in seconds since 1970."""

    device: str
    model_id: str
    at: float


@define(eq=False)
class PoisonRecord:
    """The losses since the start of the server. It outlives the models that they happened to."""

    count: int = 0
    last: Poisoning | None = None

    def note(self, model_id: str, device: str) -> None:
        """A worker of the model has lost its device just now."""
        self.count += 1
        self.last = Poisoning(device=device, model_id=model_id, at=time.time())
