"""What a CPU may compute in with one thread per stream."""

import sys
from typing import Any, Final

import openvino as ov
from openvino import opset13 as ops

from rustedvino.engines.faults import EngineFault

_SCHEDULING: Final = frozenset(
    {
        "ENABLE_HYPER_THREADING",
        "INFERENCE_NUM_THREADS",
        "INFERENCE_PRECISION_HINT",
        "EXECUTION_MODE_HINT",
        "NUM_STREAMS",
        "PERFORMANCE_HINT",
        "PERFORMANCE_HINT_NUM_REQUESTS",
        "SCHEDULING_CORE_TYPE",
    }
)
_SAFE: Final = "f32"


def cpu_properties(device: str, properties: dict[str, Any]) -> dict[str, Any]:
    """``properties`` of a model, safe on this CPU.

    Where the CPU computes in bfloat16 (AMX), the runtime splits the fused layers of a language model over half the
    threads of a stream: with one thread that is a division by zero that ends the process (SIGFPE, seen with 2026.4.1).
    Such a model computes in float32 instead. Raises EngineFault where the properties ask for another type.
    """
    if device != "CPU" or not _divides_by_zero(properties):
        return properties
    wanted = properties.get("INFERENCE_PRECISION_HINT")
    if wanted is not None:
        raise EngineFault(
            "bad_input",
            f"INFERENCE_PRECISION_HINT {wanted} needs at least two threads in each stream on this CPU: "
            f"raise num_threads, lower NUM_STREAMS or use {_SAFE}",
        )
    sys.stderr.write(f"one thread in each stream: computing in {_SAFE} on this CPU\n")
    return properties | {"INFERENCE_PRECISION_HINT": _SAFE}


def _divides_by_zero(properties: dict[str, Any]) -> bool:
    core = ov.Core()
    relevant = {name: value for name, value in properties.items() if name in _SCHEDULING}
    compiled = core.compile_model(_smallest_model(), "CPU", relevant)
    if compiled.get_property("INFERENCE_PRECISION_HINT") == ov.Type.f32:
        return False
    # How many streams a hint makes depends on the model.
    if str(properties.get("PERFORMANCE_HINT", "LATENCY")).upper() != "LATENCY":
        return True
    return bool(compiled.get_property("INFERENCE_NUM_THREADS") < 2 * compiled.get_property("NUM_STREAMS"))


def _smallest_model() -> ov.Model:
    value = ops.parameter([1], ov.Type.f32)
    return ov.Model([ops.relu(value)], [value])
