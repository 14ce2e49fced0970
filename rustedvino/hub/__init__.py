"""The hub: models, their actors and workers, admission. Knows nothing of HTTP."""
