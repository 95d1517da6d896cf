"""Where steps are easily miscounted: several registrars, sinks, evaluations, names used twice, files that vanish."""

import errno
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore as ms
import pytest
from mindspore.train import CheckpointConfig, ModelCheckpoint
from mindspore.train.callback import OnRequestExit
from mindspore.train.callback._callback import CallbackManager, InternalCallbackParam

import ckptstore.mindspore
from ckptstore.api import Catalog
from ckptstore.core.model import Content, FileState, Kind
from ckptstore.disk import name_claims
from ckptstore.errors import CkptstoreError, UsageError
from ckptstore.mindspore.session import Saved
from ckptstore.resume.register import describe
from ckptstore.training.recorder_thread import RecorderThread
from tests import ckpt_bytes
from tests.mindspore.cells import accumulating, overflowing, varied_dataset
from tests.mindspore.trainings import (
    DoAt,
    Job,
    RaiseAt,
    complaints,
    create_dataset,
    create_model,
    gasps,
    leaving,
    saving,
    two_ranks,
)


def steps_and_counters(catalog: Catalog) -> set[tuple[int, int | None]]:
    """The steps of the files that are there, with the optimizer's counter that each file really holds."""
    found = set()
    for file in catalog.files("run"):
        if file.state is FileState.COMPLETE:
            counter = ms.load_checkpoint(file.path)["global_step"].asnumpy()[0]
            found.add((file.global_step, int(counter)))
    return found


def test_what_saves_took_is_seen_from_the_steps_around_them(catalog: Catalog, tmp_path: Path) -> None:
    """After the first step, which compiles, there must be three without a save."""
    job = Job()
    ckpt_cb = saving(tmp_path / "ckpt", save_checkpoint_steps=5)
    job.train(ckpt_cb, job.registrar(ckpt_cb), epochs=2)
    found = {file.global_step: file.timing for file in catalog.files("run")}
    assert found[5] is not None
    assert (found[5].written, found[5].step is not None) == (None, True)
    assert found[10] is not None


def test_resuming_again_in_one_process_needs_a_new_launch(catalog: Catalog, tmp_path: Path) -> None:
    job = Job()
    ckpt_cb = saving(tmp_path / "ckpt", save_checkpoint_steps=3, exception_save=True)
    job.fail(RaiseAt(4), ckpt_cb, job.registrar(ckpt_cb))
    with pytest.raises(UsageError, match="training has begun in this launch; join again"):
        job.launch.resume(job.model, create_dataset())
    assert ckptstore.mindspore.join("run").resume(create_model(), create_dataset()).global_step == 4


class Helper:
    """MindSpore's dataset helper as it is where data sinks to the device, which this machine has not."""

    def sink_size(self) -> int:
        return 6

    def __iter__(self) -> Any:
        yield ()

    def continue_send(self) -> None:
        """Nothing to send."""

    stop_send = release = continue_send


def test_a_sink_counts_its_steps_from_the_first_epoch_on(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, set_mode: Callable[[int], None]
) -> None:
    """MindSpore's own sink process; only what sinks on a device is replaced: one call that trains a whole epoch."""
    set_mode(ms.GRAPH_MODE)
    job = Job()

    def sunk(*_: object) -> object:
        return [job.model.train_network(*batch) for batch in job.dataset.create_tuple_iterator(num_epochs=1)][-1]

    monkeypatch.setattr(job.model, "_exec_preprocess", lambda **_: (Helper(), job.model.train_network))
    monkeypatch.setattr(job.model, "_check_network_mode", lambda *_: sunk)
    monkeypatch.setattr(job.model, "_store_training_step_info", lambda _: None)
    ckpt_cb = saving(tmp_path / "ckpt", save_checkpoint_steps=6)
    callbacks = [ckpt_cb, job.registrar(ckpt_cb)]
    params = InternalCallbackParam()
    params.update(cur_step_num=0, train_network=job.model.train_network, batch_num=6, mode="train")
    params.update(train_dataset=job.dataset, list_callback=callbacks, epoch_num=3, dataset_sink_mode=True)
    with CallbackManager(callbacks) as manager:
        job.model._train_dataset_sink_process(3, job.dataset, manager, params, -1, 0, (None, 1, False))
    assert steps_and_counters(catalog) == {(6, 6), (12, 12), (18, 18)}


@pytest.mark.parametrize("how", [False, "thread"])
def test_one_name_for_every_save_never_gets_the_step_of_another(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, how: bool | str
) -> None:
    """The recorder comes late: by then the file of step 2 has become that of step 4."""
    release = threading.Event()
    record = RecorderThread._record
    monkeypatch.setattr(RecorderThread, "_record", lambda *args, **more: (release.wait(60), record(*args, **more)))
    job = Job()
    config = CheckpointConfig(save_checkpoint_steps=2, async_save=how)
    ckpt_cb = ModelCheckpoint(lambda _: "latest", str(tmp_path / "ckpt"), config)
    registrar = job.registrar(ckpt_cb)
    end = registrar.on_train_end
    monkeypatch.setattr(registrar, "on_train_end", lambda context: (end(context), release.set()))
    job.train(ckpt_cb, registrar)
    assert steps_and_counters(catalog) == {(6, 6)}


def test_an_evaluation_inside_fit_ends_nothing(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushes: list[float] = []
    flush = RecorderThread.flush
    monkeypatch.setattr(RecorderThread, "flush", lambda self, seconds=10.0: (flushes.append(seconds), flush(self))[1])
    job = Job(create_model(metrics={"accuracy"}))
    model = job.model
    ckpt_cb = saving(tmp_path / "ckpt", save_checkpoint_steps=6)
    model.fit(3, job.dataset, create_dataset(), callbacks=[ckpt_cb, job.registrar(ckpt_cb)])
    assert len(flushes) == 1
    assert steps_and_counters(catalog) == {(6, 6), (12, 12), (18, 18)}


def test_a_callable_directory_is_known_once_it_was_used(catalog: Catalog, tmp_path: Path) -> None:
    job = Job()
    config = CheckpointConfig(save_checkpoint_steps=2, exception_save=True)
    ckpt_cb = ModelCheckpoint("net", lambda _: str(tmp_path / "ckpt"), config)
    job.fail(RaiseAt(5), ckpt_cb, job.registrar(ckpt_cb))
    assert ckptstore.mindspore.join("run").resume(create_model(), create_dataset()).global_step == 5


def test_a_breakpoint_in_a_callable_directory_that_has_no_save_is_found(catalog: Catalog, tmp_path: Path) -> None:
    job = Job()
    config = CheckpointConfig(save_checkpoint_steps=100, exception_save=True)
    ckpt_cb = ModelCheckpoint("net", lambda params: str(tmp_path / f"step_{params.cur_step_num}"), config)
    job.fail(ckpt_cb, RaiseAt(5), job.registrar(ckpt_cb))
    job.launch.adopt()
    assert gasps(catalog) == [(5, "net-1_5_breakpoint.ckpt")]
    assert Job().start.global_step == 5


def test_a_callable_directory_may_be_relative_or_a_link(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """MindSpore resolves a directory that is given as text, and leaves what a function returns as it is."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    job = Job()
    ckpt_cb = ModelCheckpoint("net", lambda _: "link/ckpt", CheckpointConfig(save_checkpoint_steps=6))
    job.train(ckpt_cb, job.registrar(ckpt_cb))
    assert complaints(caplog) == []
    assert [file.path for file in catalog.files("run")] == [str(tmp_path / "real/ckpt/net-1_6.ckpt")]
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert ckptstore.mindspore.join("run").resume(create_model(), create_dataset()).global_step == 6


def test_an_optimizer_in_shares_makes_no_replicas(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    from ckptstore.mindspore import communication

    modes: dict[str, object] = {"parallel_mode": "data_parallel", "enable_parallel_optimizer": False}
    monkeypatch.setattr(ms, "get_auto_parallel_context", modes.get)
    monkeypatch.setattr(communication, "rank_and_world_size", lambda: (0, 2))
    assert communication.layout() == "data_parallel"
    modes["enable_parallel_optimizer"] = True
    assert communication.layout() == "stand_alone"


def test_what_fails_on_rank_0_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    from ckptstore.mindspore import communication

    told: list[str] = []
    monkeypatch.setattr(communication, "_from_rank_0", lambda message: (told.append(message), message)[1])

    def fail() -> str:
        raise ZeroDivisionError("on purpose")

    with pytest.raises(ZeroDivisionError, match="on purpose"):
        communication.decided_by_rank_0(fail)
    monkeypatch.setattr(communication, "rank_and_world_size", lambda: (1, 2))
    monkeypatch.setattr(communication, "_from_rank_0", lambda _: told[0])
    with pytest.raises(CkptstoreError, match="rank 0 could not go on: on purpose"):
        communication.decided_by_rank_0(fail)


def test_a_take_over_of_rank_0_alone_leaves_nobody_waiting(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with CKPTSTORE_TAKE_OVER=1 on one node: the ranks took one message for another."""
    from ckptstore.mindspore import communication

    told: list[str] = []

    def pass_on(message: str) -> str:
        if communication.rank_and_world_size()[0] == 0:
            told.append(message)
            return message
        return told.pop(0)

    monkeypatch.setattr(communication, "_from_rank_0", pass_on)
    monkeypatch.setattr(communication, "rank_and_world_size", lambda: (0, 2))
    first = ckptstore.mindspore.join("run", take_over=True)
    monkeypatch.setattr(communication, "rank_and_world_size", lambda: (1, 2))
    other = ckptstore.mindspore.join("run")
    assert (other.id, other.rank, told) == (first.id, 1, [])


@pytest.mark.parametrize("how", ["two of them", "one of them twice"])
def test_no_step_is_counted_twice(catalog: Catalog, tmp_path: Path, exits: None, how: str) -> None:
    job = Job()
    ckpt_cb, exit_cb = saving(tmp_path / "ckpt"), leaving(tmp_path)
    if how == "two of them":
        callbacks = [ckpt_cb, job.registrar(ckpt_cb), exit_cb, job.registrar(exit_cb)]
    else:
        one = job.registrar(ckpt_cb)
        callbacks = [one, ckpt_cb, one]
    job.train(*callbacks)
    assert [(file.global_step, file.optimizer_step) for file in catalog.files("run")] == [(6, 6), (4, 4), (2, 2)]


def test_two_registrars_raise_no_false_alarm(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The run goes on in mid-epoch, after step 4, and each registrar knows what the other one registers."""
    job = Job()
    first = saving(tmp_path / "ckpt")
    job.fail(RaiseAt(5), first, job.registrar(first))
    job = Job()
    first, second = saving(tmp_path / "ckpt"), saving(tmp_path / "other")
    job.train(first, job.registrar(first), second, job.registrar(second), epochs=2)
    assert job.start.global_step == 4
    assert [each for each in complaints(caplog) if "epoch ended" in each or "not registered" in each] == []


def test_what_a_later_registrar_finds_is_not_said_to_be_left_out(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job, first, second = Job(), saving(tmp_path / "ckpt"), saving(tmp_path / "other")
    job.train(first, second, job.registrar(first), job.registrar(), epochs=1)
    assert "not registered" not in caplog.text
    assert {Path(file.path).parent.name for file in catalog.files("run")} == {"ckpt", "other"}


@pytest.mark.parametrize("create", [overflowing, accumulating])
def test_a_step_that_may_or_may_not_be_done_is_not_guessed(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, create: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The interrupt comes between the update and MindSpore's note of it; updates were left out before."""
    job = Job(create(), varied_dataset())
    calls: list[object] = []
    cell = type(job.model.train_network)
    call = cell.__call__

    def interrupted(self: Any, *inputs: Any) -> Any:
        outputs = call(self, *inputs)
        calls.append(outputs)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return outputs

    monkeypatch.setattr(cell, "__call__", interrupted)
    ckpt_cb = saving(tmp_path / "ckpt", save_checkpoint_steps=3, exception_save=True)
    with pytest.raises(KeyboardInterrupt):
        job.train(ckpt_cb, job.registrar(ckpt_cb, save_on_exception=True))
    job.launch.adopt()
    steps = {file.global_step for file in catalog.files("run")}
    if create is overflowing:  # since the save of step 3 no update was left out: two updates are two steps
        assert steps == {3, 5}
    else:
        assert steps == {3}
        assert "how far training had come is not certain" in caplog.text


def test_a_save_that_cannot_be_read_yet_is_said_once(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    joined = ckptstore.mindspore.join("run")
    recorder = RecorderThread(joined)
    path = tmp_path / "net-1_1.ckpt"
    recorder.submit(describe(joined.facts, rank=0, path=path, kind="periodic", global_step=1), asynchronous=True)
    recorder.call(path.mkdir)  # stands for whatever keeps it from being read
    assert not recorder.flush(0.5)
    assert caplog.text.count("cannot be read yet") == 1
    path.rmdir()
    ckpt_bytes.write(path, 1)
    assert recorder.flush(60)
    assert catalog.files("run")[0].state is FileState.COMPLETE


def test_what_cannot_be_registered_stops_neither_training_nor_the_others(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A directory whose name is not UTF-8; and metrics that the user named by numbers."""
    job = Job()
    broken, whole = saving(tmp_path / "broken"), saving(tmp_path / "whole")
    watched = job.registrar(broken, whole, metrics=lambda _: {1: 1.0})
    for watch in watched._periodic():
        if watch.callback is broken:
            watch.poll = lambda: Saved("/n\udce9.ckpt", Kind.PERIODIC, Content.FULL)
    job.train(broken, whole, watched)
    assert "is not registered: path is" in caplog.text
    assert "metrics= failed" in caplog.text
    assert "Traceback" not in caplog.text
    assert {Path(file.path).parent.name for file in catalog.files("run")} == {"whole"}


def test_a_callback_whose_saves_cannot_be_looked_for_hides_no_other(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = Job()
    broken, whole = saving(tmp_path / "broken"), saving(tmp_path / "whole")
    watched = job.registrar(broken, whole)

    def stale() -> None:
        raise OSError(errno.ESTALE, "Stale file handle")

    next(watch for watch in watched._periodic() if watch.callback is broken).poll = stale
    job.train(broken, whole, watched)
    assert {Path(file.path).parent.name for file in catalog.files("run")} == {"whole"}
    told = [f"ckptstore failed in looking for {which} of ModelCheckpoint" for which in ("saves", "the last saves")]
    assert [message.partition(";")[0] for message in caplog.messages if "failed" in message] == told


def test_two_ranks_that_would_write_the_same_file_are_named(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Directories are named after the device: nodes on shared storage collide (mindspore.md §5)."""
    first, second = two_ranks(catalog)
    model, dataset = create_model(), create_dataset()
    exit_cb = OnRequestExit(file_name="net", directory=str(tmp_path), save_mindir=False)
    said: list[str] = []

    def train_the_second() -> None:
        other = create_model()
        data = create_dataset()
        second.resume(other, data)
        begun = DoAt(1, lambda: said.extend(complaints(caplog)))
        same = OnRequestExit(file_name="net", directory=str(tmp_path), save_mindir=False)
        other.train(1, data, callbacks=[begun, same, second.registrar(same)])

    first.resume(model, dataset)
    callbacks = [exit_cb, DoAt(2, train_the_second), first.registrar(exit_cb)]
    model.train(1, dataset, callbacks=callbacks)
    named = [line for line in said if "would both write" in line]
    assert len(named) == 1
    assert named[0].startswith("ranks 1 and 0 (on ")
    assert f"{tmp_path / 'rank_0'}/net*: give each rank a directory of its own" in named[0]
    assert not list((tmp_path / "rank_0" / name_claims.FOLDER).glob("writer-*"))  # none is left when training has ended
