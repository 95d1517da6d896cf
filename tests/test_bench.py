"""What `make bench` writes: docs/explanation/figures.md is that of results.json, and the arithmetic behind it."""

from pathlib import Path

import pytest

from bench import report, results
from bench.measure import Budget, Row, Spread, exponent, turns

ROOT = Path(__file__).parents[1]


def test_the_page_has_what_was_measured() -> None:
    text = report.PAGE.read_text()
    assert text.count(report.BEGIN) == text.count(report.END) == 1
    shown = text.partition(report.BEGIN)[2].partition(report.END)[0]
    assert shown == report.page(results.read())


def test_the_report_beside_the_results_is_theirs() -> None:
    found = results.read()
    if found is None:
        pytest.skip("nothing was measured yet")
    assert not found.quick
    written = results.RESULTS.with_name("RESULTS.md").read_text()
    assert written == report.whole(found)
    assert "nobody has written down" not in written
    assert all(f"| {row.what}: {row.size:,} |" in written for row in found.rows if row.task != "registry")


def test_the_peers_are_pinned_by_name_and_version_only() -> None:
    lines = (ROOT / "bench" / "peers.txt").read_text().splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert pins
    assert all("==" in pin and "/" not in pin and "@" not in pin for pin in pins)


def test_ratios_are_of_the_same_turn() -> None:
    row = Row("registry", "save, as written", 100, {"ckptstore": [2.0, 2.0, 4.0], "ray": [1.0, 1.0, 2.0]})
    assert row.ratio("ray", "ckptstore") == Spread(0.5, 0.5, 0.5)
    assert Spread.paired([1.0, 4.0, 3.0], [1.0, 2.0, 1.0]) == Spread(2.0, 1.0, 3.0)
    assert Spread.paired([8.0], [1.0, 2.0, 4.0]) == Spread(4.0, 4.0, 4.0)
    assert report.quicker([row]) == [f"Ray Train is quicker in save: it {report.WHY['sync nothing']}."]


def test_a_budget_is_broken_above_its_limit_or_below_it() -> None:
    budgets = [Budget("gc / unlink", 0.5, 2), Budget("faster", 90, 100, at_least=True)]
    assert [budget.kept for budget in budgets] == [True, False]


def test_contenders_take_turns_and_who_is_too_slow_runs_once() -> None:
    order: list[str] = []

    def contender(name: str, took: float) -> float:
        order.append(name)
        return took

    taken, notes = turns(
        {"a": lambda: contender("a", 1.0), "b": lambda: contender("b", 9.0), "c": lambda: contender("c", 2.0)},
        repeats=3,
        allowance=20.0,
    )
    assert order == ["c", "b", "a", "a", "c", "c", "a", "a", "c"]
    assert taken == {"a": [1.0] * 3, "b": [9.0], "c": [2.0] * 3}
    assert notes == {"b": "run once"}


def test_the_exponent_is_that_of_the_growth() -> None:
    sizes = [10, 100, 1000]
    assert exponent(sizes, [3.0, 3.0, 3.0]) == pytest.approx(0)
    assert exponent(sizes, [size**2 * 0.5 for size in sizes]) == pytest.approx(2)
