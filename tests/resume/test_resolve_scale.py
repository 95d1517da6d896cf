"""A long history costs a resolution nothing: counted in statements, in the work of the database, and in stats."""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from ckptstore.api import Catalog, connect
from tests.resume.wide import RUN, Asked, Wide, statements

RANKS = 32
SHORT, LONG = 10, 1000
KEPT = 3
MORE = 1.3  # the history's share, at most: the budget's ratio
LOOK = {"sqlite": 25, "postgresql": 1}  # `work` of finding nothing in an index


def work(connection: sa.Connection, asked: Asked) -> int:
    """How much the database does for a statement: rows that PostgreSQL touches, steps of SQLite's virtual machine."""
    if connection.dialect.name != "sqlite":
        explained = connection.exec_driver_sql(f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) {asked.text}", asked.values)
        return sum(rows(node) for node in nodes(explained.scalar_one()[0]["Plan"]) if "Scan" in node["Node Type"])
    count = 0

    def tick() -> None:
        nonlocal count
        count += 1

    driver: Any = connection.connection.driver_connection
    driver.set_progress_handler(tick, 10)
    try:
        connection.exec_driver_sql(asked.text, asked.values).fetchall()
    finally:
        driver.set_progress_handler(None, 0)
    return count * 10


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for below in plan.get("Plans", ()):
        yield from nodes(below)


def rows(node: dict[str, Any]) -> int:
    removed = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
    return int((node["Actual Rows"] + removed) * node["Actual Loops"])


def resolved(wide: Wide, url: str, history: int, *, sources: bool) -> tuple[Catalog, list[Asked]]:
    catalog = connect(url)
    wide.fill(catalog, history, layout="data_parallel", sources=sources, gone=sources)
    with statements() as asked:
        found = catalog.resolve(RUN)
    assert found.plan.global_step == history
    assert len(found.plan.ranks) == wide.ranks
    return catalog, asked


@pytest.fixture
def second_url(database_url: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    if database_url.startswith("sqlite"):
        return f"sqlite:///{tmp_path / 'second.db'}"
    from tests.conftest import new_postgres_database

    return new_postgres_database(request.getfixturevalue("postgres"))


@pytest.mark.parametrize("sources", [pytest.param(False, id="files"), pytest.param(True, id="directories")])
def test_the_history_costs_nothing(database_url: str, second_url: str, tmp_path: Path, *, sources: bool) -> None:
    """But for a look into an index at each save of the newest launch, where its directories are compared."""
    wide = Wide(tmp_path / "ckpt", RANKS, KEPT)
    wide.write()
    short, asked_short = resolved(wide, database_url, SHORT, sources=sources)
    long, asked_long = resolved(wide, second_url, LONG, sources=sources)
    assert [asked.text for asked in asked_long] == [asked.text for asked in asked_short]
    dearer = []
    with short.database.read() as before, long.database.read() as after:
        for one, other in zip(asked_short, asked_long, strict=True):
            cost, cost_long = work(before, one), work(after, other)
            if cost_long > MORE * cost + 10:
                dearer.append((cost_long - cost) / (LONG - SHORT))
        look = LOOK[after.dialect.name]
    assert len(dearer) == sources, dearer
    assert all(each <= look for each in dearer), dearer


def test_ranks_cost_no_statements(database_url: str, second_url: str, tmp_path: Path) -> None:
    few, many = Wide(tmp_path / "few", 2, KEPT), Wide(tmp_path / "many", 64, KEPT)
    few.write()
    many.write()
    _, asked_few = resolved(few, database_url, SHORT, sources=True)
    _, asked_many = resolved(many, second_url, SHORT, sources=True)
    assert [asked.text for asked in asked_many] == [asked.text for asked in asked_few]


@pytest.mark.of_files
@pytest.mark.parametrize("lost", [0, pytest.param(1, marks=pytest.mark.long), 2])
def test_each_file_of_a_candidate_is_looked_at_once(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: int
) -> None:
    """1,024 ranks: as many stats, and as many more for each newer candidate; nothing of what is older."""
    wide = Wide(tmp_path / "ckpt", 1024, KEPT)
    wide.write()
    wide.fill(catalog, 20)
    for age in range(lost):
        wide.path(7, age).unlink()
    looked_at: Counter[str] = Counter()
    real = os.stat

    def stat(path: Any, *args: Any, **kwargs: Any) -> os.stat_result:
        if str(path).endswith(".ckpt"):
            looked_at[str(path)] += 1
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "stat", stat)
    found = catalog.resolve(RUN)
    assert found.plan.global_step == 20 - lost
    assert set(looked_at) == {str(wide.path(rank, age)) for rank in range(1024) for age in range(lost + 1)}
    assert set(looked_at.values()) == {1}
