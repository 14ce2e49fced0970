"""The life of a model as data: state × event → state. Changes happen through :func:`next_state` only."""

import sys
from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final


class State(StrEnum):
    """Where a model is in its life."""

    NOT_LOADED = "not_loaded"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    RESTARTING = "restarting"
    FAILED = "failed"
    GONE = "gone"


class Event(StrEnum):
    """What can happen to a model."""

    LOAD = "load"
    """An admin load, a preload, a changed entry: somebody wants it resident."""
    REQUEST = "request"
    """A request arrived for a model that loads on demand."""
    READY = "ready"
    """The worker reported the model loaded and warm."""
    LOAD_ERROR = "load error"
    """The worker or the files say that this model cannot be loaded."""
    CRASH = "crash"
    """The worker ended by itself, or broke the protocol."""
    STALL = "stall"
    """The worker made no progress within its bound and was killed."""
    EXHAUSTED = "exhausted"
    """Too many deaths within the window."""
    OUT_OF_MEMORY = "out of memory"
    """Too many loads in a row ended for lack of memory."""
    RETRY_TIME = "retry time"
    """The backoff of a restart, or the window after a failure, has passed."""
    CANCEL_LOAD = "cancel load"
    """Nobody wants the load any more."""
    DRAIN = "drain"
    """Unload: no new requests, running ones may end."""
    DRAINED = "drained"
    """The last running request ended, and the worker with it."""
    DEADLINE = "deadline"
    """A load or a drain reached its bound."""
    DEREGISTER = "deregister"
    """The model is taken out of the registry."""


_S, _E = State, Event

TRANSITIONS: Final[Mapping[tuple[State, Event], State]] = MappingProxyType(
    {
        (_S.NOT_LOADED, _E.LOAD): _S.LOADING,
        (_S.NOT_LOADED, _E.REQUEST): _S.LOADING,
        (_S.NOT_LOADED, _E.DEREGISTER): _S.GONE,
        (_S.LOADING, _E.READY): _S.READY,
        (_S.LOADING, _E.LOAD_ERROR): _S.FAILED,
        (_S.LOADING, _E.CRASH): _S.RESTARTING,
        (_S.LOADING, _E.STALL): _S.RESTARTING,
        (_S.LOADING, _E.EXHAUSTED): _S.FAILED,
        (_S.LOADING, _E.OUT_OF_MEMORY): _S.FAILED,
        (_S.LOADING, _E.DEADLINE): _S.FAILED,
        (_S.LOADING, _E.CANCEL_LOAD): _S.NOT_LOADED,
        (_S.LOADING, _E.DRAIN): _S.NOT_LOADED,
        (_S.LOADING, _E.DEREGISTER): _S.GONE,
        (_S.READY, _E.CRASH): _S.RESTARTING,
        (_S.READY, _E.STALL): _S.RESTARTING,
        (_S.READY, _E.EXHAUSTED): _S.FAILED,
        (_S.READY, _E.DRAIN): _S.DRAINING,
        (_S.READY, _E.DEREGISTER): _S.GONE,
        (_S.DRAINING, _E.DRAINED): _S.NOT_LOADED,
        (_S.DRAINING, _E.DEADLINE): _S.NOT_LOADED,
        (_S.DRAINING, _E.CRASH): _S.NOT_LOADED,
        (_S.DRAINING, _E.STALL): _S.NOT_LOADED,
        (_S.DRAINING, _E.DEREGISTER): _S.GONE,
        (_S.RESTARTING, _E.RETRY_TIME): _S.LOADING,
        (_S.RESTARTING, _E.LOAD): _S.LOADING,
        (_S.RESTARTING, _E.EXHAUSTED): _S.FAILED,
        (_S.RESTARTING, _E.CANCEL_LOAD): _S.NOT_LOADED,
        (_S.RESTARTING, _E.DRAIN): _S.NOT_LOADED,
        (_S.RESTARTING, _E.DEREGISTER): _S.GONE,
        (_S.FAILED, _E.LOAD): _S.LOADING,
        (_S.FAILED, _E.RETRY_TIME): _S.LOADING,
        (_S.FAILED, _E.DRAIN): _S.NOT_LOADED,
        (_S.FAILED, _E.DEREGISTER): _S.GONE,
    }
)

# States in which a worker process belongs to the model.
WITH_WORKER: Final = frozenset({State.LOADING, State.READY, State.DRAINING})


def next_state(state: State, event: Event) -> State:
    """The state after ``event``; the same state where the event means nothing there."""
    return TRANSITIONS.get((state, event), state)


def table_markdown() -> str:
    """The whole table for the documentation, as ``python -m rustedvino.hub.states`` prints it."""
    header = "| state | " + " | ".join(event.value for event in Event) + " |"
    rule = "|" + "---|" * (len(Event) + 1)
    rows = [
        "| "
        + " | ".join(
            [state.value]
            + [TRANSITIONS[state, event].value if (state, event) in TRANSITIONS else "–" for event in Event]
        )
        + " |"
        for state in State
    ]
    return "\n".join([header, rule, *rows])


if __name__ == "__main__":
    sys.stdout.write(table_markdown() + "\n")
