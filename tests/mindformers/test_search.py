"""What MindFormers' own search for the last checkpoint answers, and what ckptstore does: the table in its page.

MindFormers is asked by its real functions, on rank 0; a launch of two ranks that are no replicas has saved the files.
"""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from mindformers.checkpoint.checkpoint import get_checkpoint_path
from mindformers.tools.resume_ckpt import checkpoint_health_monitor, get_resume_checkpoint
from mindformers.trainer import base_trainer
from mindformers.utils.file_utils import set_output_path
from mindformers.utils.load_checkpoint_utils import get_last_checkpoint

from ckptstore import connect
from ckptstore.core.iterations import COMMON, METADATA
from ckptstore.core.model import Content
from ckptstore.resume.register import describe, measured
from ckptstore.training.rank_launch import RankLaunch
from tests import ckpt_bytes, parts_bytes

Answer = str | int | None
ROOT = Path(__file__).resolve().parents[2]


class Saves:
    """A run of two ranks in a directory, 10 steps an epoch, and what is asked of it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.catalog = connect()
        self.starts = 0
        self.launches = self.begin()

    def begin(self) -> list[RankLaunch]:
        """All ranks start, and agree on where."""
        self.starts += 1
        launches = [self.catalog.join("run", rank=rank, world_size=2, launch_id=f"L{self.starts}") for rank in (0, 1)]
        launches[0].resolve()
        return launches

    def save(self, step: int, *ranks: int, number: str = "", quarantined: bool = False) -> None:
        """Save a step on these ranks in format 1.0, as its second epoch is never reached, and note it in meta.json."""
        for rank in ranks or (0, 1):
            name = f"net_rank_{rank}{number}-1_{step}.ckpt"
            path = ckpt_bytes.write(self.root / f"rank_{rank}" / name, step)
            os.utime(path, ns=(step * 10**9, step * 10**9))
            self.note(rank, step, name)
            launch = self.launches[rank]
            described = describe(
                launch.facts,
                rank=rank,
                path=str(path),
                kind="periodic",
                global_step=step,
                optimizer_step=step,
                quarantine="the loss of its last step was nan" if quarantined else "",
            )
            whole = measured(described)
            assert whole is not None
            launch.record_files([whole])

    def note(self, rank: int, step: int, name: str) -> None:
        """What meta.json of a rank says."""
        noted = {"last_epoch": 1, "last_step": step, "last_ckpt_file": name}
        (self.root / f"rank_{rank}" / "meta.json").write_text(json.dumps(noted))

    def iteration(self, step: int, *, tracked: bool = True) -> Path:
        """Save a step in the newer format."""
        directory = parts_bytes.save(self.root, step)
        (directory / METADATA).write_text(json.dumps({"storage_data": {}}))
        for path in sorted(directory.iterdir()):
            rank = int("0000001-0000002" in path.name)
            launch = self.launches[rank]
            file = describe(
                launch.facts, rank=rank, path=str(path), kind="periodic", global_step=step, content=Content.PART
            )
            whole = measured(file)
            assert whole is not None
            launch.record_files([whole])
        if tracked:
            (self.root / "latest_checkpointed_iteration.txt").write_text(str(step))
        return directory

    def file(self, step: int, rank: int, number: str = "") -> Path:
        """The file of a step in format 1.0."""
        return self.root / f"rank_{rank}" / f"net_rank_{rank}{number}-1_{step}.ckpt"

    @property
    def ours(self) -> int | None:
        """The step that ckptstore goes on after."""
        plan = self.catalog.resolve("run").plan
        return None if plan is None else plan.global_step


def by_meta(saves: Saves) -> Answer:
    """`resume_training: True`: the name of the file, or what is raised."""
    try:
        return get_resume_checkpoint(str(saves.root), resume_training=True)
    except (ValueError, RuntimeError, FileNotFoundError) as error:
        return f"{type(error).__name__}: {error}"


def by_time(saves: Saves) -> Answer:
    """`resume_by_last_timestamp_ckpt: True`."""
    found = get_last_checkpoint(str(saves.root / "rank_0"))
    return found and Path(found).name


def by_tracker(saves: Saves) -> Answer:
    """`checkpoint.load_path: ROOT`, the newer format."""
    try:
        return Path(get_checkpoint_path(str(saves.root))).name
    except (ValueError, RuntimeError, FileNotFoundError) as error:
        return f"{type(error).__name__}: {error}"


def empty_newest(saves: Saves) -> None:
    saves.save(5)
    saves.save(10)
    saves.file(10, 1).write_bytes(b"")


def no_highest_rank(saves: Saves) -> None:
    saves.save(5)
    saves.save(10)
    shutil.rmtree(saves.root / "rank_1")


def ranks_of_different_steps(saves: Saves) -> None:
    saves.save(5)
    saves.save(10, 0)
    for rank in (0, 1):
        (saves.root / f"rank_{rank}" / "meta.json").unlink()


def one_stale_meta(saves: Saves) -> None:
    saves.save(5)
    saves.save(10)
    saves.note(1, 5, saves.file(5, 1).name)


def older_file_is_touched(saves: Saves) -> None:
    saves.save(5)
    saves.save(10)
    os.utime(saves.file(5, 0))


def relaunch_is_not_whole(saves: Saves) -> None:
    saves.save(5)
    saves.launches = saves.begin()
    saves.save(8, number="_1")
    saves.file(8, 1, "_1").unlink()


def relaunch_numbers_differ(saves: Saves) -> None:
    saves.save(5)
    saves.launches = saves.begin()
    shutil.move(saves.root / "rank_1", saves.root.parent / "elsewhere")  # the node has another disk
    saves.save(8, 0, number="_1")
    saves.save(8, 1)


def unhealthy_newest(saves: Saves) -> None:
    saves.save(5)
    saves.save(10, quarantined=True)


def stale_tracker(saves: Saves) -> None:
    saves.iteration(5)
    saves.iteration(10, tracked=False)


def tracker_ahead(saves: Saves) -> None:
    saves.iteration(5)
    (saves.root / "latest_checkpointed_iteration.txt").write_text("10")


def empty_part(saves: Saves) -> None:
    saves.iteration(5)
    directory = saves.iteration(10)
    next(directory.glob("*opt-0000001*")).write_bytes(b"")


def no_common(saves: Saves) -> None:
    saves.iteration(5)
    (saves.iteration(10) / COMMON).unlink()


def by_health(saves: Saves) -> Answer:
    """`use_checkpoint_health_monitor: True`: what its filter leaves as the newest."""
    marks = [
        {"is_health": 0, "ckpt_name": saves.file(5, 0).name},
        {"is_health": 1, "ckpt_name": saves.file(10, 0).name},
    ]
    (saves.root.parent / "health_ckpts.json").write_text(json.dumps(marks))
    found = [str(saves.file(step, 0)) for step in (5, 10)]
    return Path(checkpoint_health_monitor(str(saves.root.parent), found)[-1]).name


CASES: dict[str, tuple[Callable[[Saves], None], Callable[[Saves], Answer], str, int | None]] = {
    "the newest file of a rank is empty": (empty_newest, by_meta, "net_rank_0-1_10.ckpt", 5),
    "the directory of the highest rank is gone": (no_highest_rank, by_meta, "net_rank_0-1_10.ckpt", None),
    "the ranks' newest files are of different steps": (ranks_of_different_steps, by_meta, "ValueError", 5),
    "one meta.json is stale": (one_stale_meta, by_meta, "net_rank_0-1_5.ckpt", 10),
    "an older file was touched": (older_file_is_touched, by_time, "net_rank_0-1_5.ckpt", 10),
    "the first save of a relaunch is not whole": (relaunch_is_not_whole, by_meta, "ValueError", 5),
    "one rank's files of a relaunch have another suffix": (relaunch_numbers_differ, by_meta, "ValueError", 8),
    "the newest state is unhealthy": (unhealthy_newest, by_health, "net_rank_0-1_10.ckpt", 5),
    "the tracker is stale": (stale_tracker, by_tracker, "iteration_00000005", 10),
    "the tracker names step 10, which was never saved": (tracker_ahead, by_tracker, "FileNotFoundError", 5),
    "a part of the newest iteration is empty": (empty_part, by_tracker, "iteration_00000010", 5),
    "common.json of the newest iteration is gone": (no_common, by_tracker, "iteration_00000010", 5),
}


@pytest.mark.parametrize("case", CASES)
def test_the_two_answers(tmp_path: Path, case: str) -> None:
    happens, search, theirs, ours = CASES[case]
    set_output_path(str(tmp_path / "output"))
    saves = Saves(tmp_path / "checkpoint")
    happens(saves)
    found = search(saves)
    assert (str(found).partition(":")[0], saves.ours) == (theirs, ours), found


def test_the_order_of_ranks_is_that_of_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`BaseTrainer.resume_ckpt_path_with_strategy`: of 12 ranks, rank 2 gets the strategy of rank 10."""
    for rank in range(12):
        (tmp_path / f"ckpt_strategy_rank_{rank}.ckpt").touch()
    file = ckpt_bytes.write(tmp_path / "net_rank_2-1_5.ckpt", 5)
    monkeypatch.setattr(base_trainer, "get_rank", lambda: 2)
    monkeypatch.setattr(base_trainer, "get_ckpt_path_with_strategy", lambda _, strategy: Path(strategy).name)
    config = SimpleNamespace(src_strategy_path_or_dir=str(tmp_path), checkpoint=SimpleNamespace(load_path=str(file)))
    (tmp_path / file.name).rename(tmp_path.parent / file.name)
    config.checkpoint.load_path = str(tmp_path.parent / file.name)
    assert base_trainer.BaseTrainer.resume_ckpt_path_with_strategy(config) == "ckpt_strategy_rank_10.ckpt"


def test_the_table_in_the_page_has_each_case() -> None:
    page = (ROOT / "docs" / "how-to" / "mindformers.md").read_text()
    for case, (_, _, theirs, ours) in CASES.items():
        told = next((line for line in page.splitlines() if line.startswith(f"| {case} |")), "")
        assert told, case
        assert (str(ours) in told) or (ours is None and "does not go on" in told)
        assert ("raises" in told) == theirs.endswith("Error")
