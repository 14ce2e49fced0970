"""One thread in each stream: a process of its own tries, for a wrong answer ends it."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import openvino as ov
import pytest

from rustedvino.engines.faults import EngineFault
from rustedvino.engines.threads import cpu_properties

MODEL = Path(__file__).resolve().parents[1] / "models" / "tiny-qwen3"
OPEN = """
import sys
import openvino_genai as genai
from rustedvino.engines.threads import cpu_properties
scheduler = genai.SchedulerConfig()
scheduler.num_kv_blocks = 8
pipeline = genai.ContinuousBatchingPipeline(sys.argv[1], scheduler, "CPU", cpu_properties("CPU", eval(sys.argv[2])))
config = genai.GenerationConfig(max_new_tokens=3, ignore_eos=True)
assert len(pipeline.generate(["a b c"], [config])[0].m_generation_ids) == 1
"""
ONE_THREAD: list[dict[str, Any]] = [
    {"INFERENCE_NUM_THREADS": 1},
    {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "f32"},
    {"INFERENCE_NUM_THREADS": 1, "EXECUTION_MODE_HINT": "ACCURACY"},
    {"INFERENCE_NUM_THREADS": 2, "NUM_STREAMS": 2},
    {"NUM_STREAMS": 4},
    {"PERFORMANCE_HINT": "THROUGHPUT"},
]


@pytest.mark.parametrize("properties", [{}, *ONE_THREAD], ids=str)
def test_a_model_opens(properties: dict[str, Any]) -> None:
    tried = subprocess.run([sys.executable, "-c", OPEN, MODEL, repr(properties)], capture_output=True, text=True)
    assert tried.returncode == 0, tried.stderr[-2000:]


@pytest.mark.parametrize("properties", ONE_THREAD, ids=str)
@pytest.mark.parametrize("device", ["GPU", "GPU.1", "NPU"])
def test_other_devices_keep_their_properties(device: str, properties: dict[str, Any]) -> None:
    assert cpu_properties(device, properties) is properties


@pytest.mark.skipif(
    "BF16" not in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"), reason="this CPU has no bfloat16"
)
def test_what_cannot_be_is_refused_by_name() -> None:
    with pytest.raises(EngineFault, match="num_threads") as found:
        cpu_properties("CPU", {"INFERENCE_NUM_THREADS": 1, "INFERENCE_PRECISION_HINT": "bf16"})
    assert found.value.kind == "bad_input"
