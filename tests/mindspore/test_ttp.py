"""TTP: MindSpore's own handlers, called as MindIO's controller calls them; all recorded before the process ends."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from mindspore.train.callback import _train_fault_tolerance as fault_tolerance
from mindspore.train.model import _calc_cb_initial_step

from ckptstore.api import Catalog
from ckptstore.catalog import reads
from ckptstore.core.model import FileState, Kind, Rule
from ckptstore.mindspore import ttp
from ckptstore.mindspore.launch import TrainingLaunch
from ckptstore.training.recorder_thread import RecorderThread
from tests.command_line import ckptstore
from tests.mindspore.trainings import create_dataset, create_model, saving
from tests.mindspore.ttp_ranks import FaultError, Handled, Rank


def files(catalog: Catalog) -> list[tuple[int, int, str, FileState]]:
    return [
        (file.global_step, file.rank, "/".join(Path(file.path).parts[-3:]), file.state)
        for file in catalog.files("run", kind="ttp")
    ]


@pytest.mark.parametrize("name", ["ttp", "tft"])
def test_what_is_saved_is_recorded_at_once_and_again_when_it_is_renamed(
    catalog: Catalog, rank: Rank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """`tft_saved_checkpoints` is what seed 002 and MindSpore 2.4 write."""

    def directory(step: int, root: str, is_tmp_file: bool) -> str:  # noqa: FBT001 — MindSpore's
        return str(Path(root) / f"{name}_saved_checkpoints-step_{step}{'_tmp' if is_tmp_file else ''}")

    monkeypatch.setattr(fault_tolerance, "_get_ckpt_dir", directory)
    unfinished = (5, 0, f"{name}_saved_checkpoints-step_5_tmp/rank_0/ttp_rank_0-1_5.ckpt")
    finished = (5, 0, f"{name}_saved_checkpoints-step_5/rank_0/ttp_rank_0-1_5.ckpt")
    seen = []
    moved = TrainingLaunch.moved
    monkeypatch.setattr(
        TrainingLaunch, "moved", lambda self, *paths: (seen.append(files(catalog)), moved(self, *paths))
    )
    rank.train(0, tmp_path, handlers=("save", "rename"))
    assert seen == [[(*unfinished, FileState.COMPLETE)]]
    assert set(files(catalog)) == {(*finished, FileState.COMPLETE), (*unfinished, FileState.MOVED)}
    start, _ = rank.train(0, tmp_path, launch="L2", step=100)
    assert start.global_step == 5


def test_a_directory_that_is_left_is_taken_where_it_covers_every_rank(
    catalog: Catalog, rank: Rank, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Disks of two nodes: on one the directory is renamed, on the other it never is."""
    for number, node, handlers in ((0, "a", ("save", "rename")), (1, "b", ("save",))):
        rank.train(number, tmp_path / node, world_size=2, handlers=handlers)
    plan = catalog.resolve("run").plan
    assert [(plan.global_step, each.rank, each.source.rank) for each in plan.ranks] == [(5, 0, 0), (5, 1, 1)]
    told = ckptstore("resolve", "run", "--explain")
    assert (
        "ttp_saved_checkpoints-step_5_tmp is of an unfinished TTP save; the files in it and beside it cover every"
    ) in told.out

    Path(plan.ranks[0].source.path).unlink()
    resolution = catalog.resolve("run")
    assert resolution.plan.global_step == 4
    assert [(reason.rule, reason.rank) for reason in resolution.rejections[0].reasons] == [(Rule.MISSING_FILE, 0)]


@pytest.mark.parametrize("recorded", [True, False])
def test_what_a_launch_left_in_a_directory_that_the_next_one_renames_is_not_of_that_one(
    catalog: Catalog, rank: Rank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, recorded: bool
) -> None:
    """A cascaded fault left rank 0's file alone; the second launch fails at the same step, and rank 0 does not save."""
    with monkeypatch.context() as patch:
        if not recorded:
            patch.setattr(ttp.TtpWatch, "_record_new", lambda *_: None)
        rank.train(0, tmp_path / "0", world_size=2, root=tmp_path / "ttp")
    left = next((tmp_path / "ttp").rglob("*.ckpt")).read_bytes()
    for number, handlers in ((0, ()), (1, ("save", "rename"))):
        directory = tmp_path / f"again_{number}"
        rank.train(number, directory, world_size=2, launch="L2", handlers=handlers, root=tmp_path / "ttp")
    (last,) = (tmp_path / "ttp").glob("*/rank_0/*.ckpt")
    assert (last.parents[1].name, last.read_bytes()) == ("ttp_saved_checkpoints-step_5", left)
    plan = catalog.resolve("run").plan
    assert (plan.launch.id, plan.global_step) == ("L2", 4)
    assert [file.launch for file in catalog.files("run", kind="ttp") if file.path == str(last)] == ["L1"]
    with catalog.database.read() as connection:
        found = [source for source in reads.sources_of(connection, 1) if source.kind is Kind.TTP]
    own = "ttp_saved_checkpoints-step_5_tmp/rank_0/ttp_rank_0-1_5.ckpt"
    assert {(source.launch, source.rank) for source in found if own in source.names_before} == {("L2", 0)}


def test_what_a_function_of_the_user_saves(catalog: Catalog, rank: Rank, tmp_path: Path) -> None:
    rank.train(0, tmp_path, step=3, save_fn=True, handlers=("save", "rename"))
    assert [(step, name) for step, _, name, _ in files(catalog)] == [(3, f"{tmp_path.name}/ckpt/net-1_3.ckpt")]
    assert rank.train(0, tmp_path, launch="L2", step=100)[0].global_step == 3


def test_a_rename_without_the_catalog_keeps_nothing_waiting(
    catalog: Catalog, rank: Rank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose files were in the directory only the catalog knows; the process is gone a moment later."""
    waiting = []
    flush = RecorderThread.flush
    rename = fault_tolerance._rename_save_result

    def lose_and_rename(step: int, cb_ctx: Any) -> None:
        (tmp_path / "catalog.db").rename(tmp_path / "away.db")
        (tmp_path / "catalog.db").mkdir()
        rename(step, cb_ctx)

    with monkeypatch.context() as patch:
        patch.setattr(fault_tolerance, "_rename_save_result", lose_and_rename)
        patch.setattr(RecorderThread, "flush", lambda self: (flush(self), waiting.append(self._open_jobs)))
        rank.train(0, tmp_path, handlers=("save", "rename"))
    assert set(waiting) == {0}
    (tmp_path / "catalog.db").rmdir()
    (tmp_path / "away.db").rename(tmp_path / "catalog.db")
    start, _ = rank.train(0, tmp_path, launch="L2", step=100)
    assert start.global_step == 5
    assert start.plan.ranks[0].source.path.endswith("ttp_saved_checkpoints-step_5/rank_0/ttp_rank_0-1_5.ckpt")


def test_a_rename_that_nobody_could_record_moves_the_record(
    catalog: Catalog, rank: Rank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(TrainingLaunch, "moved", lambda *_: None)
        rank.train(0, tmp_path, handlers=("save", "rename"))
    plan = catalog.resolve("run").plan
    assert plan.global_step == 5
    assert plan.ranks[0].source.path.endswith("ttp_saved_checkpoints-step_5/rank_0/ttp_rank_0-1_5.ckpt")
    assert {state for _, _, name, state in files(catalog) if "_tmp" in name} == {FileState.MOVED}


def test_the_process_ends_once_everything_is_in_the_catalog(
    catalog: Catalog, rank: Rank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A healthy rank that the controller asks for nothing: its periodic save of step 4 must not be lost."""
    seen: list[list[int]] = []
    monkeypatch.setattr(
        fault_tolerance,
        "_tft_exit_cb",
        lambda _: seen.append([file.global_step for file in catalog.files("run") if file.size is not None]),
    )
    record = RecorderThread._record
    monkeypatch.setattr(RecorderThread, "_record", lambda *given, **more: (slowly(), record(*given, **more)))
    rank.train(0, tmp_path, handlers=("exit",))
    assert seen == [[4]]


def slowly() -> None:
    """The thread is behind: the training thread comes to the exit first."""
    import threading

    threading.Event().wait(0.3)


def test_trouble_with_the_catalog_does_not_keep_a_state_from_being_saved(
    catalog: Catalog, rank: Rank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from ckptstore.mindspore.session import Session

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("on purpose")

    monkeypatch.setattr(Session, "describe", broken)
    rank.train(0, tmp_path, handlers=("save", "rename"))
    assert (tmp_path / "ttp/ttp_saved_checkpoints-step_5/rank_0/ttp_rank_0-1_5.ckpt").exists()
    assert "a TTP checkpoint could not be registered; the next start looks for it on disk" in caplog.text


def test_a_handler_that_fails_fails_as_before(
    catalog: Catalog, rank: Rank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parameters in the middle of an update: MindSpore refuses to save them, and the controller must hear of it."""
    monkeypatch.setattr(rank.stand_in.OnCpu, "_is_params_consistent", lambda _: False)
    with pytest.raises(RuntimeError, match="inconsistent state"):
        rank.train(0, tmp_path)
    assert files(catalog) == []


@pytest.mark.parametrize("repaired", [8, 6, 3])
def test_a_repair_in_the_process_goes_on_from_the_step_that_it_repaired(
    catalog: Catalog, rank: Rank, tmp_path: Path, repaired: int
) -> None:
    """MindSpore calls `_train` again (`_handle_tft` in `train/model.py`); 6 steps an epoch, a fault after step 9."""
    joined = catalog.join("run", launch_id="L1")
    training = TrainingLaunch(joined.database, joined.facts, 0)
    model, dataset = create_model(), create_dataset()
    training.resume(model, dataset)
    tft_cb = rank.stand_in.install()(str(tmp_path / "ttp"))
    ckpt_cb = saving(tmp_path / "ckpt", save_checkpoint_steps=100)
    registrar = training.registrar(ckpt_cb, tft_cb)
    with suppress(FaultError):
        model.train(3, dataset, callbacks=[ckpt_cb, tft_cb, Handled(tft_cb, 9, ()), registrar])
    assert training.global_step == 9
    initial_epoch, initial_step = repaired // 6, repaired % 6
    again = create_dataset()
    cb_initial_step = _calc_cb_initial_step(initial_epoch, initial_step, 3, again, dataset_sink_mode=False)
    model._train(
        3,
        again,
        callbacks=[ckpt_cb, tft_cb, registrar],
        dataset_sink_mode=False,
        initial_epoch=initial_epoch,
        initial_step=cb_initial_step,
    )
    assert training.global_step == 18
    assert [file.global_step for file in catalog.files("run")] == [18]


def test_a_count_that_goes_on_is_not_added_to_another(catalog: Catalog, rank: Rank, tmp_path: Path) -> None:
    """`initial_step` is what a script that restores by hand gives: the controller would hear of step 11, not 6."""
    rank.train(0, tmp_path, handlers=("save", "rename"))
    joined = catalog.join("run", launch_id="L2")
    training = TrainingLaunch(joined.database, joined.facts, 0)
    model, dataset = create_model(), create_dataset()
    start = training.resume(model, dataset)
    tft_cb = rank.stand_in.install()(str(tmp_path / "ttp"), initial_step=start.global_step)
    told: list[int] = []
    tft_cb.tft.tft_end_updating_os = told.append
    model.train(1, dataset, callbacks=[tft_cb, training.registrar(tft_cb)])
    assert told == [6]
