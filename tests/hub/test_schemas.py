"""Constraints on their way to a model: hostile ones end in the utility worker, and few new ones pass at a time."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from rustedvino.hub import schemas
from rustedvino.hub.errors import Busy, EngineFailed, HubError, NotReady, WorkerLost
from rustedvino.hub.process import WorkerStartError
from rustedvino.hub.schemas import (
    ConstraintProver,
    ConstraintRefused,
    NewSchemaLimit,
    admit_constraint,
    constraint_of_schema,
)
from rustedvino.hub.utility import UtilityCrashed, UtilityTimeout, UtilityWorker
from rustedvino.text.constraints import JSON_OBJECT, Constraint, schema_constraint
from rustedvino.text.json_schema import SchemaError
from rustedvino.text.tokenizer import ModelTokenizer
from tests.support.actors import actors, faulty, generate, model_folder

YES: Constraint = {"type": "grammar", "grammar": 'root ::= "yes"'}
TOO_DEEP: Constraint = {"type": "grammar", "grammar": "root ::= " + "(" * 20_000 + '"a"' + ")" * 20_000}
TOO_MUCH: Constraint = {
    "type": "grammar",
    "grammar": "\n".join(
        ["root ::= " + " | ".join(f"r{rule}" for rule in range(20_000))]
        + [f"r{rule} ::= [a-z]{{1,{rule % 120 + 1}}} [^a] r{(rule * 7 + 1) % 20_000}" for rule in range(20_000)]
    ),
}
SCHEMA = {"type": "object", "properties": {"ok": {"type": "boolean"}, "n": {"type": "integer", "maximum": 9}}}


def numbered(number: int) -> Constraint:
    """A constraint that no other number has."""
    return {"type": "grammar", "grammar": f'root ::= "{number}"'}


@asynccontextmanager
async def utility(bound_secs: float = 120.0) -> AsyncIterator[UtilityWorker]:
    """A real utility worker, not started yet."""
    with trio.fail_after(bound_secs):
        async with trio.open_nursery() as nursery:
            yield UtilityWorker(nursery, 60.0)
            nursery.cancel_scope.cancel()


class ScriptedUtility:
    """Answers calls as told, and counts them. The last answer to ``prove_constraint`` goes on for ever."""

    def __init__(self, nursery: trio.Nursery, *proofs: Any, prepared: Any = None) -> None:
        self.nursery = nursery
        self.proofs = list(proofs) or [{"ready": True, "compile_secs": 0.0}]
        self.prepared = prepared
        self.calls: list[str] = []
        self.go = trio.Event()
        self.go.set()

    async def call(self, method: str, arguments: dict[str, Any], *, bound_secs: float, again: bool = True) -> Any:
        """One call."""
        assert again == (method == "prepare_proofs"), "a second proof would meet a process that is not prepared"
        self.calls.append(method)
        await self.go.wait()
        answer = self.prepared
        if method == "prove_constraint":
            assert bound_secs == schemas.PROOF_SECS
            answer = self.proofs.pop(0) if len(self.proofs) > 1 else self.proofs[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def prover(worker: Any) -> ConstraintProver:
    """A prover on any worker."""
    return ConstraintProver(worker)


async def test_hostile_constraints_harm_neither_the_model_nor_the_next_proof() -> None:
    tokenizer = ModelTokenizer.from_folder(model_folder("tiny-qwen3-chat"))
    end = json.loads((model_folder("tiny-qwen3-chat") / "generation_config.json").read_text())["eos_token_id"]
    hostile: list[tuple[Constraint, str]] = [
        ({"type": "regex", "pattern": "(a"}, "parenthesis"),
        ({"type": "regex", "pattern": "(?=a)b"}, "Lookahead"),
        ({"type": "grammar", "grammar": "root ::= missing"}, "missing"),
        ({"type": "json_schema", "schema": '{"not": {}}'}, "not supported"),
        (TOO_DEEP, "came to its end"),
        (TOO_MUCH, "longer than 2 s"),
    ]
    async with utility() as worker, actors("tiny-qwen3-chat") as (actor,):
        actor.load()
        trying, limit = ConstraintProver(worker), NewSchemaLimit()

        async def answer(constraint: Constraint) -> str:
            await admit_constraint(constraint, trying, limit)
            ids = await generate(
                actor, [5, 6, 7], 200, constraint=constraint, ignore_eos=False, eos_token_ids=end, temperature=1.0
            )
            assert ids[-1] in end
            return tokenizer.decode(ids[:-1])

        for constraint, reason in hostile:
            limit.worker_changed()
            limit._admitted.clear()
            for _ in range(2):
                with pytest.raises(ConstraintRefused, match=reason):
                    await admit_constraint(constraint, trying, limit)
            assert await answer(YES) == "yes"
        assert worker.restarts >= 2
        limit._admitted.clear()
        assert set(json.loads(await answer(schema_constraint(SCHEMA)))) <= {"ok", "n"}
        pid = worker.pid
        assert await answer(JSON_OBJECT) is not None
        assert worker.pid == pid


@pytest.mark.parametrize(
    "schema", [{"enum": [f"value {number}" for number in range(100_000)]}, {"properties": {"a": {"$ref": "#"}}}, 5]
)
async def test_hostile_schemas_are_refused_here_already(schema: Any) -> None:
    with pytest.raises(SchemaError):
        await constraint_of_schema(schema)


@pytest.mark.parametrize("values", [3, 900])
async def test_small_and_large_schemas_become_constraints(values: int) -> None:
    schema = {"enum": [f"value {number}" for number in range(values)]}
    assert await constraint_of_schema(schema) == schema_constraint(schema)


async def test_other_calls_are_answered_while_a_hostile_proof_is_killed() -> None:
    async with utility() as worker:
        trying = prover(worker)
        template = {"source": "{{ messages[0]['content'] }}", "tool_use": None, "variables": {}}
        results: list[str] = []

        async def hostile() -> None:
            with pytest.raises(ConstraintRefused):
                await trying.prove(TOO_MUCH)
            results.append("refused")

        async def probe() -> None:
            assert (await worker.call("probe_template", template))["ok"]
            results.append("probed")

        async def prove() -> None:
            await trying.prove(YES)
            results.append("proven")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(hostile)
            for _ in range(3):
                nursery.start_soon(probe)
            nursery.start_soon(prove)
        assert sorted(results) == ["probed", "probed", "probed", "proven", "refused"]


async def test_a_killed_worker_is_started_again_for_the_next_proof() -> None:
    async with utility() as worker:
        trying = prover(worker)
        await trying.prove(numbered(1))
        worker.kill()
        await trying.prove(numbered(2))
        assert worker.restarts == 1


@pytest.mark.parametrize(
    ("faults", "first", "second"),
    [
        (["proof-killed", "proof-killed", ""], NotReady, None),
        (["proof-aborts", "proof-killed", ""], NotReady, None),
        (["proof-killed", ""], None, None),
        (["proof-aborts", "proof-aborts", ""], ConstraintRefused, ConstraintRefused),
    ],
    ids=["killed twice", "died once and killed once", "killed once", "died twice"],
)
async def test_only_what_a_process_dies_of_is_blamed(
    nursery: trio.Nursery, faults: list[str], first: type[HubError] | None, second: type[HubError] | None
) -> None:
    trying = prover(UtilityWorker(nursery, 60.0, launcher=faulty(*faults)))
    with trio.fail_after(60):
        for expected in (first, second):
            if expected is None:
                await trying.prove(YES)
                continue
            with pytest.raises(expected) as found:
                await trying.prove(YES)
            assert (found.value.retry_after_secs is not None) == (expected is NotReady)


async def test_equal_constraints_are_tried_once(nursery: trio.Nursery) -> None:
    worker = ScriptedUtility(nursery)
    worker.go = trio.Event()
    trying = prover(worker)
    async with trio.open_nursery() as several:
        for _ in range(5):
            several.start_soon(trying.prove, dict(YES))
        await trio.testing.wait_all_tasks_blocked()
        worker.go.set()
    await trying.prove(YES)
    assert worker.calls == ["prepare_proofs", "prove_constraint"]


async def test_one_that_gives_up_does_not_take_the_others_with_it(nursery: trio.Nursery) -> None:
    worker = ScriptedUtility(nursery)
    worker.go = trio.Event()
    trying = prover(worker)
    async with trio.open_nursery() as others:
        async with trio.open_nursery() as first:
            first.start_soon(trying.prove, YES)
            await trio.testing.wait_all_tasks_blocked()
            others.start_soon(trying.prove, YES)
            await trio.testing.wait_all_tasks_blocked()
            first.cancel_scope.cancel()
        worker.go.set()
    assert worker.calls == ["prepare_proofs", "prove_constraint"]


READY = {"ready": True, "compile_secs": 0.1}
GONE = {"ready": False, "compile_secs": 0.0}


@pytest.mark.parametrize(
    ("proofs", "attempts", "expected", "remembered"),
    [
        ([READY], 1, None, True),
        ([GONE, READY], 2, None, True),
        ([GONE], 2, NotReady, False),
        ([UtilityTimeout("slow")], 1, ConstraintRefused, True),
        ([UtilityTimeout("busy", starved=True)], 1, NotReady, False),
        ([schemas.BadInput("no")], 1, ConstraintRefused, True),
        ([EngineFailed("out of memory")], 1, ConstraintRefused, True),
        ([UtilityCrashed("SIGSEGV")], 2, ConstraintRefused, True),
        ([UtilityCrashed("SIGSEGV"), READY], 2, None, True),
        ([WorkerLost("SIGKILL")], 2, NotReady, False),
        ([WorkerLost("SIGKILL"), READY], 2, None, True),
        ([UtilityCrashed("SIGSEGV"), WorkerLost("SIGKILL")], 2, NotReady, False),
        ([trio.TooSlowError()], 1, Busy, False),
        ([WorkerStartError("no process")], 1, NotReady, False),
    ],
)
async def test_what_each_end_of_a_trial_means(
    nursery: trio.Nursery, proofs: list[Any], attempts: int, expected: type[Exception] | None, remembered: bool
) -> None:
    worker = ScriptedUtility(nursery, *proofs)
    trying = prover(worker)
    for _ in range(2):
        if expected is None:
            await trying.prove(YES)
        else:
            with pytest.raises(expected):
                await trying.prove(YES)
    assert worker.calls.count("prove_constraint") == attempts * (1 if remembered else 2)


async def test_a_preparation_that_fails_says_nothing_of_the_constraint(nursery: trio.Nursery) -> None:
    worker = ScriptedUtility(nursery, prepared=UtilityTimeout("slow"))
    trying = prover(worker)
    with pytest.raises(NotReady) as found:
        await trying.prove(YES)
    assert found.value.retry_after_secs
    worker.prepared = None
    await trying.prove(YES)


async def test_only_so_many_trials_wait(nursery: trio.Nursery) -> None:
    worker = ScriptedUtility(nursery)
    worker.go = trio.Event()
    trying = prover(worker)
    async with trio.open_nursery() as several:
        for number in range(schemas.MAX_WAITING_PROOFS):
            several.start_soon(trying.prove, numbered(number))
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(Busy):
            await trying.prove(numbered(-1))
        several.start_soon(trying.prove, numbered(0))
        await trio.testing.wait_all_tasks_blocked()
        worker.go.set()


async def test_verdicts_are_forgotten_at_last(nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schemas, "MAX_VERDICTS", 2)
    worker = ScriptedUtility(nursery)
    trying = prover(worker)
    for number in (1, 2, 1, 3, 1, 2):
        await trying.prove(numbered(number))
    assert worker.calls.count("prove_constraint") == 4


async def test_new_schemas_are_limited_and_known_ones_free(autojump_clock: trio.testing.MockClock) -> None:
    limit = NewSchemaLimit()
    for number in range(schemas.NEW_SCHEMAS):
        limit.admit(numbered(number))
        await trio.sleep(1)
    with pytest.raises(Busy) as found:
        limit.admit(numbered(99))
    assert found.value.retry_after_secs == pytest.approx(schemas.NEW_SCHEMAS_SECS - schemas.NEW_SCHEMAS)
    limit.admit(numbered(0))
    await trio.sleep(found.value.retry_after_secs)
    limit.admit(numbered(99))
    with pytest.raises(Busy):
        limit.admit(numbered(100))
    limit.worker_changed()
    with pytest.raises(Busy):
        limit.admit(numbered(0))


def test_the_step_that_compiles_is_reported() -> None:
    seconds: list[float] = []
    limit = NewSchemaLimit(seconds.append)
    limit.step_ended(0.1)
    limit.submitted(YES)
    limit.step_ended(0.2)
    limit.step_ended(0.3)
    limit.submitted(YES)
    limit.step_ended(0.4)
    limit.worker_changed()
    limit.submitted(YES)
    limit.step_ended(0.5)
    assert seconds == [0.2, 0.5]


async def test_a_refused_constraint_costs_the_model_nothing_more(nursery: trio.Nursery) -> None:
    worker = ScriptedUtility(nursery, schemas.BadInput("no"))
    trying, limit = prover(worker), NewSchemaLimit()
    for _ in range(schemas.NEW_SCHEMAS + 2):
        with pytest.raises(ConstraintRefused):
            await admit_constraint(YES, trying, limit)
    for number in range(schemas.NEW_SCHEMAS - 1):
        limit.admit(numbered(number))
