"""Many values in one statement, on both databases."""

from datetime import datetime, timezone

import sqlalchemy as sa

from ckptstore.api import Catalog, connect
from ckptstore.catalog.any_of import any_of
from ckptstore.catalog.tables import pins, runs

MANY = 40_000  # more than either database takes parameters
NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
LONGEST = "n" * 200
NAMES = [LONGEST, "plain", 'with "quotes" and \\', "ünï☃", "it's; --", "[1,2]"]


def test_texts(catalog: Catalog) -> None:
    with catalog.database.write() as connection:
        connection.execute(runs.insert(), [{"name": name} for name in NAMES])
    asked = [*NAMES[1:], *(f"other {number}" for number in range(MANY))]
    with catalog.database.read() as connection:
        query = sa.select(runs.c.name).where(any_of(runs.c.name, "own_names"))
        found = set(connection.execute(query, {"own_names": asked}).scalars())
        none = connection.execute(query, {"own_names": []}).all()
        longer = connection.execute(query, {"own_names": [f"{LONGEST}n"]}).all()
        not_text = connection.execute(query, {"own_names": ["mod\udce8le", "plain"]}).scalars().all()
    assert found == set(NAMES[1:])
    assert none == longer == []
    assert not_text == ["plain"]  # the name of a file need not be UTF-8


def test_numbers(catalog: Catalog) -> None:
    steps = [1, 2**40, 2**62]
    with catalog.database.write() as connection:
        connection.execute(runs.insert(), [{"name": "run"}])
        run_id = connection.execute(sa.select(runs.c.id)).scalar_one()
        rows = [{"run_id": run_id, "global_step": step, "pinned": True, "version": ""} for step in steps]
        connection.execute(pins.insert(), rows)
        chosen, asked = any_of(pins.c.global_step, "own_steps"), {"own_steps": [2**62, 7, 1]}
        assert set(connection.execute(sa.select(pins.c.global_step).where(chosen), asked).scalars()) == {1, 2**62}
        assert connection.execute(pins.delete().where(chosen), asked).rowcount == 2
        assert connection.execute(sa.select(pins.c.global_step)).scalars().all() == [2**40]


def test_sqlite_uses_the_index(sqlite_url: str) -> None:
    query = sa.select(runs.c.id).where(any_of(runs.c.name, "own_names"))
    with connect(sqlite_url).database.read() as connection:
        text = query.compile(connection.engine).string
        plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}", ("[]",)).all()
    assert plan[0][3].startswith("SEARCH runs USING")
