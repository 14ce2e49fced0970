"""The ledger against a plain model of itself, and the budgets of domains."""

from pathlib import Path

import pytest
from attrs import evolve
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from rustedvino.config.types import BYTES_PER_GB as GB
from rustedvino.config.types import ServerSettings
from rustedvino.hub.inventory import SYSTEM_RAM, Device, Inventory, load_inventory
from rustedvino.hub.ledger import DomainBudget, Ledger, OverBudget, domain_budgets, open_ledger, spilled_bytes

QA = Path(__file__).parents[2] / "qa" / "inventories"
TWO_ARC = load_inventory(QA / "two-arc-igpu.json")
CPU_ONLY = load_inventory(QA / "cpu-only.json")
CARD = 16225243136


def server(**changes):
    return ServerSettings(**{"models_dir": Path("models"), "device": "GPU.1", "total_vram_gb": 12.0, **changes})


def ledger(**budgets):
    return Ledger(
        {
            domain: DomainBudget(domain=domain, budget_bytes=size, reported_bytes=size, source="test")
            for domain, size in budgets.items()
        }
    )


# --- charges -----------------------------------------------------------------------------------------------------

DOMAINS = (SYSTEM_RAM, "GPU.1", "GPU.2")
MODELS = ("a", "b", "c", "d", "e")
amounts = st.dictionaries(st.sampled_from(DOMAINS), st.integers(0, 60), max_size=3)


class LedgerMachine(RuleBasedStateMachine):
    """Random loads, unloads, crashes, resizes and measurements, mirrored by three dicts."""

    @initialize(sizes=st.tuples(*[st.one_of(st.none(), st.integers(0, 100))] * 3))
    def start(self, sizes):
        self.budgets = dict(zip(DOMAINS, sizes, strict=True))
        self.ledger = ledger(**self.budgets)
        self.reserved: dict[str, dict[str, int]] = {}
        self.peaks: dict[str, dict[str, int]] = {}
        self.overheads: dict[str, int] = {}

    def charge(self, model, domain, reserved=None):
        reserved = self.reserved[model] if reserved is None else reserved
        return max(reserved.get(domain, 0), self.peaks[model].get(domain, 0))

    def used(self, domain):
        extra = sum(self.overheads.values()) if domain == SYSTEM_RAM else 0
        return extra + sum(self.charge(model, domain) for model in self.reserved)

    @rule(model=st.sampled_from(MODELS), demand=amounts)
    def load(self, model, demand):
        if model in self.reserved:
            with pytest.raises(ValueError, match="already"):
                self.ledger.reserve(model, demand)
            return
        fits = all(
            not needed or self.budgets[domain] is None or self.used(domain) + needed <= self.budgets[domain]
            for domain, needed in demand.items()
        )
        if not fits:
            with pytest.raises(OverBudget) as caught:
                self.ledger.reserve(model, demand)
            assert caught.value.free_bytes < caught.value.needed_bytes
            return
        self.ledger.reserve(model, demand)
        self.reserved[model], self.peaks[model] = demand, {}
        for domain, needed in demand.items():
            assert not needed or self.budgets[domain] is None or self.used(domain) <= self.budgets[domain]

    @rule(model=st.sampled_from(MODELS))
    def unload_or_crash(self, model):
        expected = {}
        if model in self.reserved:
            names = {*self.reserved[model], *self.peaks[model]}
            expected = {domain: self.charge(model, domain) for domain in names}
            del self.reserved[model], self.peaks[model]
        assert self.ledger.release(model) == expected
        assert self.ledger.release(model) == {}

    @rule(model=st.sampled_from(MODELS), demand=amounts)
    def resize(self, model, demand):
        if model not in self.reserved:
            return
        fits = True
        for domain in demand:
            growth = self.charge(model, domain, demand) - self.charge(model, domain)
            budget = self.budgets[domain]
            fits = fits and (growth <= 0 or budget is None or self.used(domain) + growth <= budget)
        if fits:
            self.ledger.resize(model, demand)
            self.reserved[model] = demand
        else:
            with pytest.raises(OverBudget):
                self.ledger.resize(model, demand)

    @rule(model=st.sampled_from(MODELS), measured=amounts)
    def measure(self, model, measured):
        overshoot = self.ledger.measure(model, measured)
        if model not in self.reserved:
            assert overshoot == {}
            return
        before = dict(self.peaks[model])
        for domain, size in measured.items():
            self.peaks[model][domain] = max(size, before.get(domain, 0))
        for domain in DOMAINS:
            reserved, peak = self.reserved[model].get(domain, 0), self.peaks[model].get(domain, 0)
            grew = peak > before.get(domain, 0) and peak > reserved
            assert overshoot.get(domain) == (peak - reserved if grew else None)

    @rule(owner=st.sampled_from(["spare 1", "utility"]), size=st.integers(0, 20))
    def overhead(self, owner, size):
        self.ledger.set_overhead(owner, size)
        self.overheads[owner] = size

    @invariant()
    def equals_the_sum_of_live_charges(self):
        view = self.ledger.view()
        for domain, budget in self.budgets.items():
            used = self.used(domain)
            shown = view.domains[domain]
            assert shown.used_bytes == used
            assert shown.free_bytes == (None if budget is None else max(0, budget - used))
            assert shown.over_bytes == (0 if budget is None else max(0, used - budget))
        assert {entry.model_id for entry in self.ledger.reservations} == set(self.reserved)


LedgerMachine.TestCase.settings = hypothesis_settings(max_examples=100, stateful_step_count=30, deadline=None)
TestLedger = LedgerMachine.TestCase


def test_a_measured_overshoot_blocks_the_next_load_until_the_process_is_reaped():
    books = ledger(system_ram=100)
    books.reserve("a", {SYSTEM_RAM: 40})
    assert books.measure("a", {SYSTEM_RAM: 130}) == {SYSTEM_RAM: 90}
    assert books.measure("a", {SYSTEM_RAM: 50}) == {}  # it had its peak
    assert books.view().domains[SYSTEM_RAM].over_bytes == 30
    with pytest.raises(OverBudget) as caught:
        books.reserve("b", {SYSTEM_RAM: 1})
    assert (caught.value.free_bytes, caught.value.budget_bytes) == (0, 100)
    assert books.release("a") == {SYSTEM_RAM: 130}
    assert books.measure("a", {SYSTEM_RAM: 50}) == {}  # too late: its process is gone
    books.reserve("b", {SYSTEM_RAM: 100})


def test_a_full_domain_does_not_block_another():
    books = ledger(system_ram=100, gpu=10)
    books.reserve("a", {"gpu": 10})
    books.measure("a", {"gpu": 11})
    books.reserve("b", {SYSTEM_RAM: 100, "gpu": 0})
    assert books.view().domains["gpu"].free_bytes == 0


def test_charges_must_be_of_known_domains_and_not_negative():
    books = ledger(system_ram=100)
    for demand in ({"GPU.9": 1}, {SYSTEM_RAM: -1}):
        with pytest.raises(ValueError, match="cannot charge"):
            books.reserve("a", demand)
    with pytest.raises(ValueError, match="not negative"):
        books.set_overhead("spare", -1)
    assert books.reservations == ()


# --- budgets -----------------------------------------------------------------------------------------------------


def budgets(settings, inventory=TWO_ARC, platform="linux"):
    found, warnings = domain_budgets(settings, inventory, platform=platform)
    return {domain: budget.budget_bytes for domain, budget in found.items()}, warnings


def test_the_default_device_has_its_setting_and_the_rest_what_is_reported():
    found, warnings = budgets(server())
    assert found == {SYSTEM_RAM: 62 * GB, "GPU.1": 11 * GB, "GPU.2": 24385683456 - GB}
    assert warnings == []


def test_a_budget_is_capped_at_what_is_reported_with_a_warning():
    found, warnings = budgets(server(total_vram_gb=64, domain_budgets={"GPU.2": 100}, vram_safety_margin_gb=0.5))
    assert found["GPU.1"] == CARD - GB // 2
    assert found["GPU.2"] == 24385683456 - GB // 2
    assert [line.partition(":")[0] for line in warnings] == ["total_vram_gb", "domain_budgets.GPU.2"]


def test_zero_means_no_gating_of_the_default_device_only():
    found, warnings = budgets(server(total_vram_gb=0))
    assert found["GPU.1"] is None
    assert found["GPU.2"] == 24385683456 - GB
    assert warnings == []


def test_domain_budgets_come_first_and_a_wrong_one_is_named():
    found, warnings = budgets(server(domain_budgets={"GPU.1": 4, "system_ram": 8, "GPU.0": 3, "HBM": 1}))
    assert found[SYSTEM_RAM] == 8 * GB
    assert found["GPU.1"] == 3 * GB
    assert [line.partition(":")[0] for line in warnings] == ["domain_budgets.GPU.0", "domain_budgets.HBM"]


@pytest.mark.parametrize(
    ("changes", "expected_gb"),
    [
        ({"total_vram_gb": 10}, 10),
        ({"total_vram_gb": 10, "system_ram_budget_gb": 7}, 7),
        ({"total_vram_gb": 10, "system_ram_budget_gb": 7, "domain_budgets": {"system_ram": 5}}, 5),
        ({"total_vram_gb": 10, "system_ram_reservation_gb": 16}, 8),
        ({"total_vram_gb": 24}, 22),
        ({"total_vram_gb": 0}, None),
        ({"total_vram_gb": 0, "system_ram_budget_gb": 9}, 9),
    ],
)
def test_system_ram_budget(changes, expected_gb):
    found, _ = budgets(server(device="CPU", **changes), CPU_ONLY)
    assert found == {SYSTEM_RAM: None if expected_gb is None else expected_gb * GB}


@pytest.mark.parametrize(("platform", "free_gb"), [("linux", 62), ("win32", 60), ("darwin", 60), ("other", 62)])
def test_ram_held_back_depends_on_the_system(platform, free_gb):
    assert budgets(server(), platform=platform)[0][SYSTEM_RAM] == free_gb * GB


def test_a_small_machine_keeps_half():
    small = Inventory((Device(name="CPU", full_name="c", type="cpu", total_memory_bytes=2 * GB),))
    assert budgets(server(device="CPU", total_vram_gb=2), small)[0] == {SYSTEM_RAM: GB}


def test_a_domain_of_unknown_size_is_not_gated_and_says_so():
    unknown = Inventory(tuple(evolve(device, total_memory_bytes=None) for device in TWO_ARC))
    found, warnings = budgets(server(), unknown)
    assert found == {SYSTEM_RAM: None, "GPU.1": 11 * GB, "GPU.2": None}
    assert [line.partition(":")[0] for line in warnings] == [SYSTEM_RAM, "GPU.2"]


def test_an_open_ledger_is_empty():
    books, warnings = open_ledger(server(), TWO_ARC)
    assert warnings == []
    assert {view.used_bytes for view in books.view().domains.values()} == {0}


def test_spilled_bytes():
    assert spilled_bytes(1000, 1000) == 0
    assert spilled_bytes(1000, 900) == 0  # within what drivers round
    assert spilled_bytes(1000, 899) == 101
    assert spilled_bytes(1000, 0) == 1000
    assert spilled_bytes(0, 0) == 0
