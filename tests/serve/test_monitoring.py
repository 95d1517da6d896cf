"""The alert rules and the dashboard in `examples/monitoring` ask for metrics, and labels, that there are."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

from ckptstore.api import Catalog
from ckptstore.core.hints import Command
from ckptstore.serve.metrics import measure, text
from tests.hints import check_command
from tests.jobs import Job

FOLDER = Path(__file__).parents[2] / "examples" / "monitoring"
PROMETHEUS_OWN = {"up", "job", "instance"}


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load((FOLDER / "ckptstore-alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / "grafana-dashboard.json").read_text())
    return found


def asked() -> Iterator[str]:
    """Every expression."""
    for rule in rules():
        yield rule["expr"]
        yield from rule["annotations"].values()
    for panel in dashboard()["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    yield from (each["query"] for each in dashboard()["templating"]["list"])


def test_every_metric_and_every_label_is_there(catalog: Catalog, job: Job) -> None:
    shown = text(measure(catalog.database)).decode()
    families = list(text_string_to_metric_families(shown))
    names = {sample.name for family in families for sample in family.samples} | {each.name for each in families}
    labels = {label for family in families for sample in family.samples for label in sample.labels}
    used = {name for expression in asked() for name in re.findall(r"\bckptstore_[a-z_]+", expression)}
    assert len(used) > 5
    assert used <= names
    grouped = {label for expression in asked() for label in re.findall(r"(?:by|on) \((\w+)\)", expression)}
    matched = {label for expression in asked() for label in re.findall(r"[{,] *(\w+)=~?[\"']", expression)}
    assert grouped | matched <= labels | PROMETHEUS_OWN


def test_each_alert_is_tested_or_needs_no_test_and_is_in_the_readme() -> None:
    tested = yaml.safe_load((FOLDER / "ckptstore-alerts.test.yml").read_text())["tests"]
    named = {each["alertname"] for test in tested for each in test["alert_rule_test"]}
    alerts = {rule["alert"] for rule in rules()}
    readme = (FOLDER / "README.md").read_text()
    assert named <= alerts
    assert all(f"`{alert}`" in readme for alert in alerts)
    assert set(re.findall(r"`(Ckptstore\w+)`", readme)) == alerts


def test_the_commands_that_alerts_advise_are_there() -> None:
    for rule in rules():
        for command in re.findall(r"ckptstore ([a-z]+[^.:;]*)$", rule["annotations"]["description"]):
            check_command(Command(*command.replace("'{{ $labels.run }}'", "run").split()))


def test_panels_have_places_of_their_own() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken
        taken |= cells


def test_prometheus_is_told_where_the_rules_are() -> None:
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    assert all((FOLDER / name).is_file() for name in config["rule_files"])
    assert [each["job_name"] for each in config["scrape_configs"]] == ["ckptstore"]
