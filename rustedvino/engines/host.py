"""The engine of a worker that hosts a model: becomes the kind that ``load`` asks for."""

from typing import Any

import openvino
import openvino_genai

from rustedvino.engines.faults import EngineFault
from rustedvino.engines.inventory import read_inventory
from rustedvino.engines.npu_text import NpuTextEngine
from rustedvino.engines.speculative import SpeculativeEngine
from rustedvino.engines.text import TextEngine
from rustedvino.engines.threads import cpu_properties
from rustedvino.engines.vision import VisionEngine
from rustedvino.worker.loop import Delta, Engine, unknown_method

_KINDS: dict[str, type[Engine]] = {"text_gen": TextEngine, "vision": VisionEngine}


def runtime_versions() -> dict[str, str]:
    """Versions of the runtime for the ``hello`` message."""
    return {"openvino": openvino.__version__, "openvino_genai": openvino_genai.__version__}


class ModelEngine:
    """Idle until ``load`` names a kind; then that kind's engine. One load per process."""

    def __init__(self) -> None:
        self._engine: Engine | None = None

    @property
    def busy(self) -> bool:
        """See Engine."""
        return self._engine is not None and self._engine.busy

    def load(self, spec: dict[str, Any]) -> dict[str, Any]:
        """See Engine."""
        if self._engine is not None:
            raise EngineFault("bad_input", "this worker has a model already")
        kind = spec.get("kind")
        if kind not in _KINDS:
            raise EngineFault("bad_input", f"models of kind {kind!r} cannot be loaded by this version")
        engine = _engine(kind, spec)
        properties = cpu_properties(str(spec.get("device")), dict(spec.get("properties") or {}))
        facts = engine.load(spec | {"properties": properties})
        self._engine = engine
        return facts

    def submit(self, sequence: int, prompt: bytes, options: dict[str, Any]) -> bool | None:
        """See Engine."""
        if self._engine is None:
            raise EngineFault("bad_input", "no model is loaded in this worker")
        return self._engine.submit(sequence, prompt, options)

    def cancel(self, sequence: int) -> None:
        """See Engine."""
        if self._engine is not None:
            self._engine.cancel(sequence)

    def step(self) -> tuple[list[Delta], list[Any]]:
        """See Engine."""
        assert self._engine is not None
        return self._engine.step()

    def call(self, method: str, arguments: dict[str, Any]) -> Any:
        """See Engine."""
        if self._engine is None:
            if method == "read_inventory":
                return read_inventory()
            raise unknown_method(method)
        return self._engine.call(method, arguments)


def _engine(kind: str, spec: dict[str, Any]) -> Engine:
    if kind == "text_gen":
        if str(spec.get("device")).startswith("NPU"):
            return NpuTextEngine()
        if spec.get("draft") is not None:
            return SpeculativeEngine()
    return _KINDS[kind]()
