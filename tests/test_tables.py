"""What a catalog returns, in a notebook and in pandas."""

from pathlib import Path

import pytest

from ckptstore.api import Catalog, connect
from ckptstore.retention.policy import Policy
from tests.jobs import started
from tests.serve.printed import printed


@pytest.fixture
def catalog(sqlite_url: str, tmp_path: Path) -> Catalog:
    found = connect(sqlite_url)
    _, ranks = started(found, tmp_path, 10, 20, 30)
    ranks[0].record(step=20, accuracy=0.5)
    return found


def test_a_table_has_a_line_for_each_row(catalog: Catalog) -> None:
    """The rows are those that the command line prints: both take `to_dicts`."""
    for rows in (catalog.runs(), catalog.saves("run"), catalog.files("run"), catalog.history("run")):
        assert rows._repr_html_().count("<tr>") == len(rows) + 1 > 1
    assert catalog.resolve("run").to_dicts() == printed(catalog, "resolve", "run")["ranks"]


def test_a_plan_of_gc_shows_what_becomes_of_each_state(catalog: Catalog) -> None:
    plan = catalog.plan_gc("run", Policy(keep_last=1, floor=1))
    assert [(row["action"], row["global_step"]) for row in plan.to_dicts()] == [
        ("keep", 30),
        ("remove", 20),
        ("remove", 10),
    ]
    assert "<td>no rule keeps it</td>" in plan._repr_html_()
