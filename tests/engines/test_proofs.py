"""Proofs of constraints: the verdicts, and that the next proof works after any."""

from pathlib import Path
from typing import Any

import pytest

from rustedvino.engines import proofs
from rustedvino.engines.faults import EngineFault
from rustedvino.engines.proofs import ConstraintProofs
from rustedvino.text.constraints import schema_constraint
from rustedvino.worker import platform

GOOD = {"type": "grammar", "grammar": 'root ::= "a" [0-9]{2}'}


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> ConstraintProofs:
    """Proofs in this process, whose own address space is left alone."""
    limits: list[int | None] = []
    monkeypatch.setattr(platform, "limit_resources", lambda *, address_space_bytes: limits.append(address_space_bytes))
    made = ConstraintProofs(address_space_bytes=123)
    made.prepare()
    assert limits == [proofs.ADDRESS_SPACE_WHILE_LOADING_BYTES, 123]
    made.prepare()
    assert len(limits) == 2
    return made


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ({"type": "regex", "pattern": "(a"}, "parenthesis"),
        ({"type": "regex", "pattern": "(?=a)b"}, "Lookahead"),
        ({"type": "grammar", "grammar": "root ::= missing"}, "missing"),
        ({"type": "grammar", "grammar": ""}, "root"),
        ({"type": "structural_tag", "format": {"type": "made up"}}, "made up"),
        ({"type": "json_schema", "schema": '{"not": {}}'}, "not"),
        ({"type": "made up"}, "made up"),
    ],
)
def test_a_bad_constraint_is_named_and_leaves_the_next_alone(
    engine: ConstraintProofs, bad: dict[str, Any], reason: str
) -> None:
    with pytest.raises(EngineFault, match=reason) as found:
        engine.prove(bad)
    assert found.value.kind == "bad_input"
    assert "/" not in found.value.message.split(":")[0], "a place in the runtime's source"
    assert engine.prove(GOOD)["ready"]


def test_unprepared_proofs_say_so() -> None:
    assert ConstraintProofs(address_space_bytes=0).prove(GOOD) == {"ready": False, "compile_secs": 0.0}


def test_a_pipeline_is_given_up_with_its_grammars(engine: ConstraintProofs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proofs, "PROOFS_PER_PIPELINE", 2)
    assert [engine.prove(GOOD)["ready"] for _ in range(3)] == [True, True, False]
    engine.prepare()
    assert engine.prove(schema_constraint({"type": "integer"}))["ready"]


def test_the_demo_model_is_there() -> None:
    assert (Path(proofs.DEMO_MODEL) / "openvino_model.xml").is_file()
