"""What is decided on a machine with two discrete GPUs, as a transcript: placement, eviction, refusals, and what is
charged when.

    python -m qa.two_gpus

The devices are those of ``qa/inventories/two-arc-igpu.json``. The models have sizes by their settings; their workers
are the fault-injecting ones of the tests, which count instead of computing, so no device is needed. Everything else is
the server's own: hub, planner, ledger, actors, processes.
"""

import logging
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import trio
from attrs import define, field, frozen

from rustedvino.config.types import BYTES_PER_GB, ModelSettings, ServerSettings
from rustedvino.hub.actor import ModelActor
from rustedvino.hub.errors import NotReady
from rustedvino.hub.eviction import LoadPlan, Refusal
from rustedvino.hub.hub import Hub
from rustedvino.hub.inventory import load_inventory
from rustedvino.hub.lease import Lease
from rustedvino.hub.residency import NoRoom
from rustedvino.hub.states import State
from tests.support.actors import QUICK, FaultyStarts, first_token, model_folder, request

INVENTORY: Final = Path(__file__).with_name("inventories") / "two-arc-igpu.json"
BOUND_SECS: Final = 120.0
DRAIN_SECS: Final = 0.2
ENDLESS_TOKENS: Final = 100_000

MODELS: Final[Mapping[str, ModelSettings]] = {
    "chat-32b": ModelSettings(vram_gb=17.0, kv_cache_gb=3.0, load="on_demand"),
    "chat-14b": ModelSettings(vram_gb=8.5, kv_cache_gb=3.0, load="on_demand"),
    "chat-7b": ModelSettings(vram_gb=4.5, kv_cache_gb=2.0, load="on_demand"),
    "coder-14b": ModelSettings(vram_gb=8.5, kv_cache_gb=3.0, load="on_demand", device="GPU.1"),
    "coder-22b": ModelSettings(vram_gb=12.5, kv_cache_gb=3.0, load="on_demand", device="GPU.2"),
    "moe-40b": ModelSettings(vram_gb=30.0, kv_cache_gb=4.0, load="on_demand"),
    "giant-180b": ModelSettings(vram_gb=120.0, kv_cache_gb=4.0, load="on_demand"),
}


@frozen(kw_only=True)
class Decision:
    """One step of the transcript, for a test to compare. Sizes are in GB, by memory domain."""

    step: str
    outcome: str
    """``load`` or ``refuse`` of a check, else what came of a load."""
    device: str | None = None
    victims: tuple[str, ...] = ()
    limit: str | None = None
    protected: Mapping[str, str] = field(factory=dict)
    retry: bool | None = None
    """Of a refusal: whether waiting may help."""
    used_gb: Mapping[str, float] = field(factory=dict)


@define(eq=False)
class Transcript:
    """Runs steps on a hub, prints them and keeps the decisions."""

    hub: Hub
    show: Callable[[str], None]
    decisions: list[Decision] = field(factory=list)

    async def check(self, step: str, model_id: str, *, force: bool = False) -> LoadPlan | Refusal:
        """Show what a load would do."""
        decision = await self.hub.check(model_id, force=force)
        self.show(f"\n## {step}\n$ check {model_id}{' --force' if force else ''}")
        self._keep(step, decision)
        return decision

    async def load(self, model_id: str, *, force: bool = False) -> None:
        """Load a model as the check before said, or not at all."""
        self.show(f"$ load {model_id}{' --force' if force else ''}")
        try:
            await self.hub.load(model_id, force=force)
        except NoRoom as error:
            self.show(f"  refused: {error.refusal.message}")
            return
        except NotReady as error:
            self.show(f"  not ready: {error.message}")
            await self.hub.get(model_id).actor.wait_state(State.READY, State.FAILED)
        self.state(model_id)

    async def evict(self, model_id: str) -> None:
        """Evict a model for a load, and show what is charged before and after; the load reserves later."""
        actor = self.hub.get(model_id).actor
        worker = actor.worker
        assert worker is not None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.hub.evict, model_id)
            await actor.wait_state(State.DRAINING)
            self.note(f"{model_id}: drains", outcome="draining" if worker.alive else "gone")
        self.note(f"{model_id}: its process has been reaped", outcome="draining" if worker.alive else "reaped")

    def state(self, model_id: str) -> None:
        """Show where a model is and what is charged now."""
        actor = self.hub.get(model_id).actor
        where = f" on {actor.device}" if actor.state is State.READY else ""
        self.note(f"{model_id}: {actor.state}{where}", outcome=actor.state.value)

    def note(self, step: str, *, outcome: str) -> None:
        """Show a step and what is charged now."""
        used = self.used_gb()
        charged = ", ".join(f"{domain} {size:.2f} GB" for domain, size in used.items())
        self.show(f"  {step}; charged: {charged}")
        self.decisions.append(Decision(step=step, outcome=outcome, used_gb=used))

    def used_gb(self) -> dict[str, float]:
        """What is charged by domain now."""
        view = self.hub.residency.ledger.view()
        return {name: round(domain.used_bytes / BYTES_PER_GB, 2) for name, domain in view.domains.items()}

    def _keep(self, step: str, decision: LoadPlan | Refusal) -> None:
        for reason in decision.reasons:
            self.show(f"  - {reason}")
        if isinstance(decision, LoadPlan):
            victims = ", ".join(decision.victims) or "nobody"
            self.show(f"  => fits on {decision.device}, evicting {victims}")
            self.decisions.append(Decision(step=step, outcome="load", device=decision.device, victims=decision.victims))
            return
        wait = decision.retry_after_secs
        needed, free, evictable = (
            size / BYTES_PER_GB for size in (decision.needed_bytes, decision.free_bytes, decision.evictable_bytes)
        )
        self.show(
            f"  => refused by {decision.limit} ({decision.domain}): {needed:.2f} GB needed, {free:.2f} GB free, "
            f"{evictable:.2f} GB evictable; {'retry later' if wait is not None else 'waiting does not help'}"
        )
        protected = {entry.model_id: entry.why for entry in decision.protected}
        self.decisions.append(
            Decision(step=step, outcome="refuse", limit=decision.limit, protected=protected, retry=wait is not None)
        )


def settings(models_dir: Path) -> ServerSettings:
    """The server of the transcript: 24 GB are configured for a card that has less."""
    return ServerSettings(
        models_dir=models_dir,
        device="GPU.2",
        total_vram_gb=24.0,
        models=dict(MODELS),
        eviction_grace_secs=0.0,
        spare_workers=0,
        drain_timeout_secs=DRAIN_SECS,
        supervisor=QUICK,
    )


async def _begin(actor: ModelActor) -> Lease:
    """A request that runs until it is ended."""
    lease = await actor.lease(request([1, 2, 3], ENDLESS_TOKENS))
    await first_token(lease)
    return lease


async def _steps(transcript: Transcript, workers: FaultyStarts) -> None:
    hub, show = transcript.hub, transcript.show
    await transcript.check("The largest goes to the card that holds it", "chat-32b")
    await transcript.load("chat-32b")
    await transcript.check("The next goes where most is free", "chat-14b")
    await transcript.load("chat-14b")

    await transcript.check("A third needs room: the plan names who goes", "chat-7b")
    workers.faults = ["load-crash", "paced"]
    workers.started = 0
    show("  (its first worker will crash in the load)")
    await transcript.load("chat-7b")
    workers.faults = ["paced"]

    await transcript.check("Too large for a card: the CPU has the memory", "moe-40b")
    await transcript.check("Too large for everything: refused for good", "giant-180b")
    await transcript.load("giant-180b")

    hub.update("chat-32b", ModelSettings(vram_gb=17.0, kv_cache_gb=3.0, load="on_demand", pinned=True))
    lease = await _begin(hub.get("chat-7b").actor)
    show("\n(chat-32b is pinned now, chat-7b runs a request)")
    await transcript.check("Both cards are taken: automatic placement goes on to the CPU", "chat-14b")
    await transcript.check("A model that is bound to a card is refused, for now", "coder-14b")
    await transcript.load("coder-14b")

    await transcript.check("By force the busy one goes", "coder-14b", force=True)
    await transcript.load("coder-14b", force=True)
    show(f"  its request ended with: {lease.sequences[0].failure}")
    lease.close()

    await transcript.check("By force, too, the pinned one stays", "coder-22b", force=True)

    show("\n## What is left is the pinned one\n$ unload coder-14b")
    await hub.evict("coder-14b")
    transcript.state("coder-14b")


async def run(show: Callable[[str], None]) -> list[Decision]:
    """Play the transcript through ``show``, a line at a time. Returns the decisions."""
    inventory = load_inventory(INVENTORY)
    with tempfile.TemporaryDirectory() as folder, trio.fail_after(BOUND_SECS):
        for model_id in MODELS:
            (Path(folder) / model_id).symlink_to(model_folder("tiny-qwen3"))
        hub = Hub(settings(Path(folder)), inventory)
        workers = FaultyStarts(["paced"])
        transcript = Transcript(hub, show)
        async with trio.open_nursery() as nursery:
            await nursery.start(hub.run)
            hub.spares.launcher = workers
            hub.residency.evict = transcript.evict
            show("Devices: " + ", ".join(f"{device.name} {device.full_name}" for device in inventory))
            for name, budget in hub.residency.ledger.budgets.items():
                size = "not gated" if budget.budget_bytes is None else f"{budget.budget_bytes / BYTES_PER_GB:.2f} GB"
                show(f"Budget of {name}: {size} (by {budget.source})")
            await _steps(transcript, workers)
            nursery.cancel_scope.cancel()
    return transcript.decisions


def main() -> None:
    """Print the transcript, with what the server logs of it."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stdout, format="  [log] %(message)s")
    trio.run(run, print)


if __name__ == "__main__":
    main()
