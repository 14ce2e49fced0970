"""What an administrator sees of the hub: models, memory, files, as JSON values. Sizes are in bytes."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import attrs
import trio

from rustedvino.config.load import dump_settings
from rustedvino.config.types import ModelKind, ModelSettings, RealtimeDefaults
from rustedvino.hub.actor import ModelActor
from rustedvino.hub.hub import Hub
from rustedvino.hub.kv_pressure import used_percent
from rustedvino.hub.ledger import Reservation
from rustedvino.hub.poisoning import PoisonRecord
from rustedvino.hub.pool import cache_precisions
from rustedvino.hub.states import WITH_WORKER, State
from rustedvino.hub.voice_sessions import VoiceSession

ENGINE: Final = "openvino_genai"
_DEFAULTS: Final = dump_settings(ModelSettings())


def changed_settings(settings: ModelSettings) -> dict[str, Any]:
    """The settings that differ from their defaults, as JSON values."""
    values = dump_settings(settings)
    return {name: value for name, value in values.items() if value != _DEFAULTS[name]}


def model_view(hub: Hub, model_id: str) -> dict[str, Any]:
    """One model now. Raises UnknownModel."""
    actor = hub.get(model_id).actor
    figures = actor.statistics()
    settings = actor.settings
    now = trio.current_time()
    return {
        "model_id": model_id,
        "kind": model_kind(actor),
        "state": actor.state.value,
        "device": actor.device,
        "load": settings.load,
        "pinned": settings.pinned,
        "priority": settings.priority,
        "evictable": settings.evictable,
        "settings": changed_settings(settings),
        "memory": _memory(hub, actor),
        "kv_cache": _kv_cache(hub, actor),
        "kv_pressure": _kv_pressure(hub, actor, now),
        "running": figures.running,
        "waiting": figures.waiting,
        "idle_secs": _age(now, max(actor.last_used, actor.loaded_at)) if actor.state in WITH_WORKER else None,
        "worker_pid": figures.worker_pid,
        "load_secs": None if figures.load_secs is None else round(figures.load_secs, 3),
        "restarts": figures.restarts,
        "tokens_generated": figures.tokens_generated,
        "last_error": figures.last_error,
    }


def model_kind(actor: ModelActor) -> ModelKind | None:
    """What the model does, None while its files have not been read and no kind is configured."""
    return actor.files.kind if actor.files is not None else actor.settings.kind


def has_ledger(hub: Hub) -> bool:
    """Whether the devices of this machine are known; until then there is no ledger either."""
    return hub.inventoried


def domains_view(hub: Hub) -> dict[str, Any] | None:
    """The memory domains; None while the devices of this machine are still being asked for."""
    if not has_ledger(hub):
        return None
    ledger = hub.residency.ledger
    return {
        name: {
            "budget_bytes": domain.budget_bytes,
            "used_bytes": domain.used_bytes,
            "free_bytes": domain.free_bytes,
            "over_bytes": domain.over_bytes,
            "reported_bytes": ledger.budgets[name].reported_bytes,
            "source": ledger.budgets[name].source,
        }
        for name, domain in ledger.view().domains.items()
    }


def voice_pin_view(hub: Hub) -> dict[str, Any]:
    """The models of ``realtime_defaults``, by role: None where none is named. ``ready``: all that are named are."""
    defaults = hub.settings.realtime_defaults
    models: dict[str, dict[str, Any] | None] = {
        role: None if model_id is None else _pinned(hub, model_id)
        for role, model_id in attrs.asdict(defaults or RealtimeDefaults()).items()
    }
    named = [entry for entry in models.values() if entry is not None]
    return {
        "configured": defaults is not None,
        "ready": bool(named) and all(entry["state"] == State.READY.value for entry in named),
        "models": models,
    }


def _pinned(hub: Hub, model_id: str) -> dict[str, Any]:
    model = dict(hub).get(model_id)
    if model is None:
        return {"model_id": model_id, "registered": False, "kind": None, "state": None, "pinned": None, "device": None}
    actor = model.actor
    return {
        "model_id": model_id,
        "registered": True,
        "kind": model_kind(actor),
        "state": actor.state.value,
        "pinned": actor.settings.pinned,
        "device": actor.device,
    }


def session_view(session: VoiceSession) -> dict[str, Any]:
    """One open voice session now."""
    return {
        "session_id": session.session_id,
        "opened_at": iso_time(session.opened_at),
        "age_secs": round(session.age_secs, 3),
        **session.describe(),
    }


def poisoning_view(record: PoisonRecord) -> dict[str, Any] | None:
    """The last loss of a device, and how many there were; None when there was none."""
    last = record.last
    if last is None:
        return None
    return {"device": last.device, "model": last.model_id, "time": iso_time(last.at), "count": record.count}


def iso_time(seconds: float) -> str:
    """A time since 1970 in UTC, with milliseconds: ``2026-03-01T12:00:00.000Z``."""
    return f"{datetime.fromtimestamp(seconds, UTC).isoformat(timespec='milliseconds').removesuffix('+00:00')}Z"


def runtime_versions(hub: Hub) -> dict[str, str | None]:
    """Versions of the runtime as a worker that is alive now reports them; None where there is none."""
    workers = [worker for _, model in hub if (worker := model.actor.worker) is not None]
    facts: Mapping[str, Any] = next((worker.facts for worker in [*workers, *hub.spares.idle()] if worker.facts), {})
    return {"openvino_version": facts.get("openvino"), "engine_version": facts.get("openvino_genai")}


def _memory(hub: Hub, actor: ModelActor) -> dict[str, Any] | None:
    """What the model is charged and was measured to use; None when it is charged nothing."""
    reservation: Reservation | None = None
    if has_ledger(hub):
        reservation = hub.residency.ledger.get(actor.model_id)
    if reservation is None:
        return None
    return {
        "charged": reservation.charges,
        "reserved": dict(reservation.reserved),
        "measured_peak": dict(reservation.measured_peak),
        "spilled_bytes": actor.spilled_bytes,
        "process": None if actor.memory is None else attrs.asdict(actor.memory),
    }


def _kv_cache(hub: Hub, actor: ModelActor) -> dict[str, Any] | None:
    """The KV pool of a loaded model; None for one that is not loaded or has none."""
    if actor.state not in (State.READY, State.DRAINING) or not actor.blocks_total:
        return None
    figures = actor.statistics()
    used = used_percent(actor)
    size = int(actor.facts["block_size"])
    shape = None if actor.files is None else actor.files.kv_shape
    block_bytes = None if shape is None else shape.block_bytes(size, *cache_precisions(hub.settings, actor.settings))
    return {
        "pool_tokens": figures.blocks_total * size,
        "pool_bytes": None if block_bytes is None else figures.blocks_total * block_bytes,
        "reserved_tokens": figures.blocks_reserved * size,
        "used_percent": None if used is None else round(used, 3),
        "usage_supported": used is not None,
    }


def _kv_pressure(hub: Hub, actor: ModelActor, now: float) -> dict[str, Any] | None:
    """What the monitor found at its last look; None when it is off or does not look at this model."""
    if hub.kv_pressure is None or actor.state is not State.READY or used_percent(actor) is None:
        return None
    pressure = hub.kv_pressure.pressure(actor)
    if pressure is None:
        return {"flagged": False, "above_threshold_secs": None, "flagged_secs": None}
    return {
        "flagged": pressure.flagged_at is not None,
        "above_threshold_secs": round(now - pressure.above_since, 3),
        "flagged_secs": None if pressure.flagged_at is None else round(now - pressure.flagged_at, 3),
    }


def _age(now: float, then: float) -> float | None:
    return round(now - then, 3) if now - then < float("inf") else None
