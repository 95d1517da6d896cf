"""Graceful exits: registered with their true step, kept apart, never loaded over a restored state (mindspore.md §5)."""

import json
import os
import re
from pathlib import Path
from typing import Any

import mindspore as ms
import pytest
from mindspore.train import Callback
from mindspore.train.callback import OnRequestExit

import ckptstore.mindspore
from ckptstore.api import Catalog
from ckptstore.core.model import FileState, Kind
from ckptstore.disk import exit_flags
from ckptstore.errors import RefusedError
from ckptstore.mindspore import registrar
from ckptstore.mindspore.schedule import LEFT
from ckptstore.resume import exits as exit_ops
from ckptstore.training import exit_request
from tests import ckpt_bytes
from tests.mindspore.job import FLAG
from tests.mindspore.running import Run
from tests.mindspore.trainings import (
    DoAt,
    ExitAt,
    FirstCounter,
    Job,
    SetFlagAt,
    create_dataset,
    create_model,
    leaving,
    saving,
    trained,
)

SCHEDULERS = Path(__file__).parents[2] / "docs" / "how-to" / "schedulers.md"


@pytest.fixture(scope="session")
def undisturbed_with_exits(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The final state of the run that could exit and never does: its train network has two parameters more."""
    run = Run(tmp_path_factory.mktemp("undisturbed"))
    outcome = run.launch(exits=True)
    assert outcome.code == 0, outcome.output
    return run.final()


@pytest.mark.parametrize(
    ("how", "order"),
    [
        ("exit-flag", "registrar last"),
        pytest.param("exit-signal", "registrar first, finds them", marks=pytest.mark.long),
        ("exit-asked", "registrar first, finds them"),
    ],
)
def test_a_graceful_exit_and_a_restart(run: Run, undisturbed_with_exits: bytes, how: str, order: str) -> None:
    """Asked by MindSpore's own flag, by SIGTERM, or by `ckptstore exit`."""
    left = run.launch(exits=True, fault=f"{how} 17", order=order)
    code, step = (LEFT, 17) if run.saves == "launch.saver" else (0, 18)  # MindSpore's leaves after one step more
    assert left.code == code, left.output
    assert not (run.out / "final.ckpt").exists()
    assert run.files()[0][:3] == ("graceful_exit", step, "complete")
    (file,) = run.catalog.files("run", kind="graceful_exit")[:1]
    assert (file.epoch, file.step_in_epoch, file.optimizer_step, file.rank) == (2, step - 10, step, 0)
    again = run.again(step=step, exits=True, order=order)
    assert run.final() == undisturbed_with_exits
    if how == "exit-flag":
        flag = run.out / FLAG
        assert json.loads(flag.read_text()) == {"GracefulExit": 0, "reason": "maintenance"}
        assert f"{flag} still asks for an exit (GracefulExit: 1): put back to 0" in again.output


def test_a_second_exit_leaves_the_first(tmp_path: Path, undisturbed_with_exits: bytes) -> None:
    run = Run(tmp_path)
    run.launch(exits=True, fault="exit-flag 6")
    assert {path.name for path in (tmp_path / "exits" / "0" / "rank_0").iterdir()} >= {
        "net_train-step_7.ckpt",
        "net_train-step_7.mindir",
    }
    second = run.launch(exits=True, fault="exit-signal 10")
    assert second.start["global_step"] == 7
    exits = [(step, state, name) for kind, step, state, name in run.files() if kind == "graceful_exit"]
    kept = [item for item in exits if item[1] == "complete"]
    assert kept == [(18, "complete", "net_train-step_18.ckpt"), (7, "complete", "net_train-step_7.ckpt")]
    for step in (7, 18):
        plan = run.catalog.resolve("run", step=step).plan
        assert int(ms.load_checkpoint(plan.ranks[0].source.path)["global_step"].asnumpy()[0]) == step
    run.again(step=18, exits=True)
    assert run.final() == undisturbed_with_exits


@pytest.mark.parametrize("cell", ["inherits", pytest.param("own", marks=pytest.mark.long)])
def test_a_train_cell_of_ones_own(tmp_path: Path, cell: str) -> None:
    """The two ways of seed 000 to make a TrainOneStepCell exit."""
    calm = Run(tmp_path / "calm")
    assert calm.launch(exits=True, cell=cell).code == 0
    run = Run(tmp_path / "run")
    left = run.launch(exits=True, cell=cell, fault="exit-flag 12")
    assert left.code == 0, left.output
    assert run.files()[0][:3] == ("graceful_exit", 13, "complete")
    assert run.launch(exits=True, cell=cell).start["global_step"] == 13
    assert run.final() == calm.final()


def train(launch: Any, directory: Path, *more: Callback, epochs: int = 2) -> OnRequestExit:
    job, exit_cb = Job(launch=launch), leaving(directory)
    ckpt_cb = saving(directory / "ckpt", save_checkpoint_steps=5)
    job.train(exit_cb, *more, ckpt_cb, job.registrar(ckpt_cb, exit_cb), epochs=epochs)
    return exit_cb


def test_the_script_of_the_docs_ends_with_codes_that_a_scheduler_can_act_on(
    catalog: Catalog, tmp_path: Path, exits: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    (script,) = re.findall(r"```python\n(.*?)```", SCHEDULERS.read_text(), re.DOTALL)
    for code in (75, 3):
        ckpt_cb, asked = saving(tmp_path / "ckpt", save_checkpoint_steps=2), ExitAt(3)
        monkeypatch.setattr(ckpt_cb, "step_begin", asked.on_train_step_end)
        names = {"model": create_model(), "dataset": create_dataset(), "ckpt_cb": ckpt_cb}
        with pytest.raises(SystemExit) as end:
            exec(script, {**names, "exit_cb": leaving(tmp_path)})  # noqa: S102
        assert end.value.code == code
        for file in catalog.files("digits"):
            Path(file.path).unlink(missing_ok=True)  # then no saved state can be restored


def test_a_training_that_stopped_early_is_not_started_again_by_the_script_of_the_docs(
    catalog: Catalog, tmp_path: Path, exits: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    (script,) = re.findall(r"```python\n(.*?)```", SCHEDULERS.read_text(), re.DOTALL)
    ckpt_cb = saving(tmp_path / "ckpt", save_checkpoint_steps=2)
    monkeypatch.setattr(ckpt_cb, "step_begin", lambda run_context: run_context.request_stop())
    names = {"model": create_model(), "dataset": create_dataset(), "ckpt_cb": ckpt_cb}
    exec(script, {**names, "exit_cb": leaving(tmp_path)})  # noqa: S102
    assert catalog.resolve("digits").plan.global_step < 10 * create_dataset().get_dataset_size()


def test_plain_mindspore_loads_an_older_exit_over_the_restored_weights_and_ckptstore_does_not(
    catalog: Catalog, tmp_path: Path, exits: None
) -> None:
    train(ckptstore.mindspore.join("run"), tmp_path, ExitAt(3))  # exits after step 4
    train(ckptstore.mindspore.join("run"), tmp_path, ExitAt(3))  # exits after step 8
    older, newer = (catalog.resolve("run", step=step).plan for step in (4, 8))
    fixed = tmp_path / "rank_0" / "net_train.ckpt"
    fixed.write_bytes(Path(older.ranks[0].source.path).read_bytes())  # as it would be, had nobody moved it

    model, seen = create_model(), FirstCounter()
    state = ms.load_checkpoint(newer.ranks[0].source.path)
    for flag in ("graceful_exit", "graceful_init"):
        del state[flag]
    ms.load_param_into_net(model.train_network, state)
    dataset = create_dataset()
    dataset.set_init_step(8)
    exit_cb = OnRequestExit(file_name="net", directory=str(tmp_path))
    model.train(2, dataset, callbacks=[exit_cb, seen], initial_epoch=1)
    assert seen.updates == 4  # plain MindSpore: four updates lost, and the dataset is at step 8

    seen = FirstCounter()
    train(ckptstore.mindspore.join("run"), tmp_path, seen)
    assert seen.updates == 8


def test_an_evaluation_inside_fit_loads_no_older_exit(catalog: Catalog, tmp_path: Path, exits: None) -> None:
    model = create_model(metrics={"accuracy"})
    exit_cb = OnRequestExit(file_name="net", directory=str(tmp_path), save_mindir=False)
    ms.save_checkpoint(model.train_network, f"{exit_cb.train_name}.ckpt")
    job = Job(model)
    model.fit(2, job.dataset, create_dataset(), callbacks=[exit_cb, job.registrar()])
    counter = next(item for item in model.train_network.get_parameters() if item.name == "global_step")
    assert int(counter.asnumpy()[0]) == 12


def test_a_script_that_restores_by_the_exits_file_keeps_it(catalog: Catalog, tmp_path: Path, exits: None) -> None:
    """Without `resume` MindSpore's own way must go on: the file stays under its name, and is loaded from there."""
    for updates, step in ((0, 4), (4, 8)):
        model, dataset, seen = create_model(), create_dataset(), FirstCounter()
        launch = ckptstore.mindspore.join("run")
        exit_cb = OnRequestExit(file_name="net", directory=str(tmp_path), save_mindir=False)
        model.train(1, dataset, callbacks=[exit_cb, seen, ExitAt(3), launch.registrar()])
        assert seen.updates == updates
        assert (tmp_path / "rank_0" / "net_train.ckpt").exists()
        counter = next(item for item in model.train_network.get_parameters() if item.name == "global_step")
        assert int(counter.asnumpy()[0]) == step


def test_a_flag_that_is_left_alone_ends_the_job_again(catalog: Catalog, tmp_path: Path, exits: None) -> None:
    flag = tmp_path / "flag.json"
    flag.write_text('{"GracefulExit": 1}')
    job = Job()
    exit_cb = OnRequestExit(file_name="net", directory=str(tmp_path), save_mindir=False, config_file=str(flag))
    registrar = job.registrar(exit_cb, reset_exit_flag=False)
    job.train(exit_cb, registrar)
    assert job.launch.global_step == 1
    assert json.loads(flag.read_text()) == {"GracefulExit": 1}


@pytest.mark.parametrize("writable", [True, False])
def test_a_stale_flag_is_ignored_until_it_is_set_again(
    catalog: Catalog, tmp_path: Path, exits: None, monkeypatch: pytest.MonkeyPatch, *, writable: bool
) -> None:
    """By rank 0, which puts it back; and by a rank that cannot, or reads it before rank 0 has."""

    def read_only(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    if not writable:
        monkeypatch.setattr(exit_request, "_put_back", read_only)
    flag = tmp_path / "flag.json"
    flag.write_text('{"GracefulExit": 1}')
    exit_cb = train(ckptstore.mindspore.join("run"), tmp_path, SetFlagAt(flag, 5))
    assert exit_cb.stop_train
    # A rank that ignored the file until now looks at it again from the step after the next.
    expected = 6 if writable else 7
    assert [save.tally.global_step for save in catalog.saves("run", kind="graceful_exit")] == [expected]


def test_without_the_environment_variable_it_is_said_that_sigterm_is_swallowed(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("MS_ENABLE_GRACEFUL_EXIT", raising=False)
    train(ckptstore.mindspore.join("run"), tmp_path, ExitAt(3))
    assert "MS_ENABLE_GRACEFUL_EXIT=1 was not set when it was made: SIGTERM will be swallowed" in caplog.text
    # MindSpore saves when training has come to its end; the catalog knows it for what it is.
    saves = [(save.tally.kind.value, save.tally.global_step) for save in catalog.saves("run")]
    assert ("graceful_exit", 12) in saves


def test_a_train_cell_that_cannot_exit_is_named(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exits: None, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("MS_ENABLE_GRACEFUL_EXIT")
    model, dataset = create_model(), create_dataset()
    monkeypatch.setenv("MS_ENABLE_GRACEFUL_EXIT", "1")
    exit_cb = OnRequestExit(file_name="net", directory=str(tmp_path), save_mindir=False)
    launch = ckptstore.mindspore.join("run")
    launch.resume(model, dataset)
    model.train(1, dataset, callbacks=[exit_cb, launch.registrar(exit_cb)])
    assert "the train network has no parameter graceful_exit" in caplog.text


def test_a_job_killed_after_the_exits_save_leaves_nothing_to_overwrite(
    catalog: Catalog, tmp_path: Path, exits: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is there under the fixed name only, and in the catalog as in progress: the next start keeps it."""
    with monkeypatch.context() as patch:
        patch.setattr(ckptstore.mindspore.Registrar, "__exit__", lambda *_: None)
        train(ckptstore.mindspore.join("run"), tmp_path, ExitAt(3))
    fixed = tmp_path / "rank_0" / "net_train.ckpt"
    assert fixed.exists()
    catalog.resolve("run")  # looking changes no file
    assert fixed.exists()
    launch = ckptstore.mindspore.join("run")
    start = launch.resume(create_model(), create_dataset())
    assert start.global_step == 4
    assert not fixed.exists()
    states = {Path(file.path).name: file.state for file in catalog.files("run", kind="graceful_exit")}
    assert states == {"net_train-step_4.ckpt": FileState.COMPLETE, "net_train.ckpt": FileState.MOVED}


def test_an_exit_whose_record_was_lost_is_kept_all_the_same(
    catalog: Catalog, tmp_path: Path, exits: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after MindSpore's save, before anything of it was in the catalog."""

    def killed(one: registrar.Registrar, *_: object) -> None:
        assert one._session.recorder.flush(60)  # what was saved before is in the catalog

    with monkeypatch.context() as patch:
        patch.setattr(registrar.Registrar, "__exit__", killed)
        patch.setattr(registrar.Registrar, "_hand_over", lambda *_: None)
        trained(tmp_path, leaving(tmp_path), SetFlagAt(tmp_path / "flag.json", 3))
    assert trained(tmp_path, leaving(tmp_path), ExitAt(1), epochs=2).global_step == 4
    names = {path.name for path in (tmp_path / "rank_0").glob("*.ckpt")}
    assert names == {"net_train-step_4.ckpt", "net_train-step_6.ckpt"}
    assert catalog.resolve("run", step=4).plan is not None


@pytest.fixture
def armed(monkeypatch: pytest.MonkeyPatch) -> None:
    """MindSpore's own class, whatever another test of this process did to it."""
    for name in ("on_train_begin", "on_eval_begin"):
        hook = getattr(OnRequestExit, name)
        monkeypatch.setattr(OnRequestExit, name, getattr(hook, "__wrapped__", hook))


@pytest.mark.usefixtures("exits", "armed")
@pytest.mark.parametrize("given", ["the ModelCheckpoint only", "nothing"])
def test_no_older_exit_is_loaded_however_the_registrar_is_made(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture, given: str
) -> None:
    create_model().train(1, create_dataset(), callbacks=[ExitAt(2), leaving(tmp_path)])
    assert (tmp_path / "rank_0" / "net_train.ckpt").exists()
    trained(tmp_path)
    model, dataset, seen = create_model(), create_dataset(), FirstCounter()
    joined = ckptstore.mindspore.join("run")
    start = joined.resume(model, dataset)
    ckpt_cb = saving(tmp_path / "ckpt")
    made = joined.registrar(ckpt_cb) if given == "the ModelCheckpoint only" else joined.registrar()
    callbacks = [leaving(tmp_path), seen, ckpt_cb, made]
    model.train(2, dataset, callbacks=callbacks, initial_epoch=start.initial_epoch)
    assert (start.global_step, seen.updates) == (6, 6)
    if given == "the ModelCheckpoint only":
        assert "OnRequestExit is in the callbacks but was not given to the registrar" in caplog.text


def test_an_exit_from_before_ckptstore_is_kept(catalog: Catalog, tmp_path: Path, exits: None, armed: None) -> None:
    """Plain MindSpore would have loaded it; here it is neither loaded nor destroyed by the next exit."""
    create_model().train(1, create_dataset(), callbacks=[SetFlagAt(tmp_path / "flag.json", 3), leaving(tmp_path)])
    before = (tmp_path / "rank_0" / "net_train.ckpt").read_bytes()
    (tmp_path / "flag.json").unlink()
    trained(tmp_path, leaving(tmp_path), ExitAt(1))
    names = {path.name for path in (tmp_path / "rank_0").glob("*.ckpt")}
    assert names == {"net_train-step_4.ckpt", "net_train-step_2.ckpt"}
    assert (tmp_path / "rank_0" / "net_train-step_4.ckpt").read_bytes() == before


def test_a_file_that_is_not_the_recorded_one_keeps_its_name(catalog: Catalog, tmp_path: Path) -> None:
    """Another state of the same size was written over it: it must not get the step of the one before."""
    joined = catalog.join("run", launch_id="L1")
    home = tmp_path / "rank_0"
    home.mkdir()
    fixed = ckpt_bytes.write(home / "net_train.ckpt", 6)
    joined.add_source(str(home), kind=Kind.GRACEFUL_EXIT, prefix="net", breakpoint_prefix="net", names_before=())
    joined.register(fixed, kind="graceful_exit", global_step=6, optimizer_step=6)
    fixed.unlink()
    ckpt_bytes.write(fixed, 12)
    os.utime(fixed, ns=(1, 1))
    exit_ops.set_aside(catalog.database, 1)
    assert [path.name for path in home.glob("*.ckpt")] == ["net_train.ckpt"]


def test_a_graph_that_cannot_be_renamed_does_not_keep_the_file(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    joined = catalog.join("run", launch_id="L1")
    path = ckpt_bytes.write(tmp_path / "net_train.ckpt", 6)
    for name in ("net_train.mindir", "net_train-step_6.mindir"):
        (tmp_path / name).write_text(name)
    whole = joined.register(path, kind="graceful_exit", global_step=6)
    exit_ops.keep(joined.recorder, whole, exit_ops.kept_path(str(path), 6))
    assert (tmp_path / "net_train-step_6.ckpt").exists()
    assert (tmp_path / "net_train-step_6.mindir").read_text() == "net_train-step_6.mindir"
    assert "net_train.mindir could not be renamed" in caplog.text
    assert {file.state for file in catalog.files("run")} == {FileState.COMPLETE, FileState.MOVED}


@pytest.mark.parametrize("content", ["{", "[1]"])
def test_a_flag_that_is_being_written_is_heard_later(
    catalog: Catalog, tmp_path: Path, exits: None, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    """It asks for an exit when it is noticed, and is half written when it is read to be put back."""
    flag = tmp_path / "flag.json"
    flag.write_text('{"GracefulExit": 1}')
    put_back = exit_request._put_back

    def half_written(path: Path, key: str) -> None:
        path.write_text(content)
        put_back(path, key)

    monkeypatch.setattr(exit_request, "_put_back", half_written)
    exit_cb = leaving(tmp_path)
    trained(tmp_path, SetFlagAt(flag, 3), exit_cb)
    assert exit_cb.stop_train
    assert json.loads(flag.read_text()) == {"GracefulExit": 1}
    assert not list(tmp_path.glob(".flag.json.*"))


def test_a_flag_that_is_set_between_two_trainings_is_heeded(catalog: Catalog, tmp_path: Path, exits: None) -> None:
    """As by an operator, while the script evaluates: it counted as one of before the launch, and was put back to 0."""
    job, flag = Job(), tmp_path / "flag.json"
    flag.write_text('{"GracefulExit": 0}')
    callbacks = [saving(tmp_path / "ckpt"), leaving(tmp_path), job.registrar()]
    job.model.train(1, job.dataset, callbacks=callbacks)
    flag.write_text('{"GracefulExit": 1}')
    job.model.train(3, job.dataset, callbacks=callbacks, initial_epoch=1)
    assert job.launch.global_step < 18
    assert [save.tally.global_step for save in catalog.saves("run", kind="graceful_exit")] == [job.launch.global_step]


def test_a_training_after_an_exit_has_none_of_its_own(
    catalog: Catalog, tmp_path: Path, exits: None, caplog: pytest.LogCaptureFixture
) -> None:
    """OnRequestExit says for ever that it stopped a training: each later one had an exit that was never whole.

    It stops no later one, and swallows SIGTERM.
    """
    job = Job()
    callbacks = [SetFlagAt(tmp_path / "flag.json", 2), saving(tmp_path / "ckpt"), leaving(tmp_path), job.registrar()]
    job.train(*callbacks)
    job.model.train(2, job.dataset, callbacks=callbacks, initial_epoch=1)
    files = catalog.files("run", kind="graceful_exit")
    assert [(file.global_step, file.state) for file in files] == [(3, FileState.COMPLETE), (3, FileState.MOVED)]
    assert caplog.text.count("has stopped a training before, and stops no other one") == 1


def test_a_flag_is_heeded_after_a_training_that_was_refused(catalog: Catalog, tmp_path: Path, exits: None) -> None:
    """The callback had lost the path of its flag, since the refused training ended without having begun to save."""
    trained(tmp_path)
    launch, model, dataset, flag = ckptstore.mindspore.join("run"), create_model(), create_dataset(), "flag.json"
    callbacks = [SetFlagAt(tmp_path / flag, 2), saving(tmp_path / "ckpt"), leaving(tmp_path), launch.registrar()]
    with pytest.raises(RefusedError, match="training would begin at step 0"):
        model.train(1, dataset, callbacks=callbacks)
    launch.begin_fresh()
    model.train(1, dataset, callbacks=callbacks)
    assert launch.global_step == 3


def test_a_flag_is_heeded_after_a_request_that_was_taken_back(
    catalog: Catalog, tmp_path: Path, exits: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ckptstore exit` asked, and took it back before OnRequestExit had looked: it looked nowhere else any more."""
    monkeypatch.setattr(exit_request, "_LOOK_SECONDS", 0.0)
    job = Job()
    put_and_take_back = (
        DoAt(1, lambda: exit_flags.put(str(tmp_path / "ckpt"), job.launch.key, "run", "")),
        DoAt(2, lambda: exit_flags.take_back(str(tmp_path / "ckpt"), job.launch.key)),
    )
    callbacks = [*put_and_take_back, SetFlagAt(tmp_path / "flag.json", 3), saving(tmp_path / "ckpt"), leaving(tmp_path)]
    job.train(*callbacks, job.registrar())
    assert job.launch.global_step == 4


def test_the_file_of_an_exit_is_copied_and_gets_metrics_as_each_file(
    catalog: Catalog, tmp_path: Path, exits: None
) -> None:
    job = Job()
    registrar = job.registrar(tiers={"archive": str(tmp_path / "archive")})
    job.train(SetFlagAt(tmp_path / "flag.json", 2), leaving(tmp_path), registrar)
    assert [path.name[33:] for path in (tmp_path / "archive").rglob("*.ckpt")] == ["net_train-step_3.ckpt"]
    job.launch.record(step=3, accuracy=0.5)
    (saved,) = catalog.saves("run")
    assert saved.metrics["accuracy"] == 0.5


def test_a_flag_from_before_the_launch_is_put_back_by_the_second_of_two_registrars(
    catalog: Catalog, tmp_path: Path, exits: None
) -> None:
    """It took the training for a later one of the launch, since the first registrar had begun it."""
    job, flag = Job(), tmp_path / "flag.json"
    flag.write_text('{"GracefulExit": 1}')
    ckpt_cb, exit_cb = saving(tmp_path / "ckpt"), leaving(tmp_path)
    job.train(ckpt_cb, job.registrar(ckpt_cb), exit_cb, job.registrar(exit_cb))
    assert json.loads(flag.read_text()) == {"GracefulExit": 0}
    assert job.launch.global_step == 6


def test_a_flag_that_is_written_again_is_heeded_beside_two_registrars(
    catalog: Catalog, tmp_path: Path, exits: None
) -> None:
    """The second one, which had begun while the first one ignored the flag, took its path from OnRequestExit."""
    job, flag = Job(), tmp_path / "flag.json"
    flag.write_text('{"GracefulExit": 1}')
    job.train(SetFlagAt(flag, 3), leaving(tmp_path), saving(tmp_path / "ckpt"), job.registrar(), job.registrar())
    assert job.launch.global_step == 4


def test_an_older_callback_without_a_flag_takes_no_other_saves_along(catalog: Catalog, tmp_path: Path) -> None:
    """Nothing of the training was registered; later, no step was seeded or counted as begun."""
    exit_cb = leaving(tmp_path)
    del exit_cb.remote_config_file
    job = Job()
    ckpt_cb, registrar_cb = saving(tmp_path / "ckpt"), job.registrar()
    job.train(exit_cb, ckpt_cb, registrar_cb)
    assert registrar_cb.failed == {"watching OnRequestExit"}
    assert [file.global_step for file in catalog.files("run")] == [6, 4, 2]
