"""Which facts are told: what doctor finds, and what is recorded as damaged or quarantined; each once."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from ckptstore.api import Catalog, connect
from ckptstore.catalog import leases
from ckptstore.core.model import launch_key
from ckptstore.disk import waiting
from ckptstore.doctor.checkup import Status
from ckptstore.notify.facts import KINDS, look
from ckptstore.notify.receivers import Failure
from ckptstore.notify.watcher import Watcher
from tests.jobs import begun, set_ending
from tests.notify.receiving import let_an_hour_pass
from tests.small_disks import fill, give_room, hanging_disk, small_disk

pytestmark = pytest.mark.of_files

MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)


def now() -> datetime:
    return datetime.now(timezone.utc)


class Taking:
    """A receiver that takes everything."""

    name = "taking"
    id = "0" * 32

    def send(self, body: bytes) -> Failure | None:
        return None


def told(catalog: Catalog, *kinds: str, at: datetime | None = None) -> list[tuple[str, str]]:
    """The kind and the run of what is new to one receiver."""
    outcome = Watcher(catalog.database, Taking(), kinds or KINDS).look(at)
    assert not outcome.failed
    return [(notice.kind, notice.run) for notice in outcome.told]


def test_a_run_that_is_well_is_no_news(catalog: Catalog, tmp_path: Path) -> None:
    begun(catalog, tmp_path, 10, 20)
    assert told(catalog) == []
    assert look(connect(str(catalog.database.file)).database, KINDS, now()).notices == ()


def test_a_damaged_state_is_told_once_and_again_when_it_was_repaired(catalog: Catalog, tmp_path: Path) -> None:
    job, _ = begun(catalog, tmp_path, 10, 20)
    path = job.folder(1) / "net-2_10.ckpt"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    catalog.verify("run")
    found = look(catalog.database, ("damaged",), now()).notices
    assert [(each.kind, each.status) for each in found] == [("damaged", Status.PROBLEM)]
    assert found[0].detail.startswith(f"step 20 of launch L1 has 1 damaged file: {path}")
    assert told(catalog, "damaged") == [("damaged", "run")]
    catalog.verify("run")
    assert told(catalog, "damaged") == []
    path.write_bytes(whole)
    catalog.verify("run")
    assert look(catalog.database, ("damaged",), now()).notices == ()
    assert told(catalog, "damaged") == []
    path.write_bytes(whole[:-1])
    catalog.verify("run")
    assert told(catalog, "damaged") == [], "within the hour"
    let_an_hour_pass(catalog)
    assert told(catalog, "damaged") == [("damaged", "run")]
    assert told(catalog, "damaged") == []


def test_a_quarantined_state(catalog: Catalog, tmp_path: Path) -> None:
    job, ranks = begun(catalog, tmp_path, 10, 20)
    bad = [replace(file, quarantine="the loss was nan") for file in job.save(ranks, 30)]
    for rank, file in zip(ranks, bad, strict=True):
        rank.record_files([file])
    assert told(catalog, "quarantined") == [("quarantined", "run")]
    assert told(catalog, "quarantined") == []
    assert "quarantined: the loss was nan" in look(catalog.database, KINDS, now()).notices[0].detail


def test_a_launch_that_falls_silent_speaks_and_falls_silent_again(catalog: Catalog, tmp_path: Path) -> None:
    begun(catalog, tmp_path, 10, 20)
    key = launch_key("run", "L1")

    def sign(at: datetime) -> None:
        catalog.database.in_write(lambda connection: leases.give_sign(connection, key, "node-7|42|1|ab@another", at))

    sign(now())
    assert told(catalog, at=now() + MINUTE) == []
    late = now() + 30 * MINUTE
    assert told(catalog, at=late) == [("silent", "run")]
    assert told(catalog, at=late + DAY) == []
    sign(late + DAY)
    assert told(catalog, at=late + DAY) == []
    assert told(catalog, at=late + DAY + 30 * MINUTE) == [("silent", "run")]


def test_a_silence_of_weeks_is_no_news(catalog: Catalog, tmp_path: Path) -> None:
    begun(catalog, tmp_path, 10, 20)
    assert told(catalog, at=now() + 30 * DAY) == []


def test_a_rank_that_hangs_when_the_others_have_ended(catalog: Catalog, tmp_path: Path) -> None:
    _, ranks = begun(catalog, tmp_path, 10, 20)
    set_ending(ranks[0], 20, 20, None)
    assert told(catalog, at=now()) == []
    assert told(catalog, at=now() + 60 * MINUTE) == [("silent", "run")]
    assert told(catalog, at=now() + 90 * MINUTE) == []


def test_a_restart_loop_is_one_fact_however_long_it_gets(catalog: Catalog, tmp_path: Path) -> None:
    job, _ = begun(catalog, tmp_path, 10)
    for _ in range(3):
        job.start()
    assert told(catalog, "restart_loop") == [("restart_loop", "run")]
    job.start()
    assert told(catalog, "restart_loop") == []


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "small", "size=1m") as home:
        yield home


def test_a_disk_that_fills_gets_room_and_fills_again(catalog: Catalog, small: Path) -> None:
    begun(catalog, small / "data", 10, 20)
    assert told(catalog, "disk") == []
    fill(small)
    found = look(catalog.database, ("disk",), now()).notices
    assert [(each.kind, each.status) for each in found] == [("disk", Status.PROBLEM)]
    assert told(catalog, "disk") == [("disk", "run")]
    assert told(catalog, "disk") == []
    give_room(small, "2m")
    assert told(catalog, "disk") == []
    give_room(small, "1m")
    assert told(catalog, "disk") == [], "within the hour: a disk at its limit would be told at each save"
    let_an_hour_pass(catalog)
    assert told(catalog, "disk") == [("disk", "run")], "it is still full"


def test_a_disk_that_cannot_be_seen_ends_nothing(
    catalog: Catalog, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another machine that watches does not see it."""
    begun(catalog, small / "data", 10, 20)
    fill(small)
    assert told(catalog, "disk") == [("disk", "run")]
    monkeypatch.setattr("ckptstore.notify.watcher._TOLD_AT_MOST_EVERY", timedelta(0))
    (small / "data").rename(small / "elsewhere")
    assert told(catalog, "disk") == []
    (small / "elsewhere").rename(small / "data")
    assert told(catalog, "disk") == []


def test_a_run_that_was_renamed_or_forgotten(catalog: Catalog, tmp_path: Path) -> None:
    begun(catalog, tmp_path, 10)
    late = now() + 30 * MINUTE
    assert told(catalog, at=late + 120 * MINUTE) == [("silent", "run")]
    catalog.rename("run", "other")
    assert told(catalog, at=late + 120 * MINUTE) == []
    catalog.forget("other")
    assert look(catalog.database, KINDS, late + 120 * MINUTE).notices == ()


def test_a_disk_that_hangs_holds_up_no_other_run(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One look at it took until its server was back, and nothing was told of any run."""
    monkeypatch.setattr("ckptstore.disk.waiting.ANSWER_SECONDS", 1.0)
    for run, home in (("first", "nfs"), ("last", "disk")):
        begun(catalog, tmp_path / home, 10, run=run)
    late = now() + 30 * MINUTE
    with hanging_disk(tmp_path / "nfs"):
        assert told(catalog, at=late + 120 * MINUTE) == [("silent", "first"), ("silent", "last")]
    monkeypatch.undo()
    assert not waiting.hanging({str(tmp_path / "nfs")}), "it is asked again when it answers"
