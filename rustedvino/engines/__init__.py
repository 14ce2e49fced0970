"""Engines: plain synchronous classes around the runtime. Imported inside a worker process only."""
