"""Which models are in memory, and where: every load asks here first, every unload reports here last."""

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs
import trio
from attrs import define, field, frozen

from rustedvino.config.types import ModelSettings, ServerSettings
from rustedvino.hub import memory
from rustedvino.hub.eviction import LoadPlan, LoadRequest, Refusal, Resident, plan_load
from rustedvino.hub.footprint import estimate
from rustedvino.hub.inventory import SYSTEM_RAM, Inventory
from rustedvino.hub.ledger import Ledger, OverBudget, spilled_bytes
from rustedvino.hub.model_files import ModelFiles
from rustedvino.hub.placement import place

log = logging.getLogger(__name__)

FREE_WAIT_SECS: Final = 15.0
"""How long a load waits for the memory of what was evicted to be reported free."""
FREE_POLL_SECS: Final = 0.1


class NoRoom(Exception):
    """A load was refused; ``refusal`` has the numbers."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


@frozen(kw_only=True)
class Wish:
    """A model that is to be loaded, as it is configured and as its files are now."""

    request: LoadRequest
    files: ModelFiles
    settings: ModelSettings
    draft_disk_bytes: int = 0


@define(eq=False)
class Residency:
    """Plans loads against the ledger and carries the plans out, one at a time.

    ``residents`` gives a snapshot of the models in memory; ``evict`` unloads one and returns when its process has been
    reaped and its charge released.
    """

    settings: ServerSettings
    inventory: Inventory
    ledger: Ledger
    residents: Callable[[], list[Resident]]
    evict: Callable[[str], Any]
    available_ram: Callable[[], int | None] = memory.available_ram_bytes
    _lock: trio.Lock = field(factory=trio.Lock)

    def plan(self, wish: Wish) -> LoadPlan | Refusal:
        """What a load would do now. Raises UnknownDevice."""
        view = self.ledger.view()
        footprints = {
            device.name: estimate(
                wish.files,
                wish.settings,
                self.settings,
                device,
                budget_bytes=view.budget_bytes(self.inventory.domain(device.name)),
                draft_disk_bytes=wish.draft_disk_bytes,
            )
            for device in self.inventory.devices
        }
        placement = place(wish.files.kind, footprints, self.inventory, view, self.settings, wish.settings)
        return plan_load(wish.request, placement, view, self.residents(), trio.current_time(), self.settings)

    async def acquire(self, wish: Wish) -> LoadPlan:
        """Make room and reserve it. Raises NoRoom, with nobody evicted unless the memory then did not come back.

        Cancellation between eviction and reservation leaves the victims unloaded and nothing reserved.
        """
        async with self._lock:
            plan = self.plan(wish)
            if isinstance(plan, Refusal):
                raise NoRoom(plan)
            if plan.victims:
                log.info("to load %s, evicting %s", wish.request.model_id, ", ".join(plan.victims))
                for victim in plan.victims:
                    await self.evict(victim)
                await self._wait_free(plan)
                again = self.plan(wish)
                if isinstance(again, Refusal):
                    raise NoRoom(again)
                if again.victims:
                    raise NoRoom(_changed(plan))
                plan = again
            try:
                if self.ledger.get(wish.request.model_id) is None:
                    self.ledger.reserve(wish.request.model_id, plan.demand)
                else:  # a restart, or another pool
                    self.ledger.resize(wish.request.model_id, plan.demand)
            except OverBudget as error:  # a measured peak can rise while victims drain
                raise NoRoom(_changed(plan)) from error
            return plan

    def release(self, model_id: str) -> None:
        """The model's process has been reaped: its whole charge is gone."""
        if self.ledger.get(model_id) is not None:
            self.ledger.release(model_id)

    def note(self, model_id: str, process: memory.ProcessMemory, gpu: memory.GpuMemory | None) -> None:
        """Tell the ledger what a model's process was measured to use."""
        if self.ledger.get(model_id) is None:
            return
        measured = {SYSTEM_RAM: memory.system_charge_bytes(process, gpu)}
        if gpu is not None:
            for device in self.inventory.devices:
                used = gpu.local_by_pci.get(device.pci_address or "")
                if device.type == "discrete" and used:
                    measured[self.inventory.domain(device.name)] = used
        for domain, amount in self.ledger.measure(model_id, measured).items():
            log.warning("model %s uses %d bytes of %s more than was reserved", model_id, amount, domain)

    def spilled_bytes(self, device_name: str, weights_bytes: int, gpu: memory.GpuMemory | None) -> int | None:
        """How much of a loaded model's weights is not on its discrete GPU; None where the system does not say."""
        device = self.inventory.find(device_name)
        if gpu is None or device is None or device.type != "discrete" or not device.pci_address:
            return None
        resident = gpu.local_by_pci.get(device.pci_address)
        return None if resident is None else spilled_bytes(weights_bytes, resident)

    async def _wait_free(self, plan: LoadPlan) -> None:
        """Wait until the system reports the bytes free; the ledger's word alone is not enough."""
        needed = plan.demand.get(SYSTEM_RAM, 0)
        with trio.move_on_after(FREE_WAIT_SECS):
            while True:
                available = self.available_ram()
                if available is None or available >= needed:
                    return
                await trio.sleep(FREE_POLL_SECS)
        log.warning("%d bytes of memory did not come back within %g s", needed, FREE_WAIT_SECS)


def _changed(plan: LoadPlan) -> Refusal:
    return Refusal(
        model_id=plan.model_id,
        limit="system_ram" if plan.domain == SYSTEM_RAM else "vram",
        domain=plan.domain,
        needed_bytes=sum(plan.demand.values()),
        free_bytes=0,
        budget_bytes=0,
        evictable_bytes=0,
        protected=(),
        retry_after_secs=5.0,
        message=f"memory for {plan.model_id!r} was freed, but taken again before the load; try again",
        reasons=plan.reasons,
    )


def refusal_details(refusal: Refusal) -> dict[str, Any]:
    """The numbers of a refusal for an answer."""
    return {
        "limit": refusal.limit,
        "domain": refusal.domain,
        "needed_bytes": refusal.needed_bytes,
        "free_bytes": refusal.free_bytes,
        "budget_bytes": refusal.budget_bytes,
        "evictable_bytes": refusal.evictable_bytes,
        "protected": [attrs.asdict(entry) for entry in refusal.protected],
        "reasons": list(refusal.reasons),
    }


def plan_details(plan: LoadPlan) -> Mapping[str, Any]:
    """A plan for an answer."""
    return {
        "device": plan.device,
        "domain": plan.domain,
        "demand_bytes": dict(plan.demand),
        "kv_pool_bytes": plan.kv_pool_bytes,
        "would_evict": list(plan.victims),
        "reasons": list(plan.reasons),
    }
