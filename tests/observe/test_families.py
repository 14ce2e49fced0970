"""The documents about metrics say what the server shows."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from rustedvino.observe.families import FAMILIES, PREFIX, markdown_table

DOCS = Path(__file__).parents[2] / "docs"
DASHBOARD = DOCS / "grafana-dashboard.json"
ALERTS = DOCS / "alerts.yml"
FAMILY_BY_SAMPLE = {
    f"{PREFIX}{family.name}{suffix}": family
    for family in FAMILIES
    for suffix in (("_bucket", "_sum", "_count") if family.type == "histogram" else ("",))
}


def expressions(node: Any) -> list[str]:
    """Every expression and query of a dashboard."""
    if isinstance(node, list):
        return [text for item in node for text in expressions(item)]
    if not isinstance(node, dict):
        return []
    own = [node[key] for key in ("expr", "query", "definition") if isinstance(node.get(key), str)]
    return own + expressions(list(node.values()))


def alert_expressions() -> list[str]:
    return re.findall(r"^\s+expr: (.+)$", ALERTS.read_text(), re.MULTILINE)


def check(expression: str) -> None:
    """Names exist, and labels are labels of the families named; counters are looked at by their increase."""
    names = re.findall(rf"{PREFIX}\w+", expression)
    unknown = [name for name in names if name not in FAMILY_BY_SAMPLE]
    assert unknown == [], expression
    labels = {"le"}
    for name in names:
        labels |= {*FAMILY_BY_SAMPLE[name].labels, *(FAMILY_BY_SAMPLE[name].also or ())}
    used = {
        label.strip()
        for group in re.findall(r"\b(?:by|on|ignoring|without) ?\(([^)]*)\)", expression)
        for label in group.split(",")
    }
    used |= set(re.findall(r"[{,]\s*(\w+)\s*(?:=~|!~|!=|=)", expression))
    used |= set(re.findall(r"label_values\([^,]+, (\w+)\)", expression))
    assert used - {"", "job", "instance"} <= labels, expression
    for name in names:
        if FAMILY_BY_SAMPLE[name].type != "gauge" and "label_values" not in expression:
            assert re.search(rf"(rate|increase)\({name}\b", expression), expression


def test_the_table_of_the_page_is_the_contract() -> None:
    page = (DOCS / "METRICS.md").read_text()
    shown = page.split("<!-- metrics table -->\n")[1].split("\n<!-- end -->")[0]
    assert shown == markdown_table(), "run python -m rustedvino.observe.families and paste its output"


def test_the_page_names_nothing_else() -> None:
    page = (DOCS / "METRICS.md").read_text()
    for name in re.findall(rf"`({PREFIX}\w+)`", page):
        assert name.removeprefix(PREFIX) in {family.name for family in FAMILIES} or name in FAMILY_BY_SAMPLE


@pytest.mark.parametrize("expression", expressions(json.loads(DASHBOARD.read_text())))
def test_dashboard_expressions(expression: str) -> None:
    check(expression)


@pytest.mark.parametrize("expression", alert_expressions())
def test_alert_expressions(expression: str) -> None:
    check(expression)


def test_panels_are_complete() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    boxes: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & boxes, panel["title"]
        boxes |= cells
        assert panel["type"] == "row" or panel["targets"], panel["title"]
    assert len(expressions(dashboard)) > 20


def test_alerts_say_what_and_what_to_do() -> None:
    text = ALERTS.read_text()
    count = len(re.findall(r"^\s+- alert: \w+$", text, re.MULTILINE))
    assert count == len(alert_expressions())
    for part in ("expr", "for", "severity", "summary", "description"):
        assert len(re.findall(rf"^\s+{part}: \S", text, re.MULTILINE)) == count, part
