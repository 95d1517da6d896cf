"""Joining and registering, on both databases."""

import os
import secrets
import struct
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import numpy as np
import pytest

from ckptstore.api import Catalog
from ckptstore.catalog.project import add_run
from ckptstore.core.limits import LONGEST_PATH
from ckptstore.core.model import FileState, Kind
from ckptstore.disk import files
from ckptstore.errors import RefusedError, UsageError
from ckptstore.resume.register import describe
from ckptstore.retention.policy import Policy
from tests import ckpt_bytes
from tests.foreign_bytes import shards, tensorflow, written
from tests.jobs import begun, started
from tests.small_disks import date_far_ahead, small_disk


def test_what_is_registered_is_in_the_catalog(catalog: Catalog, tmp_path: Path) -> None:
    launch = catalog.join("run", rank=1, world_size=2, launch_id="L1", layout="data_parallel")
    launch.set_steps_per_epoch(10)
    path = tmp_path / "a-2_7.ckpt"
    path.write_bytes(b"x" * 123)
    made = launch.register(
        path,
        kind="dying_gasp",
        global_step=17,
        optimizer_step=16,
        strategy_file="/s.ckpt",
        metrics={"loss": Fraction(1, 2)},
    )
    assert catalog.files("run") == [made]
    assert (made.kind, made.epoch, made.step_in_epoch, made.size) == (Kind.DYING_GASP, 2, 7, 123)
    assert (made.optimizer_step, made.strategy_file, dict(made.metrics)) == (16, "/s.ckpt", {"loss": 0.5})
    assert made.digest is not None
    assert len(made.digest) == 64
    assert made.created_at.tzinfo is not None


def test_a_path_that_was_overwritten_no_longer_holds_the_older_step(catalog: Catalog, tmp_path: Path) -> None:
    """A callable prefix may give every save the same name."""
    launch = catalog.join("run")
    path = tmp_path / "latest.ckpt"
    for step in (5, 10):
        path.write_bytes(b"%d" % step * 50)
        launch.register(path, global_step=step)
    assert {file.global_step: file.state for file in catalog.files("run")} == {
        5: FileState.MISSING,
        10: FileState.COMPLETE,
    }
    assert [save.tally.global_step for save in catalog.saves("run")] == [10]


@pytest.mark.parametrize("world_size", [1, 2])
def test_the_last_step_that_is_given_for_a_file_counts__before_a_start_took_the_corrected_one(
    catalog: Catalog, other: Catalog, tmp_path: Path, world_size: int
) -> None:
    """Rank 0 has written it, and every rank registers it: nothing else says that the ranks are replicas."""
    ranks = [catalog.join("run", rank=rank, world_size=world_size, launch_id="L1") for rank in range(world_size)]
    path = tmp_path / "model.bin"
    path.write_bytes(os.urandom(50))
    for launch in ranks:
        for step in (1000, 100):  # the first is a mistake
            launch.register(path, global_step=step)
    other.scan(tmp_path, run="run")
    for each in (catalog, other):
        resolution = each.resolve("run")
        assert resolution.plan is not None
        assert (resolution.plan.global_step, resolution.rejections) == (100, ())
    started = catalog.join("run", world_size=world_size, rank=0, launch_id="L2").resolve()
    assert started is not None
    assert started.global_step == 100


def test_nothing_names_a_corrected_step__before_resolve_advised_to_go_back_to_it(
    catalog: Catalog, tmp_path: Path
) -> None:
    launch, path = catalog.join("run", launch_id="L1"), tmp_path / "model.bin"
    path.write_bytes(os.urandom(50))
    launch.register(path, global_step=1000)  # a mistake
    launch.register(path, global_step=100)
    assert [row.last_step for row in catalog.history("run")] == [100]
    later = catalog.join("run", launch_id="L2")
    assert later.resolve() is not None
    (tmp_path / "later.bin").write_bytes(os.urandom(50))
    later.register(tmp_path / "later.bin", global_step=200)
    assert catalog.resolve("run").rejections == ()
    asked = catalog.resolve("run", step=1000)
    assert (asked.plan, asked.rejections, asked.steps) == (None, (), (100, 200))


def test_a_step_is_corrected_once(catalog: Catalog, other: Catalog, tmp_path: Path) -> None:
    launch, path = catalog.join("run"), tmp_path / "model.bin"
    path.write_bytes(os.urandom(50))
    for step in (5, 7):
        launch.register(path, global_step=step)
    with pytest.raises(UsageError, match="was registered for step 5, and for step 7 since"):
        launch.register(path, global_step=5)
    launch.register(path, global_step=7)
    other.scan(tmp_path, run="run")
    for each in (catalog, other):
        assert {file.global_step: file.state for file in each.files("run")} == {
            5: FileState.MOVED,
            7: FileState.COMPLETE,
        }


def test_a_corrected_step_stays_so_in_the_trash(catalog: Catalog, tmp_path: Path) -> None:
    launch = catalog.join("run")
    for step in (10, 20, 30):
        path = tmp_path / f"model-{step}.bin"
        path.write_bytes(os.urandom(50))
        if step == 10:
            launch.register(path, global_step=1000)  # a mistake
        launch.register(path, global_step=step)
    catalog.execute(catalog.plan_gc("run", Policy(keep_last=2, floor=2)))
    states = {file.global_step: file.state for file in catalog.files("run")}
    assert (states[1000], states[10]) == (FileState.MOVED, FileState.TRASHED)
    assert catalog.resolve("run").rejections == ()


@pytest.mark.of_files
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"global_step": -1}, "global_step is -1"),
        ({"global_step": 2**63}, "global_step is 9223372036854775808"),
        *(({"global_step": step}, "global_step is .* not a whole number") for step in (1.5, "x", True, float("nan"))),
        ({"epoch": -1}, "epoch is -1"),
        ({"epoch": 2**31}, "epoch is 2147483648, .* to 2147483647"),
        ({"step_in_epoch": 2**70}, "step_in_epoch is"),
        ({"optimizer_step": 2**63}, "optimizer_step is 9223372036854775808"),
        ({"metrics": {"n\udce9": 1.0}}, "metric 'n.udce9' is .* not UTF-8"),
        ({"metrics": {"": 1.0}}, "a metric has no name"),
        ({"metrics": 5}, "metrics is int; give names and numbers"),
        ({"metrics": {1: 1.0}}, "metric 1 is 1, not a text"),
        ({"metrics": {"loss": "x"}}, "metric 'loss' is 'x', not a finite number"),
        ({"strategy_file": "/n\udce9"}, "strategy_file is .* not UTF-8"),
        ({"path": "n\udce9.ckpt"}, "path is .* not UTF-8"),
        ({"path": "n\0.ckpt"}, "path is .* has a NUL"),
        ({"path": "long/" * 400 + "net.ckpt"}, "path is .* longer than 2000 bytes"),
        ({"kind": "weekly"}, "unknown kind 'weekly'.*periodic"),
        ({"metrics": {"loss": float("nan")}}, "metric 'loss' is nan"),
        ({"path": "nowhere.ckpt"}, "is not there"),
        ({"path": "."}, "it has other checkpoints in it"),
    ],
)
def test_what_cannot_be_meant(catalog: Catalog, tmp_path: Path, changed: dict[str, object], message: str) -> None:
    launch = catalog.join("run")
    path = tmp_path / "a.ckpt"
    path.write_bytes(b"x")
    asked = {"path": path, "global_step": 1, **changed}
    with pytest.raises(UsageError, match=message):
        launch.register(tmp_path / asked.pop("path"), **asked)
    assert catalog.files("run") == []


def test_numbers_of_numpy_and_paths_are_taken(catalog: Catalog, tmp_path: Path) -> None:
    launch = catalog.join("run", rank=np.int64(1), world_size=np.int32(2), launch_id="L")
    launch.set_steps_per_epoch(np.int64(10))
    (tmp_path / "a.ckpt").write_bytes(b"x")
    launch.register(
        tmp_path / "a.ckpt",
        global_step=np.int32(17),
        optimizer_step=np.int64(16),
        strategy_file=tmp_path / "s.ckpt",
        metrics={"loss": np.float32(0.5)},
    )
    (file,) = catalog.files("run")
    assert (file.rank, file.global_step, file.optimizer_step, file.epoch) == (1, 17, 16, 2)
    assert (file.strategy_file, dict(file.metrics)) == (str(tmp_path / "s.ckpt"), {"loss": 0.5})
    assert catalog.sync(tmp_path).spoiled == 0


def test_a_time_that_no_catalog_holds(catalog: Catalog, tmp_path: Path) -> None:
    launch = catalog.join("run")
    path = tmp_path / "a.ckpt"
    path.write_bytes(b"x")
    date_far_ahead(path)
    with pytest.raises(
        UsageError, match=r"a.ckpt: its modification time in ns is 9300000000000000000.* touch the file"
    ):
        launch.register(path, global_step=1)
    assert catalog.scan(tmp_path, run="run").adopted == ()
    path.touch()
    launch.register(path, global_step=1)
    os.utime(path, (9_300_000_000, 9_300_000_000))
    (skipped,) = catalog.verify("run", digest=True).skipped
    assert "beyond the year 2262" in skipped.reason
    (file,) = catalog.files("run")
    assert file.state is FileState.COMPLETE
    launch.load_failed(file, "cannot read n\udce9\0")
    assert catalog.sync(tmp_path).spoiled == 0


def test_a_save_of_a_time_that_no_catalog_holds_is_not_finished_by_a_start(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job, (launch,) = begun(catalog, tmp_path, 5, world_size=1)
    path = job.write(launch, 10)
    launch.record_files([describe(launch.facts, rank=0, path=path, kind="periodic", global_step=10)])
    date_far_ahead(path)
    found = catalog.resolve("run").plan
    assert found.global_step == 5
    assert f"{path} was not taken into the catalog: {path}: its modification time in ns is" in caplog.text


@pytest.mark.of_files
@pytest.mark.parametrize("seconds", [-(10**12), 10**12])
def test_a_file_of_a_year_that_no_calendar_has_stops_no_start(catalog: Catalog, tmp_path: Path, seconds: int) -> None:
    with small_disk(tmp_path / "disk", "size=8m") as disk:
        job, (launch,) = begun(catalog, disk, 5, world_size=1)
        os.utime(job.write(launch, 10), (seconds, seconds))
        assert job.start()[0].facts.parent_step == 5


@pytest.mark.of_files
@pytest.mark.parametrize("steps", [0, -7, "x", 2**31])
def test_an_epoch_has_a_number_of_steps(catalog: Catalog, steps: object) -> None:
    launch = catalog.join("run")
    with pytest.raises(UsageError, match="steps_per_epoch is .*, not a whole number from 1"):
        launch.set_steps_per_epoch(steps)
    with pytest.raises(UsageError, match="batch_size is"):
        launch.set_steps_per_epoch(1, batch_size=steps)


def test_joining_what_cannot_be_meant(catalog: Catalog) -> None:
    with pytest.raises(UsageError, match="rank 2 of 2"):
        catalog.join("run", rank=2, world_size=2, launch_id="L")
    for world_size in (0, 1_000_001, 2**64, "4"):
        with pytest.raises(UsageError, match="world_size is .*, not a whole number from 1"):
            catalog.join("run", world_size=world_size)
    with pytest.raises(UsageError, match="must share its id"):
        catalog.join("run", rank=0, world_size=2)
    for name in ("", " run", "a\nb", "x" * 201):
        with pytest.raises(UsageError, match="cannot be the name of a run"):
            catalog.join(name)
    with pytest.raises(UsageError, match="unknown layout 'pipeline'"):
        catalog.join("run", layout="pipeline")
    assert catalog.runs() == []


@pytest.mark.parametrize("name", ["-x", "--help", ".", ".."])
def test_a_name_that_a_command_or_a_browser_takes_for_something_else(
    catalog: Catalog, other: Catalog, tmp_path: Path, name: str
) -> None:
    """No command that names such a run works as it is printed. A run that has the name keeps it."""
    refused = pytest.raises(UsageError, match=f"'{name}' cannot be the name of a new run; begin it with a letter")
    ckpt_bytes.write(tmp_path / "-x" / "net-1_5.ckpt", 5)
    with refused:
        catalog.join(name)
    with refused:
        catalog.scan(tmp_path / "-x", run=name)
    catalog.join("run")
    with refused:
        catalog.rename("run", name)
    with catalog.database.write() as connection:
        add_run(connection, name)
    catalog.join(name)
    catalog.scan(tmp_path / "-x", run=name)
    assert [run.run for run in catalog.runs()] == sorted([name, "run"])
    assert other.scan(tmp_path / "-x").run == name


def test_a_launch_is_what_its_first_rank_said(catalog: Catalog) -> None:
    catalog.join("run", rank=0, world_size=2, launch_id="L")
    with pytest.raises(RefusedError, match="has 2 ranks, this rank says 3"):
        catalog.join("run", rank=1, world_size=3, launch_id="L")
    assert catalog.join("other", rank=1, world_size=3, launch_id="L").world_size == 3, "another run has its own"


def test_a_launch_id_is_for_one_start(catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An id fixed in a job's settings would give the second start the first one's plan: a silent rollback."""
    monkeypatch.setenv("CKPTSTORE_LAUNCH_ID", "fixed")
    launch = catalog.join("run", rank=0, world_size=1)
    assert launch.id == "fixed"
    launch.resolve()
    (tmp_path / "a.ckpt").write_bytes(b"x")
    launch.register(tmp_path / "a.ckpt", global_step=1)
    with pytest.raises(RefusedError, match="already saved in launch fixed.*id of its own"):
        catalog.join("run", rank=0, world_size=1)


def test_one_record_costs_the_same_statements_whatever_the_history(catalog: Catalog, tmp_path: Path) -> None:
    import sqlalchemy as sa

    job, ranks = started(catalog, tmp_path, world_size=1)
    counts = []
    statements: list[str] = []
    sa.event.listen(catalog.database._engine, "before_cursor_execute", lambda *call: statements.append(call[2]))
    for step in range(1, 30):
        statements.clear()
        job.save(ranks, step)
        counts.append(len(statements))
    assert counts.pop(0) <= 9  # the first journals where the launch started, and tells the catalog that too
    assert counts.pop(0) <= 7  # after it SQLite is told, once, that it need not wait for the disk
    assert len(set(counts)) == 1
    assert counts[0] <= (5 if catalog.database.is_sqlite else 6)  # PostgreSQL locks the path


@pytest.mark.of_files
@pytest.mark.parametrize("ending", ["ckpt", "safetensors"])
@pytest.mark.parametrize("left", [0, 3, 60, -1])
def test_an_empty_or_cut_file_is_refused(catalog: Catalog, tmp_path: Path, ending: str, left: int) -> None:
    """It would be the newest state, and gc would keep it in place of a whole one."""
    launch = catalog.join("run")
    path = tmp_path / f"a.{ending}"
    whole = whole_file(ending)
    path.write_bytes(whole[:left])
    with pytest.raises(UsageError, match=f"a.{ending} is empty or cut"):
        launch.register(path, global_step=1)
    assert catalog.files("run") == []
    path.write_bytes(whole)
    assert launch.register(path, global_step=1).state is FileState.COMPLETE


@pytest.mark.of_files
@pytest.mark.parametrize("name", ["a.npz", "a.bin", "a"])
def test_an_empty_file_of_a_format_that_is_not_known_is_refused(catalog: Catalog, tmp_path: Path, name: str) -> None:
    launch = catalog.join("run")
    (tmp_path / name).touch()
    with pytest.raises(UsageError, match=f"{name} is empty or cut"):
        launch.register(tmp_path / name, global_step=1)
    with pytest.raises(UsageError, match="is empty or cut"):
        launch.save(lambda path: Path(path).touch(), global_step=1, directory=tmp_path, name=name)
    assert catalog.files("run") == []


def whole_file(ending: str) -> bytes:
    if ending == "ckpt":
        return ckpt_bytes.checkpoint(1)
    described = b'{"weight":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}}'
    return len(described).to_bytes(8, "little") + described + struct.pack("<4f", 1, 1, 1, 1)


@pytest.mark.of_files
@pytest.mark.parametrize(("name", "content"), [("a.ckpt", b"\xd8\x5e\x3a\x7f cut"), ("a.pth", b"x"), ("a.ckpt", b"x")])
def test_what_cannot_tell_whether_it_is_whole_is_taken(
    catalog: Catalog, tmp_path: Path, name: str, content: bytes
) -> None:
    (tmp_path / name).write_bytes(content)
    assert catalog.join("run").register(tmp_path / name, global_step=1).state is FileState.COMPLETE


def test_the_longest_path_is_kept_and_a_longer_one_keeps_nobody_from_the_rest(catalog: Catalog, tmp_path: Path) -> None:
    """Names that do not compress: an index of PostgreSQL has room for so many bytes, and no more."""
    deep = tmp_path.joinpath(*(secrets.token_hex(60) for _ in range(20)))
    near = Path(str(deep)[: LONGEST_PATH - len(f"/rank_0/.ckptstore/rank_0-{0:012}-{0:012}.jsonl")])
    job, launches = started(catalog, near, world_size=1)
    (launch,) = launches
    job.announce(launch)
    job.save(launches, 5)
    beyond = deep / "net-1_6.ckpt"
    beyond.parent.mkdir(parents=True)
    beyond.write_bytes(b"x" * 123)
    with pytest.raises(UsageError, match="longer than"):
        launch.register(beyond, global_step=6)
    job.save(launches, 10)
    assert [save.tally.global_step for save in catalog.saves("run")] == [10, 5]
    assert not launch.recorder.is_late


@pytest.mark.of_files
@pytest.mark.parametrize(("make", "name"), [(tensorflow, "late"), (tensorflow, "model.ckpt"), (shards, "late")])
def test_a_checkpoint_of_several_files_is_registered_and_looked_after(
    catalog: Catalog, tmp_path: Path, make: Callable[[Path], Path], name: str
) -> None:
    job, (launch,) = begun(catalog, tmp_path, world_size=1)
    older, newer = make(job.folder(0) / "early"), make(job.folder(0) / name)
    launch.register(older, global_step=10)
    file = launch.register(newer, global_step=20)
    assert file.format == {tensorflow: "tensorflow", shards: "directory"}[make]
    assert (file.size, file.digest) == (files.facts(str(newer)).size, files.digest(str(newer)))
    assert launch.register(newer, global_step=20) == replace(file, created_at=ANY)
    launch.live_files.notice_vanished(job.folder(0))
    assert catalog.resolve("run", verify="digest").plan.global_step == 20
    assert catalog.scan(tmp_path, run="run").adopted == ()
    lost = next(path for path in sorted(newer.parent.rglob("*.*")) if str(path).startswith(str(newer)))
    lost.unlink()
    assert catalog.resolve("run").plan.global_step == 10


def test_two_threads_may_notice_the_same_vanished_file(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each registrar has a thread of its own, and a launch may have several."""
    launch = catalog.join("run")
    path = tmp_path / "a-1_1.ckpt"
    path.write_bytes(b"x")
    launch.register(path, global_step=1)
    path.unlink()
    mark = launch.recorder.mark

    def marked_by_both(*given: Any) -> None:
        monkeypatch.setattr(launch.recorder, "mark", mark)
        launch.live_files.notice_vanished(tmp_path)
        mark(*given)

    monkeypatch.setattr(launch.recorder, "mark", marked_by_both)
    launch.live_files.notice_vanished(tmp_path)
    assert [file.state for file in catalog.files("run")] == [FileState.MISSING]


@pytest.mark.of_files
def test_what_is_no_checkpoint_of_several_files_is_refused(catalog: Catalog, tmp_path: Path, monkeypatch) -> None:
    launch = catalog.join("run")
    prefix = tensorflow(tmp_path / "x")
    (tmp_path / "x.data-00000-of-00002").unlink()
    home = shards(tmp_path / "home")
    launch.register(written(home / "one.pth", b"x"), global_step=1)
    monkeypatch.chdir(shards(tmp_path / "here"))
    for path, reason in (
        (prefix, "x lacks x.data-00000-of-00002"),
        (home, "it has other checkpoints in it, or their records"),
        (tmp_path, "that this process works in"),
        (".", "that this process works in"),
    ):
        with pytest.raises(UsageError, match=reason):
            launch.register(path, global_step=5)
    assert [file.global_step for file in catalog.files("run")] == [1]


@pytest.mark.parametrize("run", [Path("run"), ["run"]])
def test_a_run_that_is_no_text_is_named__before_the_catalog_was_called_unusable(catalog: Catalog, run: object) -> None:
    with pytest.raises(UsageError, match="the name of a run is text, not"):
        catalog.join(run)  # type: ignore[arg-type]
