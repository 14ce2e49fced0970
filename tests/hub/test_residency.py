"""Plans carried out: room is made, or nobody is touched."""

from pathlib import Path

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from rustedvino.config.types import BYTES_PER_GB, ModelSettings, ServerSettings
from rustedvino.hub.eviction import LoadRequest, Refusal, Resident
from rustedvino.hub.inventory import SYSTEM_RAM, Device, Inventory
from rustedvino.hub.ledger import open_ledger
from rustedvino.hub.memory import GpuMemory
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

    def wish(self, model_id: str, *, force: bool = False) -> Wish:
        request = LoadRequest(model_id=model_id, trigger="admin", force=force)
        return Wish(request=request, files=files(model_id), settings=ModelSettings())

    async def load(self, model_id: str, *, force: bool = False) -> None:
        await self.residency.acquire(self.wish(model_id, force=force))

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


ARC = Device(
    name="GPU.1", full_name="A card", type="discrete", total_memory_bytes=16 * BYTES_PER_GB, pci_address="0000:03:00.0"
)


@pytest.mark.parametrize(
    ("device", "gpu", "expected"),
    [
        ("GPU.1", {"0000:03:00.0": 950}, 0),
        ("GPU.1", {"0000:03:00.0": 400}, 600),
        ("GPU.1", {"0000:09:00.0": 400}, None),
        ("GPU.1", None, None),
        ("CPU", {"0000:03:00.0": 400}, None),
    ],
)
def test_weights_that_are_not_on_their_card(device: str, gpu: dict[str, int] | None, expected: int | None) -> None:
    residency = Machine(10).residency
    residency.inventory = Inventory((CPU, ARC))
    measured = None if gpu is None else GpuMemory(local_by_pci=gpu, system_bytes=0)
    assert residency.spilled_bytes(device, 1000, measured) == expected


@hypothesis_settings(max_examples=100, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from("abcdef"), st.booleans(), st.sets(st.sampled_from("abcdef"))), min_size=1, max_size=12
    ),
    budget_gb=st.sampled_from([1.5, 2.5, 4.0, 7.0]),
)
def test_a_load_does_what_the_check_before_it_said(steps: list[tuple[str, bool, set[str]]], budget_gb: float) -> None:
    async def run() -> None:
        machine = Machine(budget_gb)
        for model_id, force, busy in steps:
            if model_id in machine.resident:
                machine.residency.release(model_id)
                continue
            machine.busy = busy
            said = machine.residency.plan(machine.wish(model_id, force=force))
            before, machine.evicted = machine.resident, []
            refusal: Refusal | None = None
            try:
                await machine.load(model_id, force=force)
            except NoRoom as error:
                refusal = error.refusal
            if isinstance(said, Refusal):
                assert refusal == said
                assert (machine.resident, machine.evicted) == (before, [])
            else:
                assert refusal is None
                assert machine.evicted == list(said.victims)
                assert machine.resident == before - set(said.victims) | {model_id}
                assert machine.residency.ledger.get(model_id).reserved == said.demand

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))
