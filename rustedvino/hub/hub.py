"""All models of one server: their actors, the workers, the utility worker, and the order in which they end."""

import logging
from collections.abc import Iterator

import trio
from attrs import define, field

from rustedvino.config.types import ServerSettings
from rustedvino.hub.actor import ModelActor
from rustedvino.hub.admission import DeviceQueue
from rustedvino.hub.errors import UnknownModel
from rustedvino.hub.process import WorkerStartError
from rustedvino.hub.runtime_tokenizer import RuntimeTokenizer
from rustedvino.hub.spares import SparePool
from rustedvino.hub.states import State
from rustedvino.hub.text_assets import TextAssets, TextModel
from rustedvino.hub.utility import UtilityWorker

log = logging.getLogger(__name__)


@define(eq=False)
class Model:
    """A registered model: its actor and its text side."""

    actor: ModelActor
    text: TextModel

    async def assets(self) -> TextAssets:
        """The text side, ready for use: a model that its worker must tokenize for is loaded first.

        Raises ModelProblem and NotReady.
        """
        assets = await self.text.assets()
        if isinstance(assets.tokenizer, RuntimeTokenizer):
            await self.actor.ready()
            assets = await self.text.assets()
        return assets


@define(eq=False)
class Hub:
    """Start with ``await nursery.start(hub.run)``. Worker processes outlive the actors, and end with the hub."""

    settings: ServerSettings
    spares: SparePool = field(init=False)
    utility: UtilityWorker = field(init=False)
    _models: dict[str, Model] = field(factory=dict)
    _queues: dict[str, DeviceQueue] = field(factory=dict)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run everything until cancelled."""
        async with trio.open_nursery() as processes:
            stall_secs = self.settings.worker_stall_secs
            self.spares = SparePool(processes, self.settings.spare_workers, stall_secs)
            self.utility = UtilityWorker(processes, stall_secs)
            async with trio.open_nursery() as actors:
                for model_id, entry in self.settings.models.items():
                    text = TextModel(model_id, entry, self.settings, self.utility)
                    device = entry.device or self.settings.device
                    actor = ModelActor(
                        model_id,
                        entry,
                        self.settings,
                        device,
                        self._queue(device),
                        self.spares,
                        text.prepare,
                        text.accept,
                    )
                    self._models[model_id] = Model(actor, text)
                    actors.start_soon(actor.run)
                actors.start_soon(self.spares.run)
                actors.start_soon(self._start_utility)
                task_status.started()
                for model in self.eager():
                    model.actor.load()
                await trio.sleep_forever()

    def get(self, model_id: str) -> Model:
        """The model of that id, never another. Raises UnknownModel."""
        model = self._models.get(model_id)
        if model is None:
            raise UnknownModel(f"the model {model_id!r} does not exist")
        return model

    def __iter__(self) -> Iterator[tuple[str, Model]]:
        return iter(self._models.items())

    def eager(self) -> list[Model]:
        """The models that are loaded at start: the eager ones and those of ``preload``."""
        return [
            model
            for model_id, model in self._models.items()
            if model.actor.settings.load == "eager" or model_id in self.settings.preload
        ]

    def not_ready(self) -> list[ModelActor]:
        """The models that should be ready by themselves and are not."""
        return [model.actor for model in self.eager() if model.actor.state is not State.READY]

    def abort(self, reason: str) -> None:
        """End every request on every model now."""
        for model in self._models.values():
            model.actor.abort(reason)

    def _queue(self, device: str) -> DeviceQueue:
        if device not in self._queues:
            self._queues[device] = DeviceQueue(self.settings.device_budgets.get(device))
        return self._queues[device]

    async def _start_utility(self) -> None:
        """Have the utility worker ready before the first request needs it."""
        try:
            await self.utility.start()
        except WorkerStartError as error:
            log.error("the utility worker does not start: %s", error)
