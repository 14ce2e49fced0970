"""Plans carried out: room is made, or nobody is touched."""

from pathlib import Path

import pytest
import trio

from rustedvino.config.types import BYTES_PER_GB, ModelSettings, ServerSettings
from rustedvino.hub.eviction import LoadRequest, Resident
from rustedvino.hub.inventory import SYSTEM_RAM, Device, Inventory
from rustedvino.hub.ledger import open_ledger
from rustedvino.hub.model_files import KvShape, ModelFiles
from rustedvino.hub.residency import NoRoom, Residency, Wish

CPU = Device(name="CPU", full_name="A CPU", type="cpu", total_memory_bytes=64 * BYTES_PER_GB)


def files(name: str) -> ModelFiles:
    return ModelFiles(
        folder=Path(name),
        kind="text_gen",
        family="qwen3",
        context_tokens=512,
        vocab_size=1000,
        eos_token_ids=(2,),
        kv_shape=KvShape(layers=2, heads=2, head_dim=16),
        weights_bytes=BYTES_PER_GB,
        created=0,
    )


class Machine:
    """A ledger of so many GB with models that are evicted by a call."""

    def __init__(self, budget_gb: float) -> None:
        self.settings = ServerSettings(
            models_dir=Path(),
            device="CPU",
            total_vram_gb=0,
            domain_budgets={SYSTEM_RAM: budget_gb},
            min_kv_cache_gb=0.01,
            eviction_grace_secs=0,
        )
        inventory = Inventory((CPU,))
        ledger, _ = open_ledger(self.settings, inventory)
        self.busy: set[str] = set()
        self.evicted: list[str] = []
        self.residency = Residency(
            self.settings, inventory, ledger, self.residents, self.evict, available_ram=lambda: None
        )

    def residents(self) -> list[Resident]:
        return [
            Resident(
                model_id=reservation.model_id,
                charges=reservation.charges,
                last_used=float(index),
                loaded_at=0.0,
                busy=reservation.model_id in self.busy,
            )
            for index, reservation in enumerate(self.residency.ledger.reservations)
        ]

    async def evict(self, model_id: str) -> None:
        await trio.lowlevel.checkpoint()
        self.evicted.append(model_id)
        self.residency.release(model_id)

    async def load(self, model_id: str, *, force: bool = False) -> None:
        request = LoadRequest(model_id=model_id, trigger="admin", force=force)
        await self.residency.acquire(Wish(request=request, files=files(model_id), settings=ModelSettings()))

    @property
    def resident(self) -> set[str]:
        return {reservation.model_id for reservation in self.residency.ledger.reservations}


async def test_the_least_recently_used_makes_room(autojump_clock: trio.testing.MockClock) -> None:
    await trio.sleep(100)
    machine = Machine(3.0)
    for name in ("a", "b", "c"):
        await machine.load(name)
    assert machine.evicted == ["a"]
    assert machine.resident == {"b", "c"}


async def test_a_refusal_evicts_nobody(autojump_clock: trio.testing.MockClock) -> None:
    await trio.sleep(100)
    machine = Machine(3.0)
    await machine.load("a")
    await machine.load("b")
    machine.busy = {"a", "b"}
    with pytest.raises(NoRoom) as refused:
        await machine.load("c")
    assert refused.value.refusal.limit == "system_ram"
    assert {entry.model_id for entry in refused.value.refusal.protected} == {"a", "b"}
    assert refused.value.refusal.retry_after_secs is not None
    assert machine.evicted == []
    await machine.load("c", force=True)
    assert len(machine.evicted) == 1


async def test_loads_at_once_never_go_over_the_budget(autojump_clock: trio.testing.MockClock) -> None:
    await trio.sleep(100)
    machine = Machine(3.0)
    async with trio.open_nursery() as nursery:
        for name in "abcdef":
            nursery.start_soon(machine.load, name)
    view = machine.residency.ledger.view().domains[SYSTEM_RAM]
    assert view.over_bytes == 0
    assert len(machine.resident) == 2


async def test_what_was_taken_meanwhile_is_said(autojump_clock: trio.testing.MockClock) -> None:
    await trio.sleep(100)
    machine = Machine(3.0)
    await machine.load("a")
    await machine.load("b")

    async def evict_and_grow(model_id: str) -> None:
        await Machine.evict(machine, model_id)
        machine.residency.ledger.measure("b", {SYSTEM_RAM: 3 * BYTES_PER_GB})

    machine.residency.evict = evict_and_grow
    machine.busy = {"b"}
    with pytest.raises(NoRoom):
        await machine.load("c")
    assert machine.resident == {"b"}
