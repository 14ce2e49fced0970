"""What the server costs over the bare runtime. Not installed with the package; see docs/BENCHMARKS.md."""
