"""Metrics that come after the save: added to the state that was evaluated, kept in its journal."""

import shutil
from pathlib import Path

import pytest

from ckptstore.api import Catalog, connect
from ckptstore.catalog.engine import Database
from ckptstore.errors import NothingRestorableError, UsageError
from ckptstore.retention.policy import Policy
from tests import ckpt_bytes
from tests.jobs import started
from tests.retention.builders import gc
from tests.trash_calls import MOVES, at

LAST = Policy(keep_last=1, floor=1)


def metrics(catalog: Catalog) -> dict[int, list[dict[str, float]]]:
    found: dict[int, list[dict[str, float]]] = {}
    for file in catalog.files("run"):
        found.setdefault(file.global_step, []).append(dict(file.metrics))
    return found


def states(catalog: Catalog) -> list[str]:
    return [file.state.value for file in catalog.files("run")]


def test_the_value_counts_that_was_recorded_last(catalog: Catalog, tmp_path: Path) -> None:
    _, ranks = started(catalog, tmp_path, 10, 20)
    ranks[1].record(step=10, accuracy=0.5)
    ranks[1].record(step=10, accuracy=0.9, bleu=12)
    catalog.record("run@20", accuracy=0.7)
    assert metrics(catalog) == {20: [{"accuracy": 0.7}, {}], 10: [{}, {"accuracy": 0.9, "bleu": 12.0}]}
    best = catalog.resolve("run@best:accuracy:max").plan
    assert best.global_step == 10
    kept = catalog.plan_gc("run", Policy(keep_best=1, metric="accuracy", mode="max", floor=1)).decision.keep
    assert [each.state.global_step for each in kept] == [20, 10]


def test_what_the_state_was_stays_true(catalog: Catalog, tmp_path: Path) -> None:
    """To register the file once more, or to find it damaged, loses no metric; nor does a metric hide the damage."""
    job, (rank,) = started(catalog, tmp_path, 10, world_size=1)
    rank.record(step=10, accuracy=0.5)
    rank.register(job.folder(0) / "net-1_10.ckpt", global_step=10, optimizer_step=10)
    assert metrics(catalog) == {10: [{"accuracy": 0.5}]}
    path = job.folder(0) / "net-1_10.ckpt"
    path.write_bytes(bytes(reversed(path.read_bytes())))
    catalog.verify("run", digest=True)
    with pytest.raises(NothingRestorableError):
        catalog.record("run@10", accuracy=0.6)
    (file,) = catalog.files("run")
    assert (file.state.value, file.metrics) == ("damaged", {"accuracy": 0.5})


def test_a_launch_adds_metrics_to_what_others_recorded_since_its_save(catalog: Catalog, tmp_path: Path) -> None:
    """It knew the file as it had saved it: its metric was lost, or took the mark of damage and those of others away."""
    job, (rank,) = started(catalog, tmp_path, 10, world_size=1)
    catalog.record("run@10", accuracy=0.5)
    rank.record(step=10, bleu=3)
    assert metrics(catalog) == {10: [{"accuracy": 0.5, "bleu": 3.0}]}
    path = job.folder(0) / "net-1_10.ckpt"
    path.write_bytes(bytes(reversed(path.read_bytes())))
    catalog.verify("run", digest=True)
    for value in (4, 5, 6):
        rank.record(step=10, bleu=value)
    (file,) = catalog.files("run")
    assert (file.state.value, file.metrics) == ("damaged", {"accuracy": 0.5, "bleu": 6.0})


def test_what_gc_moved_away_comes_back_with_later_metrics(catalog: Catalog, tmp_path: Path) -> None:
    """A launch that recorded one made the catalog say that the file in the trash was at its place."""
    _, (rank,) = started(catalog, tmp_path, 10, 20, 30, world_size=1)
    gc(catalog, LAST)
    rank.record(step=10, bleu=3)
    rank.record(step=10, accuracy=0.5)
    assert states(catalog) == ["complete", "trashed", "trashed"]
    catalog.undo("run")
    assert states(catalog) == ["complete"] * 3
    assert metrics(catalog)[10] == [{"accuracy": 0.5, "bleu": 3.0}]


def test_of_what_gc_is_moving_the_state_is_true_after_each_step(catalog: Catalog, tmp_path: Path) -> None:
    """Before, it was "trashed" by its own record too, and so for ever: also once it was purged."""
    _, (rank,) = started(catalog, tmp_path, 10, 20, world_size=1)
    with at(1, MOVES, lambda: rank.record(step=10, bleu=3)):
        gc(catalog, LAST)
    assert states(catalog) == ["complete", "trashed"]
    catalog.purge("run", now=True)
    assert states(catalog) == ["complete", "missing"]


def test_while_many_saves_wait_no_metric_is_lost(catalog: Catalog, tmp_path: Path) -> None:
    """Before, the launch did not ask the catalog what others had recorded, and its older record did not count."""
    _, (rank,) = started(catalog, tmp_path, 10, world_size=1)
    rank.recorder.postponed = True
    rank.record(step=10, bleu=3)
    catalog.record("run@10", accuracy=0.5)
    catalog.record("run@10", accuracy=0.6)
    rank.record(step=10, loss=1)
    rank.recorder.catch_up()
    assert metrics(catalog) == {10: [{"accuracy": 0.6, "bleu": 3.0, "loss": 1.0}]}


def test_a_file_that_is_written_again_has_no_metric_of_the_one_before(catalog: Catalog, tmp_path: Path) -> None:
    """While many saves wait, the catalog has the record of the bytes before, as after a rollback in a launch."""
    job, (rank,) = started(catalog, tmp_path, 10, world_size=1)
    rank.record(step=10, bleu=3)
    rank.recorder.postponed = True
    path = job.write(rank, 10)
    ckpt_bytes.write(path, 10, 11)
    rank.register(path, global_step=10, optimizer_step=10)
    rank.record(step=10, loss=1)
    rank.recorder.catch_up()
    assert metrics(catalog) == {10: [{"loss": 1.0}]}


def test_a_launch_evaluates_the_state_that_it_started_from(catalog: Catalog, tmp_path: Path) -> None:
    job, _ = started(catalog, tmp_path, 10, world_size=1)
    (rank,) = job.start()
    rank.record(step=10, accuracy=0.5)
    assert metrics(catalog) == {10: [{"accuracy": 0.5}]}
    with pytest.raises(NothingRestorableError, match="run run has no save of step 11"):
        rank.record(step=11, accuracy=0.5)


def test_a_catalog_made_anew_has_them(catalog: Catalog, other: Catalog, tmp_path: Path) -> None:
    _, ranks = started(catalog, tmp_path, 10)
    ranks[0].record(step=10, accuracy=0.5)
    catalog.record("run@10", bleu=3)
    other.scan(tmp_path)
    assert metrics(other) == metrics(catalog) == {10: [{"accuracy": 0.5, "bleu": 3.0}, {}]}


def test_without_a_catalog_the_journal_has_them(
    tmp_path: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = connect(sqlite_url)
    _, (rank,) = started(catalog, tmp_path / "ckpt", 10, world_size=1)
    path = Path(sqlite_url.removeprefix("sqlite:///"))
    rank.let_go()
    shutil.move(path, path.with_suffix(".away"))
    path.mkdir()
    with monkeypatch.context() as patched:
        patched.setattr(Database, "in_write", lambda *_, **__: pytest.fail("the catalog was asked a second time"))
        rank.record(step=10, accuracy=0.5)
    path.rmdir()
    shutil.move(path.with_suffix(".away"), path)
    catalog.resolve("run")
    assert metrics(catalog) == {10: [{"accuracy": 0.5}]}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "half"])
def test_what_is_no_metric(catalog: Catalog, tmp_path: Path, value: float) -> None:
    _, (rank,) = started(catalog, tmp_path, 10, world_size=1)
    with pytest.raises(UsageError, match="metric 'accuracy' is"):
        rank.record(step=10, accuracy=value)
    with pytest.raises(UsageError, match="metric 'accuracy' is"):
        catalog.record("run", accuracy=value)


def test_the_state_is_named_by_the_reference_alone(catalog: Catalog, tmp_path: Path) -> None:
    started(catalog, tmp_path, 10, 20)
    with pytest.raises(UsageError, match=r"step is no metric; name the state: record\('run@10', …\)"):
        catalog.record("run", step=10, accuracy=0.5)
