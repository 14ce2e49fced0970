"""Constraints on output before they reach a model: proven elsewhere, and few new ones at a time."""

import logging
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any, Final

import trio
from attrs import define, field

from rustedvino.hub.errors import BadInput, Busy, EngineFailed, HubError, NotReady, WorkerLost
from rustedvino.hub.process import WorkerStartError
from rustedvino.hub.utility import UtilityCrashed, UtilityTimeout, UtilityWorker
from rustedvino.text.constraints import Constraint, constraint_key, schema_constraint
from rustedvino.text.json_schema import normalise

log = logging.getLogger(__name__)

PREPARE_SECS: Final = 60.0
"""Import of the runtime and load of the demo model, on a machine with every core busy."""
PROOF_SECS: Final = 2.0
PROOF_ATTEMPTS: Final = 2
"""A worker may be ended by other work, or from outside, between its preparation and the end of the proof. A constraint
that it dies of is to blame when it dies each time."""
MAX_VERDICTS: Final = 4096
MAX_WAITING_PROOFS: Final = 16
RETRY_AFTER_SECS: Final = 5.0

NEW_SCHEMAS: Final = 4
NEW_SCHEMAS_SECS: Final = 60.0
MAX_KNOWN_SCHEMAS: Final = 4096


SMALL_SCHEMA_CHARS: Final = 2048


class ConstraintRefused(BadInput):
    """The constraint does not compile, or not within its bounds: change it."""


@define(eq=False)
class _Proof:
    done: trio.Event = field(factory=trio.Event)
    error: HubError | None = None


@define(eq=False)
class ConstraintProver:
    """Tries constraints in the utility worker and remembers how it went."""

    utility: UtilityWorker
    _verdicts: OrderedDict[bytes, str | None] = field(factory=OrderedDict)  # None: proven
    _running: dict[bytes, _Proof] = field(factory=dict)

    async def prove(self, constraint: Constraint) -> None:
        """Return when the constraint is known to compile.

        Raises ConstraintRefused when it does not, Busy when too many wait or the utility worker is overloaded, NotReady
        when the trial could not be made. Cancellation leaves the trial running, for the others that wait for it.
        """
        key = constraint_key(constraint)
        if key in self._verdicts:
            self._verdicts.move_to_end(key)
            self.refuse_known(constraint)
            await trio.lowlevel.checkpoint()
            return
        proof = self._running.get(key)
        if proof is None:
            if len(self._running) >= MAX_WAITING_PROOFS:
                raise Busy("too many new output schemas at a time", retry_after_secs=RETRY_AFTER_SECS)
            proof = self._running[key] = _Proof()
            self.utility.nursery.start_soon(self._run, key, constraint, proof)
        await proof.done.wait()
        if proof.error is not None:
            # One instance raised in several tasks would mix their tracebacks.
            raise _copy(proof.error)

    def refuse_known(self, constraint: Constraint) -> None:
        """Raise ConstraintRefused when the constraint has been refused before."""
        reason = self._verdicts.get(constraint_key(constraint))
        if reason is not None:
            raise ConstraintRefused(reason)

    async def _run(self, key: bytes, constraint: Constraint, proof: _Proof) -> None:
        try:
            await self._try(constraint)
        except ConstraintRefused as error:
            proof.error = error
            self._remember(key, error.message)
        except HubError as error:
            proof.error = error
        except trio.TooSlowError:
            proof.error = Busy("too many new output schemas at a time", retry_after_secs=RETRY_AFTER_SECS)
        except WorkerStartError as error:
            proof.error = _unavailable(str(error))
        else:
            self._remember(key, None)
        finally:
            if proof.error is None and key not in self._verdicts:
                proof.error = _unavailable("the server is ending")
            del self._running[key]
            proof.done.set()

    async def _try(self, constraint: Constraint) -> None:
        crashes = 0
        for _ in range(PROOF_ATTEMPTS):
            try:
                await self.utility.call("prepare_proofs", {}, bound_secs=PREPARE_SECS)
            except (UtilityTimeout, BadInput, EngineFailed, WorkerLost) as error:
                raise _unavailable(str(error)) from error
            try:
                reply = await self.utility.call(
                    "prove_constraint", {"constraint": constraint}, bound_secs=PROOF_SECS, again=False
                )
            except UtilityTimeout as error:
                if error.starved:
                    raise _unavailable("this machine is too busy") from error
                raise ConstraintRefused(f"it takes longer than {PROOF_SECS:g} s to compile") from error
            except BadInput as error:
                raise ConstraintRefused(f"it cannot be compiled: {error.message}") from error
            except EngineFailed as error:
                raise ConstraintRefused("it takes more memory than it may to compile") from error
            except WorkerLost as error:
                crashes += isinstance(error, UtilityCrashed)
                log.warning("the utility worker was lost while it tried a constraint: %s", error.message)
                continue
            if reply["ready"]:
                log.debug("a new constraint was proven in %.3f s", reply["compile_secs"])
                return
        if crashes == PROOF_ATTEMPTS:
            raise ConstraintRefused("the process that compiled it came to its end each time")
        raise _unavailable("the process for it was lost")

    def _remember(self, key: bytes, reason: str | None) -> None:
        self._verdicts[key] = reason
        while len(self._verdicts) > MAX_VERDICTS:
            self._verdicts.popitem(last=False)


def _unavailable(reason: str) -> NotReady:
    message = f"output schemas cannot be tried now: {reason}"
    return NotReady("schema_trial_unavailable", message, retry_after_secs=RETRY_AFTER_SECS)


def _copy(error: HubError) -> HubError:
    if isinstance(error, NotReady):
        return NotReady(error.reason, error.message, retry_after_secs=error.retry_after_secs)
    return type(error)(error.message, retry_after_secs=error.retry_after_secs)


def _ignore(_: float) -> None:
    """Nobody counts compilations."""


@define(eq=False)
class NewSchemaLimit:
    """How many constraints new to a model's worker may reach it in a while: each holds up a step for its compilation.

    The runtime keeps what it has compiled, so that a constraint costs a worker once. ``on_compiled`` is told the
    seconds of each step that compiled.
    """

    on_compiled: Callable[[float], None] = _ignore
    _known: OrderedDict[bytes, None] = field(factory=OrderedDict)
    _admitted: deque[float] = field(factory=deque)
    _compiled: set[bytes] = field(factory=set)
    _compiling: bool = False

    def admit(self, constraint: Constraint) -> None:
        """Let a constraint pass, free when it is known here. Raises Busy with the seconds until the next may come."""
        key = constraint_key(constraint)
        if key in self._known:
            self._known.move_to_end(key)
            return
        now = trio.current_time()
        while self._admitted and now - self._admitted[0] >= NEW_SCHEMAS_SECS:
            self._admitted.popleft()
        if len(self._admitted) >= NEW_SCHEMAS:
            raise Busy(
                f"more than {NEW_SCHEMAS} new output schemas within {NEW_SCHEMAS_SECS:g} s on this model",
                retry_after_secs=max(1.0, NEW_SCHEMAS_SECS - (now - self._admitted[0])),
            )
        self._admitted.append(now)
        self._known[key] = None
        while len(self._known) > MAX_KNOWN_SCHEMAS:
            self._known.popitem(last=False)

    def submitted(self, constraint: Constraint) -> None:
        """A request with the constraint is on its way to the worker, whose next step compiles it if it is new there."""
        key = constraint_key(constraint)
        if key not in self._compiled:
            self._compiled.add(key)
            self._compiling = True

    def step_ended(self, seconds: float) -> None:
        """The worker made a step of that length."""
        if self._compiling:
            self._compiling = False
            self.on_compiled(seconds)

    def worker_changed(self) -> None:
        """The model has a new process, which has compiled nothing yet."""
        self._known.clear()
        self._compiled.clear()
        self._compiling = False


async def constraint_of_schema(schema: Any) -> Constraint:
    """The constraint of a JSON schema; a large one is made in a thread. Raises SchemaError."""
    if len(normalise(schema)) <= SMALL_SCHEMA_CHARS:
        await trio.lowlevel.checkpoint()
        return schema_constraint(schema)
    return await trio.to_thread.run_sync(schema_constraint, schema)


async def admit_constraint(constraint: Constraint, prover: ConstraintProver, limit: NewSchemaLimit) -> None:
    """Everything that a constraint must pass before a request with it is sent to a model's worker.

    Raises ConstraintRefused, Busy, NotReady.
    """
    prover.refuse_known(constraint)
    await prover.prove(constraint)
    limit.admit(constraint)  # after the proof: what does not compile must not use up what others may send
