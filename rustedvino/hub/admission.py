"""Who may run next: one waiting line per device, for the slots of its models and its own budget together.

Model slot and device slot are taken in one step, so nobody holds one while waiting for the other.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from attrs import define, field

# How often a waiter that does not fit may be overtaken by later ones that do.
MAX_OVERTAKEN: Final = 8


class Target(Protocol):
    """The model side of an admission."""

    @property
    def open(self) -> bool:
        """Whether the model takes requests now."""

    def fits(self, waiter: "Waiter") -> bool:
        """Whether slots and KV blocks for the waiter are free now."""


@define(eq=False)
class Waiter:
    """One request in line; ``target`` knows what it needs. ``admit`` is called once, by ``pump``, and may not raise."""

    target: Target
    admit: Callable[[], None]
    overtaken: int = 0


@define(eq=False)
class DeviceQueue:
    """The line of one device. First come first served per model, with bounded overtaking by what fits.

    ``budget`` is the most requests in flight across all models of the device; None is no limit.
    """

    budget: int | None = None
    in_flight: int = 0
    _waiters: deque[Waiter] = field(factory=deque)
    _pumping: bool = False

    @property
    def full(self) -> bool:
        """Whether the budget is used up, so that nobody may go, whatever the models have free."""
        return self.budget is not None and self.in_flight >= self.budget

    def waiting(self, target: Target) -> int:
        """How many requests wait for that model."""
        return sum(1 for waiter in self._waiters if waiter.target is target)

    def enter(self, waiter: Waiter) -> None:
        """Join the line, and leave it at once if there is room."""
        self._waiters.append(waiter)
        self.pump()

    def discard(self, waiter: Waiter) -> None:
        """Leave the line without having been admitted. Harmless for one that was."""
        if waiter in self._waiters:
            self._waiters.remove(waiter)
            self.pump()  # it may have been the one that others could not overtake any more

    def release(self) -> None:
        """An admitted request ended."""
        assert self.in_flight > 0
        self.in_flight -= 1
        self.pump()

    def pump(self) -> None:
        """Admit everybody who may go now."""
        if self._pumping:  # an admission that fails at once releases from inside
            return
        self._pumping = True
        try:
            while self._admit_one():
                pass
        finally:
            self._pumping = False

    def _admit_one(self) -> bool:
        if self.full:
            return False
        passed: dict[int, list[Waiter]] = {}
        for waiter in self._waiters:
            target = waiter.target
            if not target.open:
                continue
            before = passed.setdefault(id(target), [])
            if before and before[0].overtaken >= MAX_OVERTAKEN:
                continue
            if target.fits(waiter):
                for earlier in before:
                    earlier.overtaken += 1
                self._waiters.remove(waiter)
                self.in_flight += 1
                waiter.admit()
                return True
            before.append(waiter)
        return False
