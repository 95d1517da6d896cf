"""What is taken into the catalog though nobody registered it, with real files on disk, on both databases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from ckptstore.core.model import FileState, Rule
from ckptstore.ops import register
from ckptstore.ops.connect import connect
from ckptstore.ops.register import describe, measured

from .jobs import Job

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ckptstore.core.model import Checkpoint, Resolution
    from ckptstore.ops.connect import Catalog


def chosen(resolution: Resolution) -> tuple[str, int] | None:
    plan = resolution.plan
    return plan and (plan.launch.id, plan.global_step)


def meanwhile(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Act once, after the next file was read and before its record is written."""

    def read(file: Checkpoint, **asked: Any) -> Checkpoint | None:
        whole = measured(file, **asked)
        monkeypatch.setattr(register, "measured", measured)
        act()
        return whole

    monkeypatch.setattr(register, "measured", read)


@pytest.mark.parametrize("begun", [False, True])
def test_what_the_registrar_recorded_meanwhile_stands(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, begun: bool
) -> None:
    """A catalog made anew from the journals says the same."""
    job = Job(catalog, tmp_path / "ckpt", world_size=1)
    (rank,) = job.start()
    job.announce(rank)
    job.save([rank], 10)
    path = job.folder(0) / "net-2_10.ckpt"
    bare = describe(rank.facts, rank=0, path=path, kind="periodic", global_step=20, optimizer_step=20)
    told = describe(
        rank.facts, rank=0, path=path, kind="periodic", global_step=20, metrics={"loss": 0.5}, quarantine="nan"
    )
    if begun:
        rank.record([bare])
    job.write(rank, 20)

    def record() -> None:
        whole = measured(told)
        assert whole is not None
        rank.record([whole])

    meanwhile(monkeypatch, record)
    assert chosen(catalog.resolve("run")) == ("L1", 10)
    anew = connect(str(tmp_path / "anew.db"))
    anew.sync(tmp_path / "ckpt")
    for each in (catalog, anew):
        newest = each.files("run")[0]
        assert (newest.global_step, newest.state) == (20, FileState.COMPLETE)
        assert (newest.quarantine, dict(newest.metrics)) == ("nan", {"loss": 0.5})
        assert [reason.rule for each in catalog.resolve("run").rejections for reason in each.reasons] == [
            Rule.QUARANTINED
        ]


def test_what_was_given_up_meanwhile_is_not_there_again(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that was back was looked at, and is gone again before that is recorded."""
    job = Job(catalog, tmp_path, world_size=1)
    (rank,) = job.start()
    job.announce(rank)
    job.save([rank], 10)
    path = job.write(rank, 20)

    def gone() -> None:
        whole = measured(describe(rank.facts, rank=0, path=path, kind="periodic", global_step=20, optimizer_step=20))
        assert whole is not None
        rank.record([whole])
        rank.mark_damaged(whole, Rule.UNREADABLE)

    meanwhile(monkeypatch, gone)
    assert chosen(catalog.resolve("run")) == ("L1", 10)
    assert catalog.files("run")[0].state is FileState.DAMAGED
