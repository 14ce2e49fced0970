"""Faults of this server's own code, kept where they happen: a model or a chore suffers, the server goes on."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

log = logging.getLogger(__name__)


@contextmanager
def contained(what: str) -> Iterator[None]:
    """Log what the body raises and go on behind it. For work whose next time comes by itself; cancellation passes."""
    try:
        yield
    except Exception:
        log.exception("internal error in %s", what)
