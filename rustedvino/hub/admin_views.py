"""What an administrator sees of the hub: models, memory, files, as JSON values. Sizes are in bytes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from rustedvino.config.load import dump_settings
from rustedvino.config.types import ModelKind, ModelSettings
from rustedvino.hub.actor import ModelActor
from rustedvino.hub.hub import Hub
from rustedvino.hub.ledger import Reservation
from rustedvino.hub.model_files import ModelProblem, inspect_folder, missing_files
from rustedvino.hub.states import WITH_WORKER, State

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


def runtime_versions(hub: Hub) -> dict[str, str | None]:
    """Versions of the runtime as a worker that is alive now reports them; None where there is none."""
    workers = [worker for _, model in hub if (worker := model.actor.worker) is not None]
    facts: Mapping[str, Any] = next((worker.facts for worker in [*workers, *hub.spares.idle()] if worker.facts), {})
    return {"openvino_version": facts.get("openvino"), "engine_version": facts.get("openvino_genai")}


def completeness(folder: Path, kind: ModelKind | None) -> dict[str, Any]:
    """Whether a model's files are all there and can be read. Reads files: call it in a thread."""
    try:
        files = inspect_folder(folder, kind)
    except ModelProblem as error:
        return {
            "complete": False,
            "kind": kind,
            "missing": missing_files(folder, kind) if kind is not None else [],
            "problem": str(error),
        }
    return {"complete": True, "kind": files.kind, "missing": [], "problem": None}


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
        "process": None if actor.memory is None else attrs.asdict(actor.memory),
    }


def _kv_cache(hub: Hub, actor: ModelActor) -> dict[str, Any] | None:
    """The KV pool of a loaded model; None for one that is not loaded or has none."""
    if actor.state not in (State.READY, State.DRAINING) or not actor.blocks_total:
        return None
    figures = actor.statistics()
    size = int(actor.facts["block_size"])
    shape = None if actor.files is None else actor.files.kv_shape
    block_bytes = None if shape is None else shape.block_bytes(size, hub.settings.kv_cache_precision)
    return {
        "pool_tokens": figures.blocks_total * size,
        "pool_bytes": None if block_bytes is None else figures.blocks_total * block_bytes,
        "reserved_tokens": figures.blocks_reserved * size,
        "used_percent": round(figures.cache_usage_percent, 3),
    }


def _age(now: float, then: float) -> float | None:
    return round(now - then, 3) if now - then < float("inf") else None
