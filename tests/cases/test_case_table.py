"""docs/CASES.md names tests that exist."""

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
TABLE = (REPOSITORY / "docs" / "CASES.md").read_text("utf-8")
NAMED = sorted(set(re.findall(r"`((?:[a-z0-9_]+/)+test_[a-z0-9_]+\.py)(?:::([A-Za-z0-9_:]+))?`", TABLE)))


@pytest.mark.parametrize(("path", "name"), NAMED)
def test_a_named_test_exists(path: str, name: str) -> None:
    file = REPOSITORY / ("" if path.startswith("tests/") else "tests") / path
    text = file.read_text("utf-8")
    *classes, function = name.split("::") if name else [""]
    for label in classes:
        assert re.search(rf"^class {label}\b", text, re.MULTILINE)
    assert re.search(rf"^ *(async )?def {function}\(", text, re.MULTILINE) or not function


def test_every_row_has_a_test_or_a_reason() -> None:
    rows = [line for line in TABLE.splitlines() if re.match(r"\| [A-D]\d\d ", line)]
    assert len({row[:6] for row in rows}) == len(rows) > 60
    for row in rows:
        shown = row.rsplit("|", 2)[1].strip()
        assert "test_" in shown or "later" in row or "not applicable" in row, row
