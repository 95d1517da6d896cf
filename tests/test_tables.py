"""What a catalog returns, in a notebook and in pandas: the fields of the command line's JSON."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from ckptstore.api import Catalog, connect
from ckptstore.cli.main import cli
from ckptstore.retention.policy import Policy
from tests.jobs import started


@pytest.fixture
def catalog(sqlite_url: str, tmp_path: Path) -> Catalog:
    found = connect(sqlite_url)
    _, ranks = started(found, tmp_path, 10, 20, 30)
    ranks[0].record(step=20, accuracy=0.5)
    return found


def as_json(catalog: Catalog, *command: str) -> Any:
    done = CliRunner().invoke(cli, ["--db", catalog.database.url, *command, "--json"], catch_exceptions=False)
    return at_rest(done.stdout)


def plain(rows: Any) -> Any:
    return at_rest(json.dumps(rows, default=lambda value: value.isoformat(timespec="seconds")))


def at_rest(text: str) -> Any:
    """JSON without for how long a launch has been silent: that grows while the test runs."""
    return json.loads(re.sub(r"silent for \d+ \w+", "silent", text))


def test_rows_are_those_of_the_command_line(catalog: Catalog) -> None:
    for rows, command in (
        (catalog.runs(), ["runs"]),
        (catalog.saves("run"), ["list", "run"]),
        (catalog.files("run"), ["list", "run", "--files"]),
        (catalog.show("run", 20), ["show", "run", "20"]),
        (catalog.history("run"), ["history", "run"]),
    ):
        assert rows, command
        assert plain(rows.to_dicts()) == as_json(catalog, *command)
        assert rows._repr_html_().count("<tr>") == len(rows) + 1
    assert catalog.resolve("run").to_dicts() == as_json(catalog, "resolve", "run")["ranks"]


def test_a_plan_of_gc_shows_what_becomes_of_each_state(catalog: Catalog) -> None:
    plan = catalog.plan_gc("run", Policy(keep_last=1, floor=1))
    assert [(row["action"], row["global_step"]) for row in plan.to_dicts()] == [
        ("keep", 30),
        ("remove", 20),
        ("remove", 10),
    ]
    assert "<td>no rule keeps it</td>" in plan._repr_html_()
