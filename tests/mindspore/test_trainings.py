"""Several trainings in one process, and evaluations between them: what each leaves to the next, and what stays open."""

import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore.train import Callback
from mindspore.train.callback import _checkpoint as checkpoint_callback

import ckptstore.mindspore
from ckptstore.api import Catalog, connect
from ckptstore.catalog import leases, reads
from ckptstore.core.events import FileRecorded, from_lines
from ckptstore.core.model import Content, FileState, Kind
from ckptstore.errors import RefusedError
from ckptstore.journal import jsonl
from ckptstore.mindspore.load_guard import LoadGuard
from tests.mindspore.trainings import Job, RaiseAt, create_dataset, create_model, saving, without_counter
from tests.postgres_server import close_database, open_database

Switch = Callable[[], None]


@pytest.fixture
def threads() -> Callable[[], set[str]]:
    """The names of ckptstore's threads that were started since."""
    before = threading.enumerate()
    return lambda: {
        each.name for each in threading.enumerate() if each not in before and each.name.startswith("ckptstore")
    }


def open_files(below: Path) -> list[str]:
    """What this process has open below a directory, and its connections to PostgreSQL."""
    found = []
    for number in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the one of the listing itself
            found.append(str(number.readlink()))
    return [name for name in found if name.startswith((str(below), "socket:"))]


@pytest.fixture
def catalog(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    """An empty catalog, on each of the two databases in turn."""
    monkeypatch.setenv("CKPTSTORE_URL", database_url)
    return connect(database_url)


@pytest.fixture
def outage(catalog: Catalog, request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Switch, Switch]:
    """Takes the catalog away, and brings it back."""
    url = catalog.database.url
    if catalog.database.is_sqlite:
        own, away = tmp_path / "catalog.db", tmp_path / "away"

        def lose() -> None:
            away.mkdir()
            for path in tmp_path.glob("catalog.db*"):
                path.rename(away / path.name)
            own.mkdir()

        def bring_back() -> None:
            own.rmdir()
            for path in away.iterdir():
                path.rename(tmp_path / path.name)

        return lose, bring_back
    where = request.getfixturevalue("postgres"), str(url.database)
    return partial(close_database, *where), partial(open_database, *where)


def journalled(directory: Path) -> set[int]:
    """The steps of the whole files that the journals of a directory tell of."""
    entries = [entry for path in jsonl.journals_in(str(directory)) for entry in jsonl.read(path).entries]
    recorded = [event.file for event in from_lines(entries, str(directory))[0] if isinstance(event, FileRecorded)]
    return {file.global_step for file in recorded if file.state is FileState.COMPLETE}


def test_a_second_training_without_the_catalog_is_journalled_and_later_all_is_there(
    catalog: Catalog, outage: tuple[Switch, Switch], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The first left a breakpoint: what is saved after it does not wait for a catalog that is away."""
    lose, bring_back = outage
    job = Job()
    ckpt_cb = saving(tmp_path / "ckpt", exception_save=True)
    registrar = job.registrar(ckpt_cb)
    job.fail(RaiseAt(3), ckpt_cb, registrar)
    lose()
    for epoch in (1, 2):
        job.model.train(epoch + 1, create_dataset(), callbacks=[ckpt_cb, registrar], initial_epoch=epoch)
        assert registrar._session.recorder._open_jobs == 0
    assert journalled(tmp_path / "ckpt") == {2, 3, 8, 10, 12, 14, 16, 18}
    assert "Traceback" not in caplog.text
    bring_back()
    assert registrar._session.recorder.flush(60)
    there = {(file.kind.value, file.global_step) for file in catalog.files("run") if file.state is FileState.COMPLETE}
    assert there == {("dying_gasp", 3), *(("periodic", step) for step in (2, 8, 10, 12, 14, 16, 18))}
    assert len([record for record in caplog.records if "can be used again" in record.getMessage()]) == 1


@pytest.mark.of_files
@pytest.mark.parametrize("with_exit", [False, True])
def test_a_save_that_failed_is_not_the_one_before(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, with_exit: bool
) -> None:
    """MindSpore notes the step before it saves, and the name after: on a full disk the two are of two saves."""
    job = Job(create_model() if with_exit else without_counter(create_model()))
    ckpt_cb = saving(tmp_path / "ckpt")
    save = checkpoint_callback.save_checkpoint

    def failing(network: object, path: str, *more: object, **options: object) -> object:
        if path.endswith("1_6.ckpt"):
            raise SystemExit if with_exit else OSError("No space left on device")
        return save(network, path, *more, **options)

    monkeypatch.setattr(checkpoint_callback, "save_checkpoint", failing)
    with pytest.raises(SystemExit if with_exit else OSError):
        job.train(ckpt_cb, job.registrar(ckpt_cb, save_on_exception=with_exit), epochs=2)
    found = {Path(file.path).name: (file.global_step, file.state) for file in catalog.files("run")}
    whole = FileState.COMPLETE
    assert {"net-1_2.ckpt": (2, whole), "net-1_4.ckpt": (4, whole)}.items() <= found.items()
    assert {step for step, _ in found.values()} == ({2, 4, 6} if with_exit else {2, 4})


@pytest.mark.of_files
def test_a_breakpoint_never_gets_the_step_of_another_training(catalog: Catalog, tmp_path: Path) -> None:
    """The process was killed before it had recorded the first one, and what a launch ended with is known once."""
    job = Job(without_counter(create_model()))
    ckpt_cb = saving(tmp_path / "ckpt", save_checkpoint_steps=100, exception_save=True)
    registrar = job.registrar(ckpt_cb)
    for steps in (3, 2):
        job.launch.progress.ending = None
        job.fail(RaiseAt(steps), ckpt_cb, registrar, epochs=2)
    job.launch.adopt()
    assert {Path(file.path).name: file.global_step for file in catalog.files("run")} == {"net_1-1_5_breakpoint.ckpt": 5}


@pytest.mark.parametrize("fails", [pytest.param(False, marks=pytest.mark.long), True])
def test_trainings_one_after_the_other_leave_neither_threads_nor_open_files(
    catalog: Catalog, threads: Callable[[], set[str]], tmp_path: Path, *, fails: bool
) -> None:
    """As a search for hyperparameters makes them, or a notebook; the launches may be kept."""
    launches = []
    catalog.database.disconnect()
    before = open_files(tmp_path)
    for trial in range(4):
        model, dataset = create_model(), create_dataset()
        launch = ckptstore.mindspore.join(f"trial-{trial}")
        launch.resume(model, dataset)
        ckpt_cb = saving(tmp_path / f"{trial}", exception_save=True)
        callbacks = [*([RaiseAt(5)] if fails else []), ckpt_cb, launch.registrar(ckpt_cb)]
        with pytest.raises(RuntimeError, match="on purpose") if fails else nullcontext():
            model.train(1, dataset, callbacks=callbacks)
        launches.append(launch)
        assert threads() == set()
        catalog.database.disconnect()
        assert open_files(tmp_path) == before
    for trial in range(4):
        assert {file.global_step for file in catalog.files(f"trial-{trial}")} == ({2, 4} if fails else {2, 4, 6})


def test_a_training_that_follows_takes_up_what_the_one_before_let_go_of(
    catalog: Catalog, threads: Callable[[], set[str]], tmp_path: Path
) -> None:
    job = Job()
    ckpt_cb = saving(tmp_path / "ckpt")
    registrar = job.registrar(ckpt_cb)
    noted = []

    class Note(Callback):
        """At the first step: what is saved at an exception is noted in the journal before it is begun."""

        def on_train_step_end(self, run_context: Any) -> None:
            path = str(tmp_path / "ckpt" / "net-9_9_breakpoint.ckpt")
            file = registrar._session.describe(path, kind=Kind.DYING_GASP, content=Content.FULL)
            if not noted or noted[-1][0] != run_context.original_args().cur_epoch_num:
                done = threading.Event()
                registrar._session.recorder.call(done.set)
                assert done.wait(60)
                noted.append((run_context.original_args().cur_epoch_num, job.launch.recorder.note(file)))

    for epoch in range(3):
        callbacks = [Note(), ckpt_cb, registrar]
        job.model.train(epoch + 1, create_dataset(), callbacks=callbacks, initial_epoch=epoch)
        assert threads() == set()
    assert [each[1] for each in noted] == [True, True, True]
    there = {file.global_step for file in catalog.files("run") if file.state is FileState.COMPLETE}
    assert there == set(range(2, 19, 2))
    assert journalled(tmp_path / "ckpt") == there
    (path,) = jsonl.journals_in(str(tmp_path / "ckpt"))
    told = [entry["steps_per_epoch"] for entry in jsonl.read(path).entries if entry["t"] == "launch"]
    assert len(told) == len(set(map(str, told)))  # it is not told again at each training: with a wide plan it is long


class BadMetric(Callback):
    def on_eval_step_end(self, run_context: object) -> None:
        raise ValueError("a metric fails")


@pytest.mark.of_files
@pytest.mark.parametrize("trained", ["to its end", "to an exception"])
def test_an_evaluation_that_fails_after_training_ends_no_training(
    catalog: Catalog, tmp_path: Path, trained: str
) -> None:
    """By then the network may hold anything: the best weights, averaged ones, pruned ones."""
    fails = trained == "to an exception"
    model = create_model(metrics={"accuracy"})
    launch = ckptstore.mindspore.join("run")
    launch.resume(model, create_dataset())
    ckpt_cb = saving(tmp_path / "ckpt", async_save=True)
    registrar = launch.registrar(ckpt_cb, save_on_exception=True, exception_interval=0)
    callbacks = [*([RaiseAt(5)] if fails else []), ckpt_cb, registrar]
    with pytest.raises(RuntimeError, match="on purpose") if fails else nullcontext():
        model.train(1, create_dataset(), callbacks=callbacks)
    assert registrar._session.recorder.flush(60)

    def known() -> tuple[list[tuple[str, int]], list[tuple[object, ...]]]:
        with catalog.database.read() as connection:
            endings = [tuple(row) for row in connection.exec_driver_sql("SELECT global_step, error FROM endings")]
        return [(file.path, file.global_step) for file in catalog.files("run")], endings

    before = known()
    assert before[1] == [(5, "RuntimeError") if fails else (6, None)]
    for parameter in model.train_network.trainable_params():
        parameter.set_data(ms.Tensor(np.zeros(parameter.shape, np.float32)))
    with pytest.raises(ValueError, match="a metric fails"):
        model.eval(create_dataset(), callbacks=[BadMetric(), registrar])
    assert registrar._session.recorder.flush(60)
    assert known() == before
    assert [each.name for each in (tmp_path / "ckpt").glob("*breakpoint*")] == (
        ["net-1_5_breakpoint.ckpt"] if fails else []
    )


@pytest.mark.of_files
def test_a_training_after_one_that_was_refused_goes_on_with_the_next_batch(catalog: Catalog, tmp_path: Path) -> None:
    """In a notebook, once the disk is in order. It began the epoch anew, as after a training that failed."""
    job = Job()
    job.fail(RaiseAt(3), job.launch.saver(tmp_path / "ckpt", every=2), epochs=2)
    again, taken = Job(), tmp_path / "taken"
    saver = again.launch.saver(taken, every=2)
    taken.touch()
    with pytest.raises(RefusedError, match=f"nothing can be saved to {taken}"):
        again.train(saver, epochs=2)
    taken.unlink()
    again.train(saver, epochs=2)
    assert again.launch.global_step == 12


@pytest.mark.of_files
def test_a_training_after_ctrl_c_in_the_first_hook_ends_as_each_one(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a notebook. MindSpore calls no hook for its end: each later training was taken for an evaluation inside it.

    It was refused if the script had loaded weights by then.
    """
    job = Job()
    ckpt_cb = saving(tmp_path / "ckpt")
    registrar = job.registrar(ckpt_cb)

    def interrupted(_: LoadGuard) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(LoadGuard, "begin", interrupted)
        job.train(ckpt_cb, registrar)
    job.model.train_network.network.backbone_network.weight.set_data(ms.ops.ones((4, 3)))  # as pretrained ones
    job.train(ckpt_cb, registrar)
    with catalog.database.read() as connection:
        assert connection.exec_driver_sql("SELECT global_step FROM endings").scalars().all() == [6]


def test_a_process_that_joins_again_gives_no_signs_of_the_launch_before(catalog: Catalog, tmp_path: Path) -> None:
    """As after a refused `resume`: once the later launch had ended, every other start was refused for the first."""
    ckptstore.mindspore.join("run")
    job = Job()
    job.train(job.launch.saver(tmp_path, every=3))
    with catalog.database.read() as connection:
        assert leases.last_sign(connection, reads.run_id(connection, "run") or 0) is None
