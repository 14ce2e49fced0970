"""Engines: plain synchronous classes around the runtime. Imported inside a worker process only."""

import sys

# The runtime's telemetry package forks a child at import that posts to an analytics service. Nobody asked for that, and
# a fork of a process with native threads is a hazard of its own. Without the package the runtime uses its stub.
sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
