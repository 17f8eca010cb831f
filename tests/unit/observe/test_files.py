"""Dashboard, alert rules and pages speak of the metrics that there are, and of no others."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from taskharbor.observe.metric_names import ALL, Metric

ROOT = Path(__file__).parents[3]
DASHBOARD = ROOT / "deploy" / "grafana" / "taskharbor.json"
RULES = ROOT / "deploy" / "prometheus" / "alerts.yml"
RULE_TESTS = ROOT / "deploy" / "prometheus" / "alerts_test.yml"
ALERTS_PAGE = ROOT / "docs" / "operations" / "alerts.md"
METRICS_PAGE = ROOT / "docs" / "reference" / "metrics.md"

_EVERYWHERE = {"instance", "job", "le"}
_SELECTOR = re.compile(r"(taskharbor_[a-z_]+)(?:\{([^}]*)\})?")
_GROUPING = re.compile(r"\b(?:by|on)\s*\(([^)]*)\)")
_MATCHER = re.compile(r'([a-z_]+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"')


def dashboard() -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(DASHBOARD.read_text("utf-8"))
    return loaded


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text("utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def expressions() -> Iterator[tuple[str, str]]:
    for panel in panels():
        for target in panel["targets"]:
            yield f"panel {panel['title']}", target["expr"]
    for variable in dashboard()["templating"]["list"]:
        if variable["type"] == "query":
            yield f"variable {variable['name']}", variable["definition"]
    for rule in rules():
        yield f"alert {rule['alert']}", rule["expr"]


EXPRESSIONS = list(expressions())


def metric_of(name: str) -> Metric | None:
    """The metric behind a name in an expression; a histogram has three names."""
    if name in ALL:
        return ALL[name] if ALL[name].kind != "histogram" else None
    base = re.sub(r"_(bucket|sum|count)$", "", name)
    return ALL[base] if base in ALL and ALL[base].kind == "histogram" else None


@pytest.mark.parametrize(("where", "expression"), EXPRESSIONS, ids=[where for where, _ in EXPRESSIONS])
def test_an_expression_names_metrics_and_labels_that_exist(where: str, expression: str) -> None:
    selectors = _SELECTOR.findall(expression)
    assert selectors, f"{where} asks for nothing of ours"
    known: set[str] = set()
    for name, matchers in selectors:
        metric = metric_of(name)
        assert metric is not None, f"{where}: there is no {name}"
        known |= set(metric.labels)
        unknown = {label for label, _ in _MATCHER.findall(matchers)} - set(metric.labels) - _EVERYWHERE
        assert not unknown, f"{where}: {name} has no label {unknown}"
    grouped = {label.strip() for found in _GROUPING.findall(expression) for label in found.split(",")}
    assert grouped - {""} <= known | _EVERYWHERE, where
    assert expression.count("(") == expression.count(")")


@pytest.mark.parametrize(("where", "expression"), EXPRESSIONS, ids=[where for where, _ in EXPRESSIONS])
def test_an_expression_asks_for_values_that_labels_can_have(where: str, expression: str) -> None:
    values = {
        "state": {"scheduled", "ready", "blocked", "running", "completed", "failed", "cancelled"},
        "outcome": {
            "completed",
            "retried",
            "failed",
            "cancelled",
            "released",
            "snoozed",
            "stalled",
            "lost",
            "fired",
            "error",
        },
        "how": {"done", "recycled", "crashed"},
    }
    for _, matchers in _SELECTOR.findall(expression):
        for label, value in _MATCHER.findall(matchers):
            if label in values:
                assert set(value.split("|")) <= values[label], where


@pytest.mark.parametrize(("where", "expression"), EXPRESSIONS, ids=[where for where, _ in EXPRESSIONS])
def test_a_counter_is_never_read_as_it_is(where: str, expression: str) -> None:
    for name, _ in _SELECTOR.findall(expression):
        metric = metric_of(name)
        is_counted = metric is not None and (metric.kind == "counter" or name != metric.name)
        if is_counted and not where.startswith("variable"):
            around = rf"(rate|increase)\(\s*{name}\b"
            assert re.search(around, expression), f"{where}: {name} only ever grows"


def test_every_metric_is_on_the_dashboard_or_is_known_not_to_be() -> None:
    shown = {name for where, expression in EXPRESSIONS for name, _ in _SELECTOR.findall(expression)}
    missing = {name for name in ALL if not any(found.startswith(name) for found in shown)}

    assert missing == {"taskharbor_build_info", "taskharbor_queue_limit"}


def test_the_dashboard_can_be_provisioned() -> None:
    board = dashboard()

    assert board["uid"] == "taskharbor"
    assert "__inputs" not in board
    assert [variable["name"] for variable in board["templating"]["list"]] == ["datasource", "queue", "task"]
    for panel in panels():
        for part in (panel, *panel["targets"]):
            assert part["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)


def test_no_panel_lies_over_another() -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert taken.setdefault((x, y), panel["title"]) == panel["title"]


def test_every_alert_is_whole() -> None:
    names = [rule["alert"] for rule in rules()]

    assert len(set(names)) == len(names)
    for rule in rules():
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert set(rule["annotations"]) == {"summary", "description", "runbook"}
        assert rule["annotations"]["runbook"] == f"docs/operations/alerts.md#{rule['alert'].lower()}"


def test_the_tests_of_the_rules_name_rules_that_exist() -> None:
    text = RULE_TESTS.read_text("utf-8")
    named = set(re.findall(r"TaskHarbor[A-Za-z]+", text))

    assert named <= {rule["alert"] for rule in rules()}
    assert {name for name, _ in _SELECTOR.findall(text)} <= set(ALL)


def test_the_page_explains_every_alert_and_no_other() -> None:
    sections = re.split(r"^### (\w+)$", ALERTS_PAGE.read_text("utf-8"), flags=re.MULTILINE)
    explained = dict(zip(sections[1::2], sections[2::2], strict=True))

    assert list(explained) == [rule["alert"] for rule in rules()]
    for name, text in explained.items():
        assert "**What it means.**" in text, name
        assert "**What to do.**" in text, name


def test_the_guide_lists_every_metric_with_its_labels() -> None:
    rows = re.findall(
        r"^\| `(taskharbor_\w+)` \| (\w+) \| ([^|]*) \|", METRICS_PAGE.read_text("utf-8"), re.MULTILINE
    )

    listed = {name: (kind, tuple(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}
    assert listed == {metric.name: (metric.kind, metric.labels) for metric in ALL.values()}
