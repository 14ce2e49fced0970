"""OpenVINO properties a model's ``plugin_config`` may set.

Listed is what tunes speed, precision or scheduling of one compiled model. Left out on purpose is whatever
names a file or a library to be read, written or loaded (caches, weights, kernels, custom operations), what
passes free options to a compiler, and what the server decides itself (devices, logging, profiling).
"""

from typing import Final

from rustedvino.config.problems import suggestion

PLUGIN_PROPERTIES: Final[dict[str, str]] = {
    "PERFORMANCE_HINT": "tune for LATENCY or THROUGHPUT",
    "PERFORMANCE_HINT_NUM_REQUESTS": "requests the hint may assume at once",
    "EXECUTION_MODE_HINT": "PERFORMANCE or ACCURACY",
    "INFERENCE_PRECISION_HINT": "type the device computes in: f32, f16, bf16",
    "MODEL_PRIORITY": "priority among models of one device: LOW, MEDIUM, HIGH",
    "NUM_STREAMS": "independent execution streams",
    "ENABLE_MMAP": "map the weights instead of reading them",
    "COMPILATION_NUM_THREADS": "threads that compile the model",
    "KV_CACHE_PRECISION": "type of the KV cache, in place of the global setting",
    "KEY_CACHE_PRECISION": "type of the keys in the KV cache",
    "VALUE_CACHE_PRECISION": "type of the values in the KV cache",
    "KEY_CACHE_GROUP_SIZE": "quantization group of the keys",
    "VALUE_CACHE_GROUP_SIZE": "quantization group of the values",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": "group of on-the-fly activation quantization; 0 = off",
    "ACTIVATIONS_SCALE_FACTOR": "scale that keeps f16 activations in range",
    "INFERENCE_NUM_THREADS": "CPU threads of inference",
    "ENABLE_CPU_PINNING": "pin inference threads to cores",
    "ENABLE_CPU_RESERVATION": "keep the cores of this model from others",
    "ENABLE_HYPER_THREADING": "use both threads of a core",
    "SCHEDULING_CORE_TYPE": "ANY_CORE, PCORE_ONLY or ECORE_ONLY",
    "MODEL_DISTRIBUTION_POLICY": "how a model spreads over CPU sockets",
    "CPU_DENORMALS_OPTIMIZATION": "treat denormal numbers as zero",
    "CPU_SPARSE_WEIGHTS_DECOMPRESSION_RATE": "sparsity from which weights are decompressed",
    "GPU_QUEUE_PRIORITY": "priority of the device queue",
    "GPU_QUEUE_THROTTLE": "power level of the device queue",
    "GPU_HOST_TASK_PRIORITY": "priority of host threads that feed the GPU",
    "GPU_DISABLE_WINOGRAD_CONVOLUTION": "avoid Winograd kernels (less memory, more exact)",
    "GPU_ENABLE_LOOP_UNROLLING": "unroll loops (faster run, longer compile)",
    "GPU_ENABLE_SDPA_OPTIMIZATION": "use fused attention",
    "GPU_ENABLE_LARGE_ALLOCATIONS": "allow single buffers over 4 GB",
    "NPU_TURBO": "highest clock while the model is active",
    "NPU_TILES": "tiles the model is compiled for",
    "NPU_DEFER_WEIGHTS_LOAD": "load weights at the first request",
    "NPU_QDQ_OPTIMIZATION": "optimise quantized models further",
    "WORKLOAD_TYPE": "DEFAULT or EFFICIENT",
    "PREFILL_HINT": "NPU prompt stage: DYNAMIC or STATIC",
    "GENERATE_HINT": "NPU generation stage: FAST_COMPILE or BEST_PERF",
}

OWN_SETTINGS: Final[dict[str, str]] = {
    "CACHE_DIR": "ov_cache_dir",
    "MAX_PROMPT_LEN": "max_prompt_len",
    "MIN_RESPONSE_LEN": "min_response_len",
}
"""Properties the server sets from settings of its own."""


def plugin_property_fault(name: str) -> str | None:
    """Why ``plugin_config`` may not set a property; None when it may."""
    if name in PLUGIN_PROPERTIES:
        return None
    if name in OWN_SETTINGS:
        return f"is set by the server: use the setting {OWN_SETTINGS[name]}"
    return "is not an OpenVINO property that may be set here" + suggestion(name, PLUGIN_PROPERTIES)
