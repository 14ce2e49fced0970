"""Imports go downwards only."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "rustedvino"

# What each folder may import of the project, itself apart. Engines and the rest of a worker know each other's types.
MAY_IMPORT: dict[str, set[str]] = {
    "text": set(),
    "config": set(),
    "api": set(),
    "observe": {"config"},
    "worker": {"engines"},
    "engines": {"worker", "text"},
    "hub": {"config", "observe", "text", "worker"},
    "http": {"", "api", "config", "hub", "observe", "text"},
}


def imports(path: Path) -> set[str]:
    """The folders of the project that a module imports, "" for a module of the root."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        for name in names:
            parts = name.split(".")
            if parts[0] == "rustedvino":
                found.add(parts[1] if len(parts) > 1 and (PACKAGE / parts[1]).is_dir() else "")
    return found


@pytest.mark.parametrize("folder", MAY_IMPORT)
def test_arrows(folder: str) -> None:
    modules = sorted((PACKAGE / folder).rglob("*.py"))
    assert modules
    for module in modules:
        assert imports(module) <= MAY_IMPORT[folder] | {folder}, module.name
