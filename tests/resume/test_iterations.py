"""Directories of iterations, as MindFormers writes them: chosen, adopted, seen to vanish, removed and brought back."""

import json
import shutil
from pathlib import Path

import pytest

from ckptstore import Policy
from ckptstore.api import Catalog
from ckptstore.core.iterations import COMMON, METADATA, TRACKER, parse_part
from ckptstore.core.model import Content, FileState, Kind
from ckptstore.errors import NothingRestorableError, RefusedError
from ckptstore.resume.export import paths, write_meta
from ckptstore.resume.register import describe, measured
from ckptstore.resume.resolver import Loads, Query
from ckptstore.training.rank_launch import RankLaunch
from ckptstore.training.start import decide
from tests.parts_bytes import save

pytestmark = pytest.mark.of_files


class Saves:
    """A run of two ranks that share a directory."""

    def __init__(self, catalog: Catalog, root: Path) -> None:
        self.catalog, self.root = catalog, root
        root.mkdir()
        self.ranks = [catalog.join("run", rank=rank, world_size=2, launch_id="L1") for rank in (0, 1)]
        self.ranks[0].resolve()
        for each in self.ranks:
            told = {"kind": Kind.PERIODIC, "prefix": "net", "breakpoint_prefix": "net", "content": Content.PART}
            each.add_source(str(root), names_before=(), **told)

    def save(self, step: int, *registering: int) -> Path:
        """Write an iteration, and have these ranks register what is theirs."""
        directory = save(self.root, step)
        (directory / METADATA).write_text(json.dumps({"of": step}))
        (self.root / TRACKER).write_text(str(step))
        for path in sorted(directory.iterdir()):
            part = parse_part(path.name)
            rank = part.index if part else 0
            if rank in registering:
                register(self.ranks[rank], path, step)
        return directory

    @property
    def newest(self) -> int | None:
        plan = self.catalog.resolve("run").plan
        return None if plan is None else plan.global_step

    @property
    def there(self) -> list[str]:
        return sorted(path.name for path in self.root.glob("iteration_*"))


def register(rank: RankLaunch, path: Path, step: int) -> None:
    told = describe(rank.facts, rank=rank.rank, path=str(path), kind="periodic", global_step=step, content=Content.PART)
    whole = measured(told)
    assert whole is not None
    rank.record_files([whole])


@pytest.mark.parametrize(("dead", "of_all"), [(0, {COMMON, METADATA}), (1, set())])
def test_what_a_rank_that_died_had_not_registered_is_adopted_if_common_json_proves_it(
    catalog: Catalog, tmp_path: Path, dead: int, of_all: set[str]
) -> None:
    saves = Saves(catalog, tmp_path / "checkpoint")
    saves.save(5, 0, 1)
    saves.save(10, 1 - dead)
    unfinished = saves.save(15)
    (unfinished / COMMON).unlink()
    assert saves.newest == 10
    adopted = {Path(file.path).name for file in catalog.show("run", 10) if file.rank == dead}
    own = {f"net-{what}-000000{dead}-0000002.safetensors" for what in ("model", "opt")}
    assert adopted == own | of_all
    assert catalog.files("run")[0].global_step == 10
    plan = catalog.resolve("run").plan
    assert plan is not None
    assert paths(plan) == [str(saves.root / "iteration_00000010")] * 2


def test_the_tensors_of_an_iteration_are_those_of_all_its_parts(catalog: Catalog, tmp_path: Path) -> None:
    saves = Saves(catalog, tmp_path / "checkpoint")
    for step in (5, 10):
        saves.save(step, 0, 1)
    assert [set(catalog.open("run@10").rank(rank)) for rank in (0, 1)] == [
        {f"weight.{rank}", "moment", "global_step"} for rank in (0, 1)
    ]
    compared = catalog.diff("run@5", "run@10").ranks
    assert [(each.same, [one.name for one in each.changed]) for each in compared] == [(2, ["global_step"])] * 2


def test_an_iteration_that_mindformers_removed_is_gone_in_the_catalog_too(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saves = Saves(catalog, tmp_path / "checkpoint")
    for step in (5, 10):
        saves.save(step, 0, 1)
    shutil.rmtree(saves.root / "iteration_00000005")
    assert saves.newest == 10
    assert {file.state for file in catalog.show("run", 5)} == {FileState.MISSING}
    assert "cannot be written" not in caplog.text, "the journal is above the directory, which is gone for good"


def test_an_iteration_is_of_one_directory(catalog: Catalog, tmp_path: Path) -> None:
    """It was moved or copied, and scanned there: records at the other place neither spoil it nor complete it."""
    saves = Saves(catalog, tmp_path / "checkpoint")
    saves.save(5, 0, 1)
    saves.save(10, 0, 1)
    moved = saves.root.rename(tmp_path / "moved")
    catalog.scan(moved, run="run")

    def home() -> Path:
        (rank, _) = (catalog.join("run", rank=each, world_size=2, launch_id="L2") for each in (0, 1))
        start = decide(rank, query=Query(loads=Loads.MINDFORMERS))
        assert start.plan is not None
        (there,) = {Path(file.path).parent for file in (*start.parts, *(each.source for each in start.plan.ranks))}
        assert len(start.parts) == 6
        assert {Path(file.path).parent for file in catalog.open("run@10").files_of(1)} == {there}
        return there

    assert home() == moved / "iteration_00000010"
    shutil.copytree(moved, saves.root)
    next((moved / "iteration_00000010").glob("net-opt-*")).unlink()
    assert catalog.resolve("run").plan.ranks[0].source.path.startswith(str(saves.root / "iteration_00000010"))
    next((saves.root / "iteration_00000010").glob("net-model-*")).unlink()
    assert saves.newest == 5
    assert [(save.tally.global_step, save.restorable) for save in catalog.saves("run")] == [(10, False), (5, True)]


@pytest.mark.parametrize("world_size", [1, 4])
def test_an_iteration_is_for_as_many_ranks_as_saved_it(catalog: Catalog, tmp_path: Path, world_size: int) -> None:
    Saves(catalog, tmp_path / "checkpoint").save(5, 0, 1)
    later = catalog.join("run", rank=0, world_size=world_size, launch_id="L2")
    with pytest.raises(NothingRestorableError, match=f"saved by 2 ranks, to be loaded by {world_size}") as raised:
        later.resolve()
    assert "; start with 2 ranks, or start over: " in raised.value.hint


def test_no_meta_json_is_written_for_an_iteration(catalog: Catalog, tmp_path: Path) -> None:
    """MindFormers reads it in format 1.0 only."""
    Saves(catalog, tmp_path / "checkpoint").save(5, 0, 1)
    plan = catalog.resolve("run").plan
    assert plan is not None
    with pytest.raises(RefusedError, match="step 5 is a directory of an iteration, and meta.json names files"):
        write_meta(plan, tmp_path / "checkpoint")
    assert not list(tmp_path.rglob("meta.json"))


def test_gc_moves_whole_iterations_and_keeps_the_one_that_the_tracker_names(catalog: Catalog, tmp_path: Path) -> None:
    saves = Saves(catalog, tmp_path / "checkpoint")
    for step in (5, 10, 15, 20):
        saves.save(step, 0, 1)
    (saves.root / TRACKER).write_text("10")
    plan = catalog.plan_gc("run", Policy(keep_last=1, floor=1))
    kept = {verdict.state.global_step: {why.detail for why in verdict.reasons} for verdict in plan.decision.keep}
    assert kept.keys() == {10, 20}
    assert f"{saves.root / TRACKER} names it" in kept[10]
    done = catalog.execute(plan, allow_mass_delete=True)
    assert done.troubles == ()
    assert saves.there == ["iteration_00000010", "iteration_00000020"]
    assert saves.newest == 20
    catalog.undo("run")
    assert saves.there == [f"iteration_{step:08d}" for step in (5, 10, 15, 20)]
    assert sorted(path.name for path in (saves.root / "iteration_00000015").iterdir()) == sorted(
        path.name for path in (saves.root / "iteration_00000020").iterdir()
    )


def test_a_scan_of_a_copy_takes_no_file_of_an_iteration(catalog: Catalog, tmp_path: Path) -> None:
    """`cp -a`, with the times; `common.json` and `metadata.json` do not have the names of checkpoints."""
    saves = Saves(catalog, tmp_path / "checkpoint")
    for step in (5, 10):
        saves.save(step, 0, 1)
    shutil.copytree(saves.root, tmp_path / "backup")
    done = catalog.scan(tmp_path / "backup")
    copies = sorted(str(path) for path in (tmp_path / "backup").glob("iteration_*/*"))
    assert sorted(each.path for each in done.skipped if "a copy of files in " in each.reason) == copies
    live = [file for file in catalog.files("run") if file.state is FileState.COMPLETE]
    assert {Path(file.path).parents[1] for file in live} == {saves.root}
    catalog.scan(tmp_path / "backup", run="new")
    assert sorted(file.path for file in catalog.files("new")) == copies


@pytest.mark.parametrize("name", [COMMON, "net-opt-0000001-0000002.safetensors"])
def test_an_iteration_that_lost_a_file_is_not_called_restorable(catalog: Catalog, tmp_path: Path, name: str) -> None:
    saves = Saves(catalog, tmp_path / "checkpoint")
    for step in (5, 10, 15):
        saves.save(step, 0, 1)
    (saves.root / "iteration_00000015" / name).unlink()
    with (saves.root / "iteration_00000010" / name).open("ab") as file:
        file.write(b" ")
    catalog.verify("run")
    assert [(save.tally.global_step, save.restorable) for save in catalog.saves("run")] == [
        (15, False),
        (10, False),
        (5, True),
    ]
    (row,) = catalog.runs()
    assert row.newest_restorable is not None
    assert row.newest_restorable.tally.global_step == saves.newest == 5
    saves.root.rename(tmp_path / "moved")
    catalog.scan(tmp_path / "moved", run="run")
    assert [save.restorable for save in catalog.saves("run")] == [False, False, True]
