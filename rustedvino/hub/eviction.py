"""Who must go so that a model can be loaded: plan first, act second. Pure functions of what they are given.

Order of victims: idle before busy (busy ones only by force), then lowest priority, then least recently used, then
longest loaded, then by id. Victims are taken in that order until the load fits; then everyone whose memory turns out
not to be needed is spared, the most valuable first. So no victim is left out of whose removal the plan would still
fit, and nobody of a higher priority goes where those below suffice.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

from attrs import field, frozen

from rustedvino.config.types import ServerSettings
from rustedvino.hub.inventory import SYSTEM_RAM
from rustedvino.hub.ledger import LedgerView
from rustedvino.hub.placement import Candidate, Placement, Rejection, gb_text

BUSY_RETRY_SECS: Final = 5.0
"""After which a client may ask again when running requests, a load or a drain are in the way."""
SESSION_RETRY_SECS: Final = 30.0
"""The same for a model that a voice session holds."""
MIN_RETRY_SECS: Final = 1.0

Trigger = Literal["admin", "on_demand", "startup"]
Limit = Literal["vram", "system_ram"]


@frozen(kw_only=True)
class Resident:
    """A model that is charged in the ledger. ``charges`` is in bytes by domain; times are of one clock, in seconds.

    ``eviction_grace_secs`` is the model's own setting, None for the global one. ``state`` is ready for a model that
    can be drained, loading, draining, or restarting; only a draining one gives its memory back without being asked.
    """

    model_id: str
    charges: Mapping[str, int]
    last_used: float
    loaded_at: float
    pinned: bool = False
    evictable: bool = True
    priority: int = 0
    busy: bool = False
    session_held: bool = False
    state: Literal["loading", "ready", "draining", "restarting"] = "ready"
    loaded_on_demand: bool = False
    eviction_grace_secs: float | None = None


@frozen(kw_only=True)
class LoadRequest:
    """A wish to load. A load at start evicts nobody; only loads on demand respect ``min_residency_secs``.

    ``force`` skips the grace window and may choose busy models.
    """

    model_id: str
    trigger: Trigger = "admin"
    force: bool = False


@frozen(kw_only=True)
class Protected:
    """A resident that this load may not evict. ``retry_secs`` None: time alone does not change that."""

    model_id: str
    why: str
    retry_secs: float | None


@frozen(kw_only=True)
class LoadPlan:
    """What a load carries out: evict ``victims`` in this order, reserve ``demand``, load with a pool of
    ``kv_pool_bytes`` (0 for kinds without). ``demand`` is in bytes by domain and includes the pool."""

    model_id: str
    device: str
    domain: str
    demand: Mapping[str, int]
    kv_pool_bytes: int
    victims: tuple[str, ...]
    reasons: tuple[str, ...]


@frozen(kw_only=True)
class Refusal:
    """Why a load cannot be carried out; nobody is evicted. The numbers are of the domain that binds.

    ``evictable_bytes`` is what this load could have got there by evictions. ``retry_after_secs`` None: it never fits
    as things are configured.
    """

    model_id: str
    limit: Limit
    domain: str
    needed_bytes: int
    free_bytes: int
    budget_bytes: int
    evictable_bytes: int
    protected: tuple[Protected, ...]
    retry_after_secs: float | None
    message: str
    reasons: tuple[str, ...] = field(default=())


def plan_load(
    request: LoadRequest,
    placement: Placement,
    view: LedgerView,
    residents: Iterable[Resident],
    now: float,
    settings: ServerSettings,
) -> LoadPlan | Refusal:
    """The plan for a load, or why there is none. The same arguments give the same answer, in whatever order the
    residents come: a check and a load cannot disagree.

    The model's own charge, if it is resident (a resize), counts as given back.
    """
    everyone = sorted(residents, key=_victim_order)
    own = _sum(resident.charges for resident in everyone if resident.model_id == request.model_id)
    others = [resident for resident in everyone if resident.model_id != request.model_id]
    protected = {resident.model_id: _protection(resident, request, now, settings) for resident in others}
    allowed = [resident for resident in others if protected[resident.model_id] is None]
    for group, evict in _attempts(placement):
        found = []
        for index, candidate in enumerate(group):
            victims = _victims(candidate, view, own, allowed if evict else ())
            if victims is not None:
                worst = max(((victim.busy, victim.priority) for victim in victims), default=(False, 0))
                # An empty choice is best whatever the priorities; then the mildest, the smallest, the first.
                found.append(((bool(victims), worst, len(victims), index), candidate, victims))
        if found:
            _, candidate, victims = min(found, key=lambda entry: entry[0])
            return _plan(request, placement, candidate, view, own, victims)
    kept = [protection for protection in protected.values() if protection is not None]
    return _refusal(request, placement, view, own, others, allowed, kept)


def _victim_order(resident: Resident) -> tuple[bool, int, float, float, str]:
    return resident.busy, resident.priority, resident.last_used, resident.loaded_at, resident.model_id


def _protection(resident: Resident, request: LoadRequest, now: float, settings: ServerSettings) -> Protected | None:
    """Why a resident may not be evicted for this load; None when it may."""

    def keep(why: str, retry_secs: float | None) -> Protected:
        return Protected(model_id=resident.model_id, why=why, retry_secs=retry_secs)

    if resident.pinned:
        return keep("pinned", None)
    if not resident.evictable:
        return keep("evictable is false", None)
    if request.trigger == "startup":
        return keep("loads at start evict nobody", None)
    if resident.session_held:
        return keep("held by a realtime session", SESSION_RETRY_SECS)
    if resident.state in ("loading", "draining"):
        return keep(resident.state, BUSY_RETRY_SECS)
    if request.force:
        return None
    if resident.busy:
        return keep("busy", BUSY_RETRY_SECS)
    own_grace = resident.eviction_grace_secs
    grace = settings.eviction_grace_secs if own_grace is None else own_grace
    left = max(resident.last_used, resident.loaded_at) + grace - now
    if left > 0:
        return keep(f"used within the last {grace:g} s", max(left, MIN_RETRY_SECS))
    if request.trigger == "on_demand" and resident.loaded_on_demand:
        left = resident.loaded_at + settings.min_residency_secs - now
        if left > 0:
            return keep(f"loaded within the last {settings.min_residency_secs:g} s", max(left, MIN_RETRY_SECS))
    return None


def _attempts(placement: Placement) -> list[tuple[tuple[Candidate, ...], bool]]:
    """Groups of equally good candidates in the order they are tried, and whether evictions are allowed."""
    if placement.spares_others:
        return [
            *(((candidate,), False) for candidate in placement.candidates),
            *(((candidate,), True) for candidate in placement.candidates),
        ]
    groups: dict[str, list[Candidate]] = {}
    for candidate in placement.candidates:
        groups.setdefault(candidate.tier, []).append(candidate)
    return [(tuple(group), evict) for group in groups.values() for evict in (False, True)]


def _victims(
    candidate: Candidate, view: LedgerView, own: Mapping[str, int], allowed: Sequence[Resident]
) -> tuple[Resident, ...] | None:
    """The residents to evict for a candidate, in order; None when even all of them are not enough."""
    chosen: list[Resident] = []
    freed = dict(own)
    for resident in allowed:
        if not view.shortfall(candidate.demand, freed):
            break
        chosen.append(resident)
        freed = _sum([freed, resident.charges])
    if view.shortfall(candidate.demand, freed):
        return None
    for resident in reversed(chosen[:]):
        without = [other for other in chosen if other is not resident]
        if not view.shortfall(candidate.demand, _sum([own, *(other.charges for other in without)])):
            chosen = without
    return tuple(chosen)


def _plan(
    request: LoadRequest,
    placement: Placement,
    candidate: Candidate,
    view: LedgerView,
    own: Mapping[str, int],
    victims: Sequence[Resident],
) -> LoadPlan:
    freed = _sum([own, *(victim.charges for victim in victims)])
    footprint = candidate.footprint
    slack = view.slack_bytes(candidate.domain, candidate.demand, freed)
    more = footprint.kv_max_bytes - footprint.kv_min_bytes
    more = more if slack is None else min(more, slack)
    granted = dict(candidate.demand)
    granted[candidate.domain] = granted.get(candidate.domain, 0) + more
    pool = footprint.kv_min_bytes + more
    lines = [
        f"evict {victim.model_id}: {_charges_text(victim.charges)}, priority {victim.priority}"
        f"{', busy' if victim.busy else ''}"
        for victim in victims
    ]
    chosen = f"load on {candidate.device}: {_charges_text(granted)}"
    return LoadPlan(
        model_id=request.model_id,
        device=candidate.device,
        domain=candidate.domain,
        demand=granted,
        kv_pool_bytes=pool,
        victims=tuple(victim.model_id for victim in victims),
        reasons=(*placement.reasons, *lines, f"{chosen}, KV pool {gb_text(pool)}" if pool else chosen),
    )


def _refusal(
    request: LoadRequest,
    placement: Placement,
    view: LedgerView,
    own: Mapping[str, int],
    others: Sequence[Resident],
    allowed: Sequence[Resident],
    protected: Sequence[Protected],
) -> Refusal:
    """The refusal of the first candidate that time can help, else of the first; without candidates, of the device
    that came nearest."""
    if not placement.candidates:
        return _never(request, placement)
    gained = _sum([own, *(resident.charges for resident in allowed)])
    waits = [_wait_secs(candidate, view, gained, others, protected) for candidate in placement.candidates]
    index = next((index for index, wait in enumerate(waits) if wait is not None), 0)
    candidate, wait = placement.candidates[index], waits[index]
    lacking = view.shortfall(candidate.demand, gained)
    domain = max(lacking, key=lambda name: (lacking[name], name))
    blocking = tuple(
        protection
        for resident in others
        for protection in protected
        if protection.model_id == resident.model_id and resident.charges.get(domain, 0)
    )
    budget = view.budget_bytes(domain)
    assert budget is not None
    used = view.domains[domain].used_bytes - own.get(domain, 0)
    free = max(0, budget - used)
    evictable = gained.get(domain, 0) - own.get(domain, 0)
    needed = candidate.demand[domain]
    names = ", ".join(f"{protection.model_id} ({protection.why})" for protection in blocking)
    message = (
        f"{request.model_id} needs {gb_text(needed)} of {domain} on {candidate.device}; {gb_text(free)} of "
        f"{gb_text(budget)} are free and {gb_text(evictable)} can be freed"
        + (f"; protected: {names}" if names else "")
        + ("" if wait is not None else "; waiting does not change that")
    )
    return Refusal(
        model_id=request.model_id,
        limit=_limit(domain),
        domain=domain,
        needed_bytes=needed,
        free_bytes=free,
        budget_bytes=budget,
        evictable_bytes=evictable,
        protected=blocking,
        retry_after_secs=wait,
        message=message,
        reasons=(*placement.reasons, message),
    )


def _wait_secs(
    candidate: Candidate,
    view: LedgerView,
    gained: Mapping[str, int],
    others: Sequence[Resident],
    protected: Sequence[Protected],
) -> float | None:
    """After how long enough residents may have lost their protection; None when that is not a matter of time."""
    charges = {resident.model_id: resident.charges for resident in others}
    freed = dict(gained)
    passing = [(protection.retry_secs, protection.model_id) for protection in protected if protection.retry_secs]
    for wait, model_id in sorted(passing):
        freed = _sum([freed, charges[model_id]])
        if not view.shortfall(candidate.demand, freed):
            return wait
    return None


def _never(request: LoadRequest, placement: Placement) -> Refusal:
    """Every device was skipped: the model fits on none, whoever else goes."""
    nearest = min(
        placement.rejections,
        key=lambda rejection: (rejection.needed_bytes - rejection.limit_bytes, rejection.device),
        default=Rejection(
            device="none", domain=SYSTEM_RAM, needed_bytes=0, limit_bytes=0, reason="no device is of a suitable tier"
        ),
    )
    message = f"{request.model_id} fits on no device; nearest is {nearest.device}, {nearest.reason}"
    return Refusal(
        model_id=request.model_id,
        limit=_limit(nearest.domain),
        domain=nearest.domain,
        needed_bytes=nearest.needed_bytes,
        free_bytes=nearest.limit_bytes,
        budget_bytes=nearest.limit_bytes,
        evictable_bytes=0,
        protected=(),
        retry_after_secs=None,
        message=message,
        reasons=(*placement.reasons, message),
    )


def _limit(domain: str) -> Limit:
    return "system_ram" if domain == SYSTEM_RAM else "vram"


def _charges_text(charges: Mapping[str, int]) -> str:
    return " + ".join(f"{gb_text(size)} of {domain}" for domain, size in sorted(charges.items()))


def _sum(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for part in parts:
        for domain, size in part.items():
            total[domain] = total.get(domain, 0) + size
    return total
