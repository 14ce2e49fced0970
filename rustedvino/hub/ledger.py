"""The memory ledger: what every domain may hold, and what each model is charged there."""

import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from attrs import define, field, frozen

from rustedvino.config.types import BYTES_PER_GB, ServerSettings, gb_to_bytes
from rustedvino.hub.inventory import SYSTEM_RAM, Inventory

SYSTEM_RAM_RESERVATION_BYTES: Final[Mapping[str, int]] = MappingProxyType(
    {"linux": 2 * BYTES_PER_GB, "win32": 4 * BYTES_PER_GB, "darwin": 4 * BYTES_PER_GB}
)
"""RAM left to the system and other programs where the settings do not say, by ``sys.platform``."""
MAX_RESERVED_SHARE: Final = 0.5
"""The reservation of the table never takes more than this share of a small machine."""
SPILL_TOLERANCE: Final = 0.9
"""A model counts as spilled when less than this share of what it should hold on its card is there."""


class OverBudget(Exception):
    """A reservation does not fit; nothing was changed. The numbers are of the domain that lacks most."""

    def __init__(self, domain: str, needed_bytes: int, free_bytes: int, budget_bytes: int) -> None:
        super().__init__(f"{domain}: {needed_bytes} bytes needed, {free_bytes} of {budget_bytes} free")
        self.domain = domain
        self.needed_bytes = needed_bytes
        self.free_bytes = free_bytes
        self.budget_bytes = budget_bytes


@frozen(kw_only=True)
class DomainBudget:
    """What a domain may hold. ``budget_bytes`` None: not gated. ``source`` names where the number is from."""

    domain: str
    budget_bytes: int | None
    reported_bytes: int | None
    source: str


@frozen(kw_only=True)
class DomainView:
    """A domain at one moment."""

    domain: str
    budget_bytes: int | None
    used_bytes: int

    @property
    def free_bytes(self) -> int | None:
        """What may still be reserved, never negative; None when the domain is not gated."""
        return None if self.budget_bytes is None else max(0, self.budget_bytes - self.used_bytes)

    @property
    def over_bytes(self) -> int:
        """How far measured use is over the budget."""
        return 0 if self.budget_bytes is None else max(0, self.used_bytes - self.budget_bytes)


@frozen
class LedgerView:
    """All domains at one moment, by name."""

    domains: Mapping[str, DomainView]

    def budget_bytes(self, domain: str) -> int | None:
        """The budget of a domain; None when it is not gated."""
        return self.domains[domain].budget_bytes

    def shortfall(self, demand: Mapping[str, int], freed: Mapping[str, int] | None = None) -> dict[str, int]:
        """Bytes that lack for ``demand``, by domain, once ``freed`` is given back; empty when it fits.

        Only domains in which something is asked for can lack: one that is over its budget blocks none elsewhere.
        """
        lacking: dict[str, int] = {}
        for domain, needed in demand.items():
            view = self.domains[domain]
            if view.budget_bytes is None or needed <= 0:
                continue
            used = view.used_bytes - (freed or {}).get(domain, 0)
            if used + needed > view.budget_bytes:
                lacking[domain] = used + needed - view.budget_bytes
        return lacking

    def slack_bytes(self, domain: str, demand: Mapping[str, int], freed: Mapping[str, int]) -> int | None:
        """What is left in a domain beside ``demand``, once ``freed`` is given back; None when it is not gated."""
        view = self.domains[domain]
        if view.budget_bytes is None:
            return None
        return max(0, view.budget_bytes - view.used_bytes + freed.get(domain, 0) - demand.get(domain, 0))


@frozen(kw_only=True)
class Reservation:
    """What one model was granted and what it was seen to use at most, in bytes by domain."""

    model_id: str
    reserved: Mapping[str, int]
    measured_peak: Mapping[str, int] = field(factory=dict)

    @property
    def charges(self) -> dict[str, int]:
        """What the model is charged by domain: the greater of reservation and measured peak."""
        return {
            domain: max(self.reserved.get(domain, 0), self.measured_peak.get(domain, 0))
            for domain in {**self.reserved, **self.measured_peak}
        }

    @property
    def overshoot(self) -> dict[str, int]:
        """By how much the peak is above the reservation, for the domains where it is."""
        return {
            domain: peak - self.reserved.get(domain, 0)
            for domain, peak in self.measured_peak.items()
            if peak > self.reserved.get(domain, 0)
        }


@define(eq=False)
class Ledger:
    """Charges of all models and of the processes beside them. Not for more than one thread.

    The used bytes of a domain are always the sum of what ``charges`` and ``overheads`` say: nothing is counted up and
    down, so nothing can drift.
    """

    budgets: Mapping[str, DomainBudget]
    _models: dict[str, Reservation] = field(factory=dict, init=False)
    _overheads: dict[str, int] = field(factory=dict, init=False)

    def reserve(self, model_id: str, demand: Mapping[str, int]) -> Reservation:
        """Charge a model for ``demand`` bytes by domain. Raises OverBudget, and then nothing is charged.

        ValueError for a model that is charged already: a model has one process, and its charge ends with it.
        """
        if model_id in self._models:
            raise ValueError(f"{model_id} is in the ledger already")
        self._check(demand, self.view())
        return self._store(Reservation(model_id=model_id, reserved=dict(demand)))

    def resize(self, model_id: str, demand: Mapping[str, int]) -> Reservation:
        """Replace the reservation of a live model; its measured peak stays. Raises OverBudget, changing nothing.

        A smaller reservation always succeeds, also in a domain that is over its budget.
        """
        now = self._models[model_id]
        new = Reservation(model_id=model_id, reserved=dict(demand), measured_peak=now.measured_peak)
        growth = {domain: new.charges[domain] - now.charges.get(domain, 0) for domain in new.charges}
        self._check({domain: more for domain, more in growth.items() if more > 0}, self.view())
        return self._store(new)

    def measure(self, model_id: str, measured: Mapping[str, int]) -> dict[str, int]:
        """Note what a model's processes use now, in bytes by domain; the peak counts.

        Returns the overshoot by domain when this measurement raised it, else nothing. A measurement of a model that
        is not charged (it came late, its process is gone) is dropped.
        """
        now = self._models.get(model_id)
        if now is None:
            return {}
        peak = {
            domain: max(now.measured_peak.get(domain, 0), measured.get(domain, 0))
            for domain in {**now.measured_peak, **measured}
            if domain in self.budgets
        }
        new = self._store(Reservation(model_id=model_id, reserved=now.reserved, measured_peak=peak))
        return {domain: more for domain, more in new.overshoot.items() if more > now.overshoot.get(domain, 0)}

    def release(self, model_id: str) -> dict[str, int]:
        """Remove the whole charge of a model whose process has been reaped. Returns what it was; {} if none."""
        gone = self._models.pop(model_id, None)
        return {} if gone is None else gone.charges

    def set_overhead(self, owner: str, charged_bytes: int) -> None:
        """Charge a process that hosts no model (spare, utility worker) to system RAM; 0 removes it.

        Never refused: the process is there. What it takes is missing for the next reservation.
        """
        if charged_bytes < 0:
            raise ValueError("a charge is not negative")
        if charged_bytes:
            self._overheads[owner] = charged_bytes
        else:
            self._overheads.pop(owner, None)

    def get(self, model_id: str) -> Reservation | None:
        """The reservation of a model, None when it is not charged."""
        return self._models.get(model_id)

    @property
    def reservations(self) -> tuple[Reservation, ...]:
        """All live reservations, in the order they were made."""
        return tuple(self._models.values())

    @property
    def overheads(self) -> Mapping[str, int]:
        """Charges of processes that host no model, by owner."""
        return MappingProxyType(self._overheads)

    def view(self) -> LedgerView:
        """Used and free bytes of every domain now."""
        used = dict.fromkeys(self.budgets, 0)
        if SYSTEM_RAM in used:
            used[SYSTEM_RAM] += sum(self._overheads.values())
        for reservation in self._models.values():
            for domain, charge in reservation.charges.items():
                used[domain] += charge
        return LedgerView(
            {
                domain: DomainView(domain=domain, budget_bytes=budget.budget_bytes, used_bytes=used[domain])
                for domain, budget in self.budgets.items()
            }
        )

    def _check(self, demand: Mapping[str, int], view: LedgerView) -> None:
        for domain, needed in demand.items():
            if domain not in self.budgets or needed < 0:
                raise ValueError(f"cannot charge {needed} bytes to {domain!r}")
        lacking = view.shortfall(demand)
        if lacking:
            domain = max(lacking, key=lambda name: (lacking[name], name))
            free, budget = view.domains[domain].free_bytes, view.domains[domain].budget_bytes
            assert free is not None
            assert budget is not None
            raise OverBudget(domain, demand[domain], free, budget)

    def _store(self, reservation: Reservation) -> Reservation:
        self._models[reservation.model_id] = reservation
        return reservation


def domain_budgets(
    settings: ServerSettings, inventory: Inventory, *, platform: str = sys.platform
) -> tuple[dict[str, DomainBudget], list[str]]:
    """The budget of every memory domain, and warnings for settings that could not be followed as written.

    A domain's size is, first that applies: ``domain_budgets``; ``system_ram_budget_gb`` for ``system_ram``;
    ``total_vram_gb`` for the domain of ``device`` (0: not gated); what is reported. It is capped at what is reported.
    Then ``vram_safety_margin_gb`` is taken off a GPU's. Of the RAM, ``system_ram_reservation_gb`` is held back first.
    """
    warnings: list[str] = []
    named: dict[str, float] = {}
    for text, gb in settings.domain_budgets.items():
        domain = inventory.domain_of_text(text)
        if domain is None:
            warnings.append(
                f"domain_budgets.{text}: there is no such memory domain; there are {', '.join(inventory.domains())}"
            )
        else:
            named[domain] = gb
    default = inventory.domain(settings.device) if inventory.find(settings.device) is not None else None
    budgets = {}
    for domain in inventory.domains():
        size_gb, source = _configured(settings, domain, default, named)
        reported = inventory.domain_total_bytes(domain)
        margin = gb_to_bytes(settings.vram_safety_margin_gb)
        usable = reported
        if domain == SYSTEM_RAM:
            margin = 0
            if reported is not None:
                usable = max(0, reported - _ram_reservation(settings, reported, platform))
        ungated = source == "total_vram_gb" and not size_gb
        size = usable if size_gb is None or ungated else gb_to_bytes(size_gb)
        if size is None:
            warnings.append(f"{domain}: its size is not reported, so loads are not gated there; set domain_budgets")
        elif usable is not None and size > usable:
            warnings.append(
                f"{source}: {size / BYTES_PER_GB:.1f} GB is more than the {usable / BYTES_PER_GB:.1f} GB "
                f"that {domain} has to give; that much is used"
            )
            size = usable
        budget = None if ungated or size is None else max(0, size - margin)
        budgets[domain] = DomainBudget(domain=domain, budget_bytes=budget, reported_bytes=reported, source=source)
    return budgets, warnings


def open_ledger(
    settings: ServerSettings, inventory: Inventory, *, platform: str = sys.platform
) -> tuple[Ledger, list[str]]:
    """An empty ledger for this machine and the warnings of its budgets."""
    budgets, warnings = domain_budgets(settings, inventory, platform=platform)
    return Ledger(budgets), warnings


def spilled_bytes(expected_bytes: int, resident_bytes: int) -> int:
    """How much of what should be on a card is not there: the driver has moved it to system memory; 0 within
    SPILL_TOLERANCE. ``expected_bytes`` is what the model surely touched (its weights), not its lazily filled pool."""
    return expected_bytes - resident_bytes if resident_bytes < expected_bytes * SPILL_TOLERANCE else 0


def _configured(
    settings: ServerSettings, domain: str, default: str | None, named: Mapping[str, float]
) -> tuple[float | None, str]:
    if domain in named:
        return named[domain], f"domain_budgets.{domain}"
    if domain == SYSTEM_RAM and settings.system_ram_budget_gb is not None:
        return settings.system_ram_budget_gb, "system_ram_budget_gb"
    if domain == default:
        return settings.total_vram_gb, "total_vram_gb"
    return None, "reported"


def _ram_reservation(settings: ServerSettings, reported: int, platform: str) -> int:
    if settings.system_ram_reservation_gb is not None:
        return gb_to_bytes(settings.system_ram_reservation_gb)
    usual = SYSTEM_RAM_RESERVATION_BYTES.get(platform, SYSTEM_RAM_RESERVATION_BYTES["linux"])
    return min(usual, int(reported * MAX_RESERVED_SHARE))
