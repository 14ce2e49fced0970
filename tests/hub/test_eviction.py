"""Plans of evictions, against a brute-force search on small machines."""

from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from rustedvino.config.types import ServerSettings
from rustedvino.hub.eviction import LoadPlan, LoadRequest, Refusal, Resident, plan_load
from rustedvino.hub.footprint import Footprint
from rustedvino.hub.inventory import SYSTEM_RAM
from rustedvino.hub.ledger import DomainBudget, Ledger, OverBudget
from rustedvino.hub.placement import Candidate, Placement, Rejection

NOW = 1000.0
LONG_AGO = 10.0
SETTINGS = ServerSettings(
    models_dir=Path("models"), device="GPU.1", total_vram_gb=0, eviction_grace_secs=2, min_residency_secs=10
)
TIERS = {"GPU.1": "heavy", "GPU.2": "heavy", "CPU": "fallback"}


def candidate(device, size, *, kv=(0, 0), process=0):
    domain = SYSTEM_RAM if device == "CPU" else device
    demand = {domain: size + kv[0]}
    if process:
        demand[SYSTEM_RAM] = demand.get(SYSTEM_RAM, 0) + process
    footprint = Footprint(
        model_bytes=size, weights_bytes=size, kv_min_bytes=kv[0], kv_max_bytes=kv[1], process_bytes=process
    )
    return Candidate(device=device, domain=domain, tier=TIERS[device], footprint=footprint, demand=demand)


def placement(*candidates, spares_others=False, rejections=()):
    return Placement(
        candidates=candidates, rejections=tuple(rejections), reasons=("placed",), spares_others=spares_others
    )


def resident(model_id, size, domain="GPU.1", **changes):
    charges = size if isinstance(size, dict) else {domain: size}
    return Resident(
        **{"model_id": model_id, "charges": charges, "last_used": LONG_AGO, "loaded_at": LONG_AGO, **changes}
    )


def books(residents, **budgets):
    """A ledger that holds the residents; they may be over the budget, as measurements may be."""
    ledger = Ledger(
        {
            domain: DomainBudget(domain=domain, budget_bytes=size, reported_bytes=size, source="test")
            for domain, size in budgets.items()
        }
    )
    for entry in residents:
        ledger.reserve(entry.model_id, {})
        ledger.measure(entry.model_id, entry.charges)
    return ledger


def plan(residents, where, *, request=None, now=NOW, **budgets):
    ledger = books(residents, **{"GPU.1": 100, "GPU.2": 100, SYSTEM_RAM: 100, **budgets})
    return plan_load(request or LoadRequest(model_id="new"), where, ledger.view(), residents, now, SETTINGS)


# --- order -------------------------------------------------------------------------------------------------------


def test_a_load_that_fits_evicts_nobody():
    found = plan([resident("a", 60)], placement(candidate("GPU.1", 40)))
    assert (found.device, found.domain, found.victims, found.demand) == ("GPU.1", "GPU.1", (), {"GPU.1": 40})


@pytest.mark.parametrize(
    ("residents", "victims"),
    [
        ([resident("a", 50, priority=1), resident("b", 50)], ("b",)),
        ([resident("a", 50, last_used=20), resident("b", 50, last_used=19)], ("b",)),
        ([resident("a", 50, loaded_at=9), resident("b", 50, loaded_at=8)], ("b",)),
        ([resident("b", 50), resident("a", 50)], ("a",)),
        ([resident("small", 10), resident("large", 90, priority=5)], ("large",)),  # the small one alone is not enough
        ([resident("a", 30), resident("b", 30, last_used=11), resident("c", 30, last_used=12)], ("a", "b")),
        ([resident("a", 10), resident("b", 80, last_used=11), resident("c", 10, last_used=12)], ("b",)),
        ([resident("elsewhere", 90, "GPU.2"), resident("here", 90, priority=3)], ("here",)),
    ],
)
def test_who_goes(residents, victims):
    assert plan(residents, placement(candidate("GPU.1", 45))).victims == victims


@pytest.mark.parametrize(
    ("changes", "why", "retry_secs"),
    [
        ({"pinned": True}, "pinned", None),
        ({"evictable": False}, "evictable is false", None),
        ({"session_held": True}, "held by a realtime session", 30),
        ({"busy": True}, "busy", 5),
        ({"state": "loading"}, "loading", 5),
        ({"state": "draining"}, "draining", 5),
        ({"last_used": NOW - 0.5}, "used within the last 2 s", 1.5),
        ({"last_used": NOW - 0.5, "eviction_grace_secs": 60.0}, "used within the last 60 s", 59.5),
    ],
)
def test_the_protected_are_named_with_the_reason(changes, why, retry_secs):
    found = plan([resident("kept", 80, **changes)], placement(candidate("GPU.1", 45)))
    assert isinstance(found, Refusal)
    assert (found.limit, found.domain) == ("vram", "GPU.1")
    assert (found.needed_bytes, found.free_bytes, found.budget_bytes, found.evictable_bytes) == (45, 20, 100, 0)
    assert [(entry.model_id, entry.why) for entry in found.protected] == [("kept", why)]
    assert found.retry_after_secs == retry_secs
    assert f"kept ({why})" in found.message


def test_min_residency_is_between_loads_on_demand():
    fresh = resident("fresh", 80, loaded_at=NOW - 4, last_used=NOW - 4, loaded_on_demand=True)
    where = placement(candidate("GPU.1", 45))
    refused = plan([fresh], where, request=LoadRequest(model_id="new", trigger="on_demand"))
    assert refused.retry_after_secs == pytest.approx(6)
    assert plan([fresh], where).victims == ("fresh",)
    eager = resident("fresh", 80, loaded_at=NOW - 4, last_used=NOW - 4)
    assert plan([eager], where, request=LoadRequest(model_id="new", trigger="on_demand")).victims == ("fresh",)


def test_loads_at_start_evict_nobody():
    request = LoadRequest(model_id="new", trigger="startup")
    refused = plan([resident("first", 80)], placement(candidate("GPU.1", 45)), request=request)
    assert (refused.protected[0].why, refused.retry_after_secs) == ("loads at start evict nobody", None)


def test_force_takes_the_fresh_and_then_the_busy_but_not_the_pinned():
    force = LoadRequest(model_id="new", force=True)
    fresh = resident("fresh", 40, last_used=NOW, priority=9)
    busy = resident("busy", 40, busy=True)
    where = placement(candidate("GPU.1", 45))
    assert plan([busy, fresh], where, request=force).victims == ("fresh",)
    assert plan([busy, fresh], placement(candidate("GPU.1", 90)), request=force).victims == ("fresh", "busy")
    pinned = resident("busy", 80, busy=True, pinned=True)
    assert isinstance(plan([pinned], where, request=force), Refusal)


# --- candidates ---------------------------------------------------------------------------------------------------


def test_a_tier_is_used_up_before_the_next():
    where = placement(candidate("GPU.1", 45), candidate("CPU", 45))
    assert plan([resident("a", 80)], where).device == "GPU.1"
    assert plan([resident("a", 80, pinned=True)], where).device == "CPU"


def test_light_models_rather_go_elsewhere_than_evict():
    where = placement(candidate("GPU.1", 45), candidate("CPU", 45), spares_others=True)
    assert plan([resident("a", 80)], where).device == "CPU"
    both = [resident("a", 80), resident("b", 80, SYSTEM_RAM)]
    assert (plan(both, where).device, plan(both, where).victims) == ("GPU.1", ("a",))


def test_among_cards_the_free_one_then_the_mildest_eviction():
    where = placement(candidate("GPU.1", 45), candidate("GPU.2", 45))
    assert plan([resident("a", 80)], where).device == "GPU.2"
    full = [resident("a", 80, priority=2), resident("b", 40, "GPU.2"), resident("c", 40, "GPU.2")]
    assert (plan(full, where).device, plan(full, where).victims) == ("GPU.2", ("b",))


def test_a_victim_may_be_needed_for_either_of_two_domains():
    where = placement(candidate("GPU.1", 50, process=20))
    crowd = [resident("card", 60), resident("host", 90, SYSTEM_RAM), resident("other", 10, SYSTEM_RAM, last_used=5)]
    assert plan(crowd, where).victims == ("card", "host")


def test_the_pool_gets_what_is_left_within_its_range():
    def pool(residents, most, **budgets):
        found = plan(residents, placement(candidate("GPU.1", 40, kv=(10, most), process=5)), **budgets)
        return found.kv_pool_bytes, found.demand["GPU.1"]

    assert pool([], 30) == (30, 70)
    assert pool([], 500) == (60, 100)
    assert pool([resident("a", 45)], 500) == (15, 55)
    assert pool([resident("a", 55)], 500) == (60, 100)  # a had to go for the least
    assert pool([], 500, **{"GPU.1": None}) == (500, 540)


def test_the_own_charge_counts_as_given_back_for_a_resize():
    own = resident("new", 80, busy=True)
    found = plan([own], placement(candidate("GPU.1", 40, kv=(30, 30))))
    assert (found.victims, found.demand) == ((), {"GPU.1": 70})


# --- refusals -----------------------------------------------------------------------------------------------------


def test_the_binding_limit_may_be_the_system_ram():
    where = placement(candidate("GPU.1", 50, process=20))
    refused = plan([resident("host", 90, SYSTEM_RAM, pinned=True), resident("card", 10, pinned=True)], where)
    assert (refused.limit, refused.domain, refused.needed_bytes, refused.free_bytes) == (
        "system_ram",
        SYSTEM_RAM,
        20,
        10,
    )
    assert [entry.model_id for entry in refused.protected] == ["host"]


def test_the_wait_is_until_enough_of_them_may_go():
    crowd = [resident("a", 40, last_used=NOW - 0.5), resident("b", 40, busy=True), resident("c", 20, pinned=True)]
    assert plan(crowd, placement(candidate("GPU.1", 30))).retry_after_secs == 1.5
    assert plan(crowd, placement(candidate("GPU.1", 70))).retry_after_secs == 5
    slow_first = [resident("b", 40, state="loading"), resident("a", 40, last_used=NOW - 0.5)]
    assert plan(slow_first, placement(candidate("GPU.1", 30))).retry_after_secs == 1.5
    never = plan(crowd, placement(candidate("GPU.1", 90)))
    assert never.retry_after_secs is None
    assert "waiting does not change that" in never.message


def test_the_refusal_is_of_a_candidate_that_time_can_help():
    where = placement(candidate("GPU.1", 45), candidate("CPU", 45))
    refused = plan([resident("a", 80, pinned=True), resident("b", 80, SYSTEM_RAM, busy=True)], where)
    assert (refused.domain, refused.retry_after_secs) == (SYSTEM_RAM, 5)


def test_a_model_that_fits_nowhere_is_told_the_nearest_limit():
    rejections = [
        Rejection(device="CPU", domain=SYSTEM_RAM, needed_bytes=900, limit_bytes=100, reason="far"),
        Rejection(device="GPU.1", domain="GPU.1", needed_bytes=150, limit_bytes=100, reason="near"),
    ]
    refused = plan([], placement(rejections=rejections))
    assert (refused.limit, refused.needed_bytes, refused.budget_bytes) == ("vram", 150, 100)
    assert refused.retry_after_secs is None
    assert "near" in refused.message


def test_a_machine_without_a_suitable_device_is_refused_for_good():
    refused = plan([], placement())
    assert refused.retry_after_secs is None
    assert "no device is of a suitable tier" in refused.message


# --- properties ---------------------------------------------------------------------------------------------------

flags = st.sampled_from([False, False, False, True])
times = st.sampled_from([0.0, 100.0, NOW - 9, NOW - 1.5, NOW])
charges = st.dictionaries(st.sampled_from(["GPU.1", "GPU.2", SYSTEM_RAM]), st.integers(0, 60), min_size=1)


@st.composite
def crowds(draw):
    return [
        Resident(
            model_id=model_id,
            charges=draw(charges),
            last_used=draw(times),
            loaded_at=draw(times),
            pinned=draw(flags),
            evictable=not draw(flags),
            priority=draw(st.integers(-1, 2)),
            busy=draw(flags),
            session_held=draw(flags),
            state=draw(st.sampled_from(["ready", "ready", "ready", "loading", "draining", "restarting"])),
            loaded_on_demand=draw(flags),
            eviction_grace_secs=draw(st.sampled_from([None, 0.0, 50.0])),
        )
        for model_id in draw(st.sets(st.sampled_from(["a", "b", "c", "d", "e", "new"])))
    ]


@st.composite
def placements(draw):
    options = [
        candidate(device, draw(st.integers(1, 100)), kv=(draw(st.integers(0, 10)), 40), process=draw(st.integers(0, 9)))
        for device in draw(st.lists(st.sampled_from(["GPU.1", "GPU.2", "CPU"]), unique=True, min_size=1))
    ]
    return placement(*options, spares_others=draw(st.booleans()))


requests = st.builds(
    LoadRequest,
    model_id=st.just("new"),
    trigger=st.sampled_from(["admin", "on_demand", "startup"]),
    force=st.booleans(),
)
budgets = st.fixed_dictionaries(
    {domain: st.one_of(st.none(), st.integers(0, 120)) for domain in ("GPU.1", "GPU.2", SYSTEM_RAM)}
)


def may_go(entry, request):
    """The rules of protection, told once more and plainly."""
    if entry.pinned or not entry.evictable or entry.session_held or request.trigger == "startup":
        return False
    if entry.state in ("loading", "draining"):
        return False
    if request.force:
        return True
    grace = 2 if entry.eviction_grace_secs is None else entry.eviction_grace_secs
    if entry.busy or NOW - max(entry.last_used, entry.loaded_at) < grace:
        return False
    fresh = entry.loaded_on_demand and NOW - entry.loaded_at < 10
    return not (fresh and request.trigger == "on_demand")


def fits_without(ledger, demand, gone, residents):
    freed = {}
    for entry in residents:
        if entry.model_id in gone:
            for domain, size in entry.charges.items():
                freed[domain] = freed.get(domain, 0) + size
    return not ledger.view().shortfall(demand, freed)


@hypothesis_settings(max_examples=300, deadline=None)
@given(crowds(), placements(), requests, budgets, st.randoms(use_true_random=False))
def test_plans_and_refusals_are_right(residents, where, request, limits, random):
    ledger = books(residents, **limits)
    found = plan_load(request, where, ledger.view(), residents, NOW, SETTINGS)

    shuffled = random.sample(residents, len(residents))
    assert plan_load(request, where, ledger.view(), shuffled, NOW, SETTINGS) == found

    allowed = [entry.model_id for entry in residents if entry.model_id != "new" and may_go(entry, request)]
    by_device = {option.device: option for option in where.candidates}
    if isinstance(found, LoadPlan):
        assert set(found.victims) <= set(allowed)
        assert len(set(found.victims)) == len(found.victims)
        chosen = by_device[found.device]
        for spared in found.victims:  # nobody too many
            rest = [victim for victim in found.victims if victim != spared]
            assert not fits_without(ledger, chosen.demand, ["new", *rest], residents)
        for gone in ("new", *found.victims):
            ledger.release(gone)
        ledger.reserve("new", found.demand)  # and with the pool it was granted it fits
        assert chosen.footprint.kv_min_bytes <= found.kv_pool_bytes <= max(40, chosen.footprint.kv_min_bytes)
    else:
        for option in where.candidates:
            for count in range(len(allowed) + 1):
                for gone in combinations(allowed, count):
                    assert not fits_without(ledger, option.demand, ["new", *gone], residents)
        assert found.free_bytes < found.needed_bytes
        assert found.protected == tuple(entry for entry in found.protected if entry.model_id not in allowed)
        before = {entry.model_id for entry in ledger.reservations}
        ledger.release("new")
        with pytest.raises(OverBudget):
            ledger.reserve("new", where.candidates[0].demand)
        assert before - {"new"} == {entry.model_id for entry in ledger.reservations}


@hypothesis_settings(max_examples=200, deadline=None)
@given(crowds(), placements(), requests, budgets)
def test_no_higher_priority_goes_where_lower_ones_suffice(residents, where, request, limits):
    ledger = books(residents, **limits)
    found = plan_load(request, where, ledger.view(), residents, NOW, SETTINGS)
    if isinstance(found, Refusal) or not found.victims:
        return
    ranks = {entry.model_id: (entry.busy, entry.priority) for entry in residents}
    worst = max(ranks[victim] for victim in found.victims)
    milder = [
        entry.model_id
        for entry in residents
        if entry.model_id != "new" and may_go(entry, request) and ranks[entry.model_id] < worst
    ]
    demand = next(option.demand for option in where.candidates if option.device == found.device)
    assert not fits_without(ledger, demand, ["new", *milder], residents)


@hypothesis_settings(max_examples=200, deadline=None)
@given(crowds(), placements(), requests, budgets)
def test_after_the_wait_that_a_refusal_names_its_protected_may_go(residents, where, request, limits):
    """When everything that passes with time has passed, a temporary refusal becomes a plan, a final one does not."""
    ledger = books(residents, **limits)
    found = plan_load(request, where, ledger.view(), residents, NOW, SETTINGS)
    if isinstance(found, LoadPlan):
        return
    calm = [
        resident(
            entry.model_id,
            dict(entry.charges),
            pinned=entry.pinned,
            evictable=entry.evictable,
            priority=entry.priority,
        )
        for entry in residents
    ]
    later = plan_load(request, where, ledger.view(), calm, NOW, SETTINGS)
    assert isinstance(later, LoadPlan) == (found.retry_after_secs is not None)
