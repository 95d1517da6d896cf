"""What `make bench` writes: docs/figures.md is that of results.json, and the arithmetic behind it."""

from pathlib import Path

import pytest

from bench import report, results
from bench.measure import Budget, Found, Row, Spread, Verdict, exponent, turns

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


FOUND = Found(
    rows=[
        Row("registry", "save, as written", 100, {"ckptstore": [2.0, 2.0, 4.0], "ray": [1.0, 1.0, 2.0]}),
        Row(
            "registry",
            "save, as written",
            1000,
            {"ckptstore": [2.0], "ray": [10.0], "mlflow": [8.0]},
            {"mlflow": "run once"},
        ),
        Row(
            "registry", "prune, as written", 1000, {"ckptstore": [2.0]}, {"orbax": "not run: about 90 s by its growth"}
        ),
        Row("collect", "gc, saves of 8 ranks", 1000, {"ckptstore": [0.5], "unlink": [1.0]}),
    ],
    budgets=[Budget("gc / unlink", 0.5, 2), Budget("faster", 90, 100, at_least=True)],
    verdicts=[Verdict("a rank is missing", "ckptstore", "right", "goes on from step 2")],
)
WHOLE = results.Results(
    quick=False,
    machine="2 cores",
    versions={"ckptstore": "0.1.0"},
    rows=FOUND.rows,
    budgets=FOUND.budgets,
    verdicts=FOUND.verdicts,
)


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    results.write(FOUND, tmp_path / "task.json")
    assert results.read_found(tmp_path / "task.json") == FOUND
    results.write(WHOLE, tmp_path / "all.json")
    assert results.read(tmp_path / "all.json") == WHOLE
    assert results.read(tmp_path / "none.json") is None


def test_a_peer_that_is_quicker_is_named_with_its_reason() -> None:
    assert report.quicker(FOUND.rows) == [f"Ray Train is quicker in save: it {report.WHY['sync nothing']}."]
    unknown = Row("registry", "list, as written", 100, {"ckptstore": [2.0], "mlflow": [1.0]})
    assert report.quicker([unknown]) == [
        "MLflow is quicker in list: it does so for a reason that nobody has written down yet."
    ]


def test_what_was_not_run_or_run_once_says_so() -> None:
    text = report.whole(WHOLE)
    assert "4×, run once" in text
    assert "not run: about 90 s by its growth" in text
    assert "| gc, saves of 8 ranks: 1,000 | 500 ms | unlink 1 s | 0.5× |" in text
    assert "| a rank is missing | right |" in text


def test_ratios_are_of_the_same_turn() -> None:
    assert FOUND.rows[0].ratio("ray", "ckptstore") == Spread(0.5, 0.5, 0.5)
    assert Spread.paired([1.0, 4.0, 3.0], [1.0, 2.0, 1.0]) == Spread(2.0, 1.0, 3.0)
    assert Spread.paired([8.0], [1.0, 2.0, 4.0]) == Spread(4.0, 4.0, 4.0)


def test_a_budget_is_broken_above_its_limit_or_below_it() -> None:
    assert [budget.kept for budget in FOUND.budgets] == [True, False]
    lines = report.budgets(WHOLE).splitlines()
    assert lines[-2:] == ["| gc / unlink | 0.5 × | ≤ 2 × |", "| faster | **90 ×** | ≥ 100 × |"]


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
