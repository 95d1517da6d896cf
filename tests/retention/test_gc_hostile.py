"""A user whose directory has another user's below it, and who writes what he likes into his own journal."""

import os
from pathlib import Path
from typing import Any

import pytest

from ckptstore.api import Catalog
from ckptstore.errors import UsageError
from ckptstore.retention import stored_policy
from ckptstore.retention.authority import ROOTS
from ckptstore.retention.in_trash import purge, undo
from ckptstore.retention.policy import Policy
from tests import ckpt_bytes
from tests.retention.foreign_lines import AT, every_wanted, policy, recorded, removal, started, write

pytestmark = [
    pytest.mark.of_files,
    pytest.mark.skipif(os.geteuid() != 0, reason="makes files of other users"),
]
ANN, BOB = 61001, 61002


@pytest.fixture
def bobs(tmp_path: Path) -> Path:
    """Bob's directory, with a run of his."""
    home = tmp_path / "bob"
    lines = [
        recorded(ckpt_bytes.write(home / f"net-{step // 10}_10.ckpt", step, step), home, step, "bob")
        for step in (10, 20, 30)
    ]
    write(home, BOB, started("bob"), policy("bob"), *lines)
    return home


@pytest.fixture
def anns(bobs: Path) -> Path:
    """Ann's directory in Bob's, with a run of hers."""
    home = bobs / "ann"
    lines = [
        recorded(ckpt_bytes.write(home / f"best-{step}_9.ckpt", step, step), home, step, "ann") for step in (1, 2, 3)
    ]
    write(home, ANN, started("ann"), *lines)
    return home


def collected(catalog: Catalog) -> None:
    """What an operator's cron does, for every run with a policy."""
    with catalog.database.read() as connection:
        rows = connection.exec_driver_sql("SELECT name FROM runs JOIN policies ON run_id = runs.id").all()
    for (run,) in rows:
        catalog.execute(catalog.plan_gc(run), now=True, allow_mass_delete=True)


def left(home: Path) -> int:
    return len(list(home.glob("*.ckpt")))


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("form", ["ckpt", "", "unknown"])
def test_files_in_a_directory_of_another_user(
    catalog: Catalog, bobs: Path, anns: Path, form: str, *, known: bool
) -> None:
    """Before, her checkpoints went: his journal told of them, and hers, of her run, was taken to agree."""
    if known:
        catalog.sync(anns)
    with catalog.database.read() as connection:
        ids = [row[0] for row in connection.exec_driver_sql("SELECT id FROM checkpoints")]
    files = sorted(anns.glob("*.ckpt"))
    removed = [
        (f"ann/{path.name}", path.stat().st_size, path.stat().st_mtime_ns, each, "9" * 21)
        for path, each in zip(files, ids, strict=False)
    ]
    told = [recorded(path, bobs, step, "bob", format=form) for step, path in enumerate(files, 1)]
    write(bobs, BOB, *told, removal("bob", "gone", *removed, at="8999-01-01T00:00:00+00:00"))
    catalog.sync(bobs)
    collected(catalog)
    assert left(anns) == 3
    assert left(bobs) == 1
    assert catalog.resolve("ann").plan.global_step == 3


def test_the_readers_own_files_are_not_taken_for_bobs_launch(catalog: Catalog, bobs: Path) -> None:
    """The launch that a start names was taken for one of whoever reads, and the reader's file for its own."""
    mine = ckpt_bytes.write(bobs / "mine-1_1.ckpt", 1, 1)
    start = {"at": AT, "from": started("bob", id="L0"), "step": 1, "start_step": 1, "branched": False, "plan": []}
    write(bobs, BOB, started("bob", id="L2", start=start), recorded(mine, bobs, 1, "bob", launch="L0"))
    os.chown(mine, 0, 0)
    catalog.sync(bobs)
    collected(catalog)
    assert mine.exists()


@every_wanted
def test_a_directory_that_was_moved_into_the_trash_with_what_is_in_it(
    catalog: Catalog, bobs: Path, anns: Path, wanted: str, *, settled: bool
) -> None:
    trash = bobs / ".ckptstore" / "trash" / "gc1"
    trash.parent.mkdir()
    anns.rename(trash)
    files = sorted(trash.glob("*.ckpt"))
    ended = {"t": "gc", "run": "bob", "collection": "gc1", "began": AT, "purge_after": AT, "ended": True, "at": AT}
    told = [(path.name, path.stat().st_size, path.stat().st_mtime_ns, "", "") for path in files]
    write(bobs, BOB, ended, removal("bob", wanted, *told, settled=settled))
    catalog.sync(bobs)
    collected(catalog)
    if settled:
        assert "belongs to user 61001" in undo(catalog.database, "bob").troubles[0].reason
    purge(catalog.database, "bob", at_once=True)
    assert len(list(trash.glob("*.ckpt"))) == 3
    assert not list(bobs.glob("best*"))


def test_marks_of_a_run_before_it_has_a_launch(catalog: Catalog, bobs: Path, anns: Path) -> None:
    """His policy waited for her run, and was hers when it came."""
    write(bobs, BOB, policy("ann"))
    anns.rename(bobs.parent / "anns")
    catalog.sync(bobs)
    catalog.sync(bobs.parent / "anns")
    assert stored_policy.show(catalog.database, "ann") is None


@pytest.mark.parametrize(
    "line",
    [
        started("bob", id="L9", start={"at": "9999-12-31T00:00:00+00:00", "from": None}),
        {"t": "pin", "run": "bob", "global_step": 10, "pinned": True, "at": "9999-12-31T23:59:59.999999+00:00"},
        {"t": "gc", "run": "bob", "collection": "g", "began": AT, "purge_after": "9999-12-31T00:00:00+00:00"}
        | {"ended": False, "at": AT},
        removal("bob", "trashed", ("x.ckpt", 1, 1, "", "")),
        removal("bob", "moving", ("x.ckpt", 1, 1, "", "")),
        removal("bob", "moving", ("a/" * 900 + "x.ckpt", 1, 1, "", "")),
        policy("bob") | {"rules": {"keep_last": 1, "grace": -5}, "at": "2027-01-01T00:00:00+00:00"},
        {"t": "pin", "run": "", "global_step": 10, "pinned": True, "at": AT},
    ],
    ids=["start", "pin", "gc", "no gc", "no gc, moving", "deep", "grace", "no name"],
)
def test_lines_that_ended_a_command(catalog: Catalog, bobs: Path, line: dict[str, Any]) -> None:
    """One user's line stopped the operator's gc of all runs with a traceback."""
    write(bobs, BOB, line)
    catalog.sync(bobs)
    assert catalog.resolve("bob").plan.global_step == 30
    gc_of_bob = Policy(keep_last=1, floor=1)
    catalog.execute(catalog.plan_gc("bob", gc_of_bob), now=True, allow_mass_delete=True)
    purge(catalog.database, "bob", at_once=True)
    catalog.unpin("bob", 10)
    assert left(bobs) in (1, 2)
    if "rules" in line:
        with pytest.raises(UsageError, match="not a duration"):
            catalog.plan_gc("bob")


@pytest.mark.parametrize("value", ["", ":", "data", "~/runs", "/data:runs"])
def test_roots_that_limit_nothing_or_elsewhere(
    catalog: Catalog, bobs: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    """`$A:$B` with both unset meant no limit at all."""
    catalog.sync(bobs)
    monkeypatch.setenv(ROOTS, value)
    with pytest.raises(UsageError, match="must list absolute directories"):
        catalog.plan_gc("bob")
