"""On which devices a model may be loaded, best first, and why.

Devices fall into tiers; each kind of model has an order of tiers. Placement says where a model could go at all; what
must be evicted for it is the eviction planner's part, which walks the candidates in this order.

============================  ===================================================================
text_gen, vision, decision    heavy, strong-igpu, fallback, weak-igpu
image_gen                     heavy, strong-igpu, fallback, weak-igpu
embedding, reranking          light: strong-igpu, fallback, heavy, weak-igpu; else as text_gen
stt, tts                      light: npu, strong-igpu, weak-igpu, fallback; else fallback, heavy, strong-igpu, weak-igpu
============================  ===================================================================
"""

import re
from collections.abc import Mapping
from typing import Final

from attrs import frozen

from rustedvino.config.types import BYTES_PER_GB, ModelKind, ModelSettings, ServerSettings, Tier, gb_to_bytes
from rustedvino.hub.footprint import Footprint, demand
from rustedvino.hub.inventory import SYSTEM_RAM, Device, Inventory
from rustedvino.hub.ledger import LedgerView

NEVER_ON_NPU: Final[frozenset[ModelKind]] = frozenset({"embedding", "reranking"})
MATMUL_CAPABILITY: Final = "GPU_HW_MATMUL"
FIRST_STRONG_ARCHITECTURE: Final = 20
"""Major version of the first GPU architecture whose integrated parts all have matrix engines."""

_STRONGEST_FIRST: Final[tuple[Tier, ...]] = ("heavy", "strong-igpu", "fallback", "weak-igpu")
_LIGHT_RETRIEVAL: Final[tuple[Tier, ...]] = ("strong-igpu", "fallback", "heavy", "weak-igpu")
_LIGHT_SPEECH: Final[tuple[Tier, ...]] = ("npu", "strong-igpu", "weak-igpu", "fallback")
_HEAVY_SPEECH: Final[tuple[Tier, ...]] = ("fallback", "heavy", "strong-igpu", "weak-igpu")
_ARC = re.compile(r"\bArc\b", re.IGNORECASE)
_ARCHITECTURE = re.compile(r"arch=v(\d+)")


@frozen(kw_only=True)
class Candidate:
    """A device the model may be loaded on. ``demand`` is in bytes by memory domain, with the smallest pool."""

    device: str
    domain: str
    tier: Tier
    footprint: Footprint
    demand: Mapping[str, int]


@frozen(kw_only=True)
class Rejection:
    """A device the model cannot be on whatever is evicted: ``domain`` gives ``limit_bytes`` of ``needed_bytes``."""

    device: str
    domain: str
    needed_bytes: int
    limit_bytes: int
    reason: str


@frozen(kw_only=True)
class Placement:
    """Candidates, best first, and a line for every device that was looked at.

    ``spares_others``: every candidate is tried without evicting anybody before any is tried with (light models: a
    worse device costs little). Otherwise a tier is used up, evictions included, before the next.
    """

    candidates: tuple[Candidate, ...]
    rejections: tuple[Rejection, ...]
    reasons: tuple[str, ...]
    spares_others: bool

    @property
    def device(self) -> str | None:
        """The best candidate's device; None when the model fits nowhere."""
        return self.candidates[0].device if self.candidates else None


def tier_of(device: Device) -> Tier:
    """The capability tier of a device.

    An integrated GPU is strong when it has matrix engines, or is of the Arc class by name or architecture.
    """
    if device.type == "discrete":
        return "heavy"
    if device.type == "npu":
        return "npu"
    if device.type == "cpu":
        return "fallback"
    version = _ARCHITECTURE.search(device.architecture or "")
    strong = (
        MATMUL_CAPABILITY in device.capabilities
        or _ARC.search(device.full_name) is not None
        or (version is not None and int(version[1]) >= FIRST_STRONG_ARCHITECTURE)
    )
    return "strong-igpu" if strong else "weak-igpu"


def is_light(kind: ModelKind, model_bytes: int, settings: ServerSettings) -> bool:
    """Whether placement calls a model of this size light. Models that generate text or images never are."""
    if kind == "stt":
        return model_bytes <= gb_to_bytes(settings.light_stt_max_gb)
    return kind in ("tts", "embedding", "reranking") and model_bytes <= gb_to_bytes(settings.light_model_max_gb)


def tier_order(kind: ModelKind, *, light: bool, preference: tuple[Tier, ...] = ()) -> tuple[Tier, ...]:
    """The tiers for a kind: the preferred ones as given, then the rest of the kind's own order."""
    if kind in ("stt", "tts"):
        own = _LIGHT_SPEECH if light else _HEAVY_SPEECH
    elif kind in ("embedding", "reranking"):
        own = _LIGHT_RETRIEVAL if light else _STRONGEST_FIRST
    else:
        own = _STRONGEST_FIRST
    ordered = dict.fromkeys([*preference, *own])
    return tuple(tier for tier in ordered if tier != "npu" or kind not in NEVER_ON_NPU)


def place(
    kind: ModelKind,
    footprints: Mapping[str, Footprint],
    inventory: Inventory,
    view: LedgerView,
    settings: ServerSettings,
    model: ModelSettings,
) -> Placement:
    """Decide where a model may go. ``footprints`` has one entry per device of the inventory, by its name.

    Raises UnknownDevice when a configured device, or the draft's, does not exist.
    """
    light = is_light(kind, _model_bytes(footprints), settings)
    reasons: list[str] = []
    fixed = _fixed_device(kind, inventory, settings, model, reasons)
    if fixed is not None:
        devices = [fixed]
    else:
        order = tier_order(kind, light=light, preference=model.tier_preference)
        reasons.append(f"{'light ' if light else ''}{kind} by tier: {', '.join(order)}")
        devices = _by_tier(inventory, view, order, reasons)
    draft_device = model.speculative.draft_device if model.speculative is not None else None
    candidates: list[Candidate] = []
    rejections: list[Rejection] = []
    for device in devices:
        needed = demand(footprints[device.name], inventory, device.name, draft_device)
        candidate = Candidate(
            device=device.name,
            domain=inventory.domain(device.name),
            tier=tier_of(device),
            footprint=footprints[device.name],
            demand=needed,
        )
        rejection = _too_large(candidate, device, view, settings, automatic=fixed is None)
        if rejection is None:
            candidates.append(candidate)
            reasons.append(f"{device.name} ({candidate.tier}): {_room(candidate, view)}")
        else:
            rejections.append(rejection)
            reasons.append(f"{device.name} ({candidate.tier}): {rejection.reason}")
    return Placement(
        candidates=tuple(candidates),
        rejections=tuple(rejections),
        reasons=tuple(reasons),
        spares_others=light,
    )


def gb_text(size: int) -> str:
    """A size for people."""
    return f"{size / BYTES_PER_GB:.2f} GB"


def _model_bytes(footprints: Mapping[str, Footprint]) -> int:
    return max(footprint.model_bytes for footprint in footprints.values())


def _fixed_device(
    kind: ModelKind, inventory: Inventory, settings: ServerSettings, model: ModelSettings, reasons: list[str]
) -> Device | None:
    if model.device is not None:
        device = inventory.get(model.device)
        reasons.append(f"{device.name}: the model's device is set")
        return device
    if kind == "embedding" and settings.embedding_device is not None:
        device = inventory.get(settings.embedding_device)
        reasons.append(f"{device.name}: embedding_device is set")
        return device
    if settings.default_placement == "auto":
        return None
    device = inventory.get(settings.device)
    if device.type == "npu" and kind in NEVER_ON_NPU:
        reasons.append(f"{device.name}: {kind} models are not put on an NPU by default_placement")
        device = inventory.get("CPU")
    reasons.append(f'{device.name}: default_placement is "device"')
    return device


def _by_tier(inventory: Inventory, view: LedgerView, order: tuple[Tier, ...], reasons: list[str]) -> list[Device]:
    """The devices of the tiers in order; within a tier the one with the most free memory first."""
    devices: list[Device] = []
    for tier in order:
        members = [device for device in inventory if tier_of(device) == tier]
        devices += sorted(members, key=lambda device: -_free_to_compare(inventory.domain(device.name), view))
    reasons += [
        f"{device.name} ({tier_of(device)}): not among the tiers of this kind"
        for device in inventory
        if tier_of(device) not in order
    ]
    return devices


def _free_to_compare(domain: str, view: LedgerView) -> float:
    free = view.domains[domain].free_bytes
    return float("inf") if free is None else free


def _too_large(
    candidate: Candidate, device: Device, view: LedgerView, settings: ServerSettings, *, automatic: bool
) -> Rejection | None:
    """Why the model cannot be on the device even when everything else is gone."""

    def reject(domain: str, needed: int, limit: int, reason: str) -> Rejection:
        return Rejection(
            device=device.name, domain=domain, needed_bytes=needed, limit_bytes=limit, reason=f"skipped: {reason}"
        )

    for domain, needed in candidate.demand.items():
        budget = view.budget_bytes(domain)
        if budget is not None and needed > budget:
            return reject(
                domain, needed, budget, f"needs {gb_text(needed)} of {domain}, whose budget is {gb_text(budget)}"
            )
    footprint = candidate.footprint
    addressed = footprint.weights_bytes + footprint.kv_min_bytes + footprint.context_bytes
    total = device.total_memory_bytes
    if device.type in ("integrated", "npu") and total is not None and addressed > total:
        return reject(
            SYSTEM_RAM, addressed, total, f"needs {gb_text(addressed)}, the device addresses {gb_text(total)}"
        )
    if device.type == "discrete" and automatic:
        budget = view.budget_bytes(candidate.domain)
        whole = total if budget is None else budget
        share = settings.dgpu_size_ceiling_fraction
        if whole is not None and footprint.model_bytes > whole * share:
            return reject(
                candidate.domain,
                footprint.model_bytes,
                int(whole * share),
                f"the model's {gb_text(footprint.model_bytes)} are more than {share:.0%} of {gb_text(whole)} "
                "(dgpu_size_ceiling_fraction)",
            )
    return None


def _room(candidate: Candidate, view: LedgerView) -> str:
    lacking = view.shortfall(candidate.demand)
    parts = []
    for domain, needed in candidate.demand.items():
        free = view.domains[domain].free_bytes
        parts.append(f"{gb_text(needed)} of {domain}, {'not gated' if free is None else f'{gb_text(free)} free'}")
    return f"{'needs room: ' if lacking else 'fits: '}{'; '.join(parts)}"
