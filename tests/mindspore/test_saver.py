"""`launch.saver`: one callback in place of a ModelCheckpoint and a registrar."""

import errno
import os
import re
import shutil
import signal
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from functools import cache, partial
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, nn
from mindspore.train import Callback, EarlyStopping

import ckptstore.mindspore
from ckptstore.api import Catalog
from ckptstore.disk import aside
from ckptstore.doctor.doctor import examine
from ckptstore.errors import RefusedError, UsageError
from ckptstore.mindspore import saver as saver_module
from ckptstore.mindspore import state_writer
from ckptstore.mindspore.launch import TrainingLaunch
from ckptstore.mindspore.schedule import LEFT, Schedule
from ckptstore.mindspore.state import Parameters, Values
from ckptstore.retention.policy import Policy
from tests.mindspore.cells import accumulating, varied_dataset
from tests.mindspore.job import at_call
from tests.mindspore.loops import Trained
from tests.mindspore.running import Run
from tests.mindspore.trainings import (
    DoAt,
    ExitAt,
    Job,
    RaiseAt,
    assert_same,
    complaints,
    create_dataset,
    create_model,
    saving,
    values,
)
from tests.small_disks import small_disk


def saved_steps(catalog: Catalog) -> list[int]:
    return sorted(file.global_step for file in catalog.files("run"))


def new_job(**asked: Any) -> Job:
    """With the same weights and data each time."""
    ms.set_seed(1)
    return Job(create_model(), **asked)


def test_files_have_mindspores_names_and_numbers(catalog: Catalog, tmp_path: Path) -> None:
    """A base of the steps, as scripts give it to CheckpointConfig, is no step; a parameter stays what it is."""
    job = Job()
    asked = ["epoch_num", {"step_num": 100, "epoch_num": 7, "scale": np.float64(0.5), "warm": True, "n": 2}]
    job.train(job.launch.saver(tmp_path, every=4, prefix="net", append_info=asked), epochs=2)
    names = sorted(path.name for path in tmp_path.glob("*.safetensors"))
    assert names == ["net-1_4.safetensors", "net-2_2.safetensors", "net-2_6.safetensors"]
    held = ms.load_checkpoint(str(tmp_path / "net-2_2.safetensors"), format="safetensors")
    wanted = {"epoch_num": 2, "step_num": 8, "scale": 0.5, "warm": True, "n": 2}
    assert {name: held[name].asnumpy().item() for name in wanted} == wanted
    assert {file.kind.value for file in catalog.files("run")} == {"periodic"}
    again = Job()
    assert dict(again.start.append_info)["n"] == 2
    with pytest.raises(
        RefusedError, match="append_info has a number named weight, which is also the name of a parameter"
    ):
        again.train(again.launch.saver(tmp_path, every=6, append_info=[{"weight": 1}]), epochs=3)


class Counting(nn.Cell):
    """Its parameter has the name that MindSpore appends the number of steps by."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Dense(3, 4)
        self.step_num = Parameter(Tensor(7, ms.int64), name="step_num", requires_grad=False)

    def construct(self, x: Any) -> Any:
        return self.dense(x)


def by_registrar(job: Job, form: str, directory: Path) -> list[Callback]:
    ckpt_cb = saving(directory, save_checkpoint_steps=100, format=form)
    return [RaiseAt(4), ckpt_cb, job.registrar(ckpt_cb, save_on_exception=True)]


def by_saver(job: Job, form: str, directory: Path) -> list[Callback]:
    return [RaiseAt(4), job.launch.saver(directory, every=100, format=form)]


@pytest.mark.parametrize("form", ["safetensors", "ckpt"])
@pytest.mark.parametrize("callbacks", [by_saver, by_registrar])
def test_a_parameter_may_have_the_name_of_a_count(
    catalog: Catalog, tmp_path: Path, callbacks: Callable[..., list[Callback]], form: str
) -> None:
    job = Job(create_model(network=Counting()))
    job.fail(*callbacks(job, form, tmp_path))
    again = Job(create_model(network=Counting()))
    assert again.start.global_step == 4
    assert_same(again.model, job.model)


class Frozen(nn.Cell):
    """A layer, and a parameter of another type that nothing trains."""

    def __init__(self, dtype: Any, value: Any) -> None:
        super().__init__()
        self.dense = nn.Dense(3, 4)
        self.other = Parameter(Tensor(value, dtype), name="other", requires_grad=False)

    def construct(self, x: Any) -> Any:
        return self.dense(x)


def periodic(job: Job, form: str, directory: Path) -> list[Callback]:
    ckpt_cb = saving(directory, format=form)
    return [ckpt_cb, job.registrar(ckpt_cb)]


def own(job: Job, form: str, directory: Path) -> list[Callback]:
    return [job.launch.saver(directory, every=2, format=form)]


@pytest.mark.parametrize("callbacks", [own, periodic])
@pytest.mark.parametrize(
    ("form", "dtype", "value", "mode"),
    [
        ("safetensors", ms.complex64, [1 + 2j, -3j], ms.GRAPH_MODE),
        ("ckpt", ms.complex64, 1 - 2j, ms.PYNATIVE_MODE),
        ("ckpt", ms.complex128, [[1 + 2j], [-3j]], ms.GRAPH_MODE),
        ("ckpt", ms.qint4x2, np.array([[1, -2], [127, -128]], np.int8), ms.PYNATIVE_MODE),
    ],
)
def test_types_that_mindspore_does_not_train_come_back(  # noqa: PLR0917
    catalog: Catalog,
    tmp_path: Path,
    set_mode: Callable[[int], None],
    callbacks: Callable[..., list[Callback]],
    form: str,
    dtype: Any,
    value: Any,
    mode: int,
) -> None:
    """Complex numbers, which MindSpore saves and does not load, and pairs of numbers of 4 bits."""
    set_mode(mode)
    job = Job(create_model(network=Frozen(dtype, value)))
    job.train(*callbacks(job, form, tmp_path))
    again = Job(create_model(network=Frozen(dtype, np.zeros_like(value))))
    assert again.start.global_step == 6
    assert_same(again.model, job.model)
    again.train(*callbacks(again, form, tmp_path), epochs=2)


@pytest.mark.parametrize(
    ("every", "steps"), [("epoch", [6, 12]), (5, [5, 10, 12]), (timedelta(hours=1), [12]), ("auto", [12])]
)
def test_it_saves_when_it_is_due_and_at_the_end(catalog: Catalog, tmp_path: Path, every: Any, steps: list[int]) -> None:
    job = Job()
    job.train(job.launch.saver(tmp_path, every=every), epochs=2)
    assert saved_steps(catalog) == steps


@pytest.mark.parametrize("form", ["safetensors", "ckpt"])
def test_without_room_for_a_copy_it_writes_at_once_and_says_so(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture, form: str
) -> None:
    for directory, buffers in (("copied", None), ("at_once", 0)):
        job = new_job(fresh=True)
        job.train(job.launch.saver(tmp_path / directory, every=3, format=form, buffers=buffers))
    copied, at_once = (sorted((tmp_path / each).glob(f"*.{form}")) for each in ("copied", "at_once"))
    assert [path.read_bytes() for path in at_once] == [path.read_bytes() for path in copied] != []
    told = [each for each in complaints(caplog) if "buffers=" in each]
    assert len(told) == 1
    assert "training waits at each save until it is written" in told[0]


class AtEpochEnd(Callback):
    def __init__(self, act: Any) -> None:
        super().__init__()
        self.act = act

    def on_train_epoch_end(self, run_context: Any) -> None:
        self.act()


def test_saver_save_saves_now(catalog: Catalog, tmp_path: Path) -> None:
    """Within a step, when that has ended; at the end of an epoch, at once."""
    job = Job()
    saver = job.launch.saver(tmp_path, every=100)
    with pytest.raises(UsageError, match="no training is under way"):
        saver.save()
    job.train(DoAt(2, saver.save), AtEpochEnd(saver.save), saver, epochs=2)
    assert saved_steps(catalog) == [2, 6, 12]


def test_a_save_that_is_due_while_one_is_written_waits_and_is_counted(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job()
    saver = job.launch.saver(tmp_path, every=2)
    writer = saver._writer
    write, wait, comes_to_wait, calls = writer._write, writer.wait, threading.Event(), []

    def written_late(*given: Any, **asked: Any) -> None:
        assert comes_to_wait.wait(60)
        write(*given, **asked)

    def waits() -> None:
        calls.append(writer.saved_step)
        if len(calls) > 1:  # the first one is for the memory of the copy
            comes_to_wait.set()
        wait()

    monkeypatch.setattr(writer, "_write", written_late)
    monkeypatch.setattr(writer, "wait", waits)
    monkeypatch.setattr(state_writer, "_MUCH", 0.0)
    job.train(saver)
    assert saved_steps(catalog) == [2, 4, 6]
    assert writer._waited > 0
    assert any("saves wait until the one before is written" in each for each in complaints(caplog))


@pytest.mark.parametrize(
    ("mode", "sinks"),
    [
        (ms.GRAPH_MODE, True),
        (ms.PYNATIVE_MODE, False),
        pytest.param(ms.GRAPH_MODE, False, marks=pytest.mark.long),
        pytest.param(ms.PYNATIVE_MODE, True, marks=pytest.mark.long),
    ],
)
def test_fit_with_its_evaluations_in_each_mode(
    catalog: Catalog, tmp_path: Path, set_mode: Callable[[int], None], mode: int, *, sinks: bool
) -> None:
    """An exception in the middle of the second epoch, which was evaluated after the first."""
    set_mode(mode)

    def fit(directory: Path, *more: Callback, **asked: Any) -> Job:
        ms.set_seed(1)
        job = Job(create_model(metrics={"loss", "accuracy"}), **asked)
        saver = job.launch.saver(directory, every="epoch")
        first = job.start.initial_epoch
        job.model.fit(
            3, job.dataset, create_dataset(), callbacks=[*more, saver], initial_epoch=first, dataset_sink_mode=sinks
        )
        return job

    whole = fit(tmp_path / "whole")
    (last, *_) = catalog.files("run")
    assert {"loss", "eval_loss", "accuracy"} <= last.metrics.keys()  # of the epoch's end, and evaluated after it
    with pytest.raises(RuntimeError, match="on purpose"):
        fit(tmp_path / "ckpt", RaiseAt(9), fresh=True)
    again = fit(tmp_path / "ckpt")
    assert again.start.global_step == 9
    assert_same(again.model, whole.model)


def test_gradients_that_are_being_accumulated_go_on(catalog: Catalog, tmp_path: Path) -> None:
    """Of the three batches of an update, two were trained at step 8. Their sum has the name that MindSpore gives it."""
    whole = Job(accumulating(), varied_dataset())
    whole.train(whole.launch.saver(tmp_path / "whole", every=8), epochs=2)
    broken = Job(accumulating(), varied_dataset(), fresh=True)
    broken.fail(RaiseAt(9), broken.launch.saver(tmp_path / "ckpt", every=8), epochs=2)
    again = Job(accumulating(), varied_dataset(), step=8)
    again.train(again.launch.saver(tmp_path / "ckpt", every=8), epochs=2)
    assert_same(again.model, whole.model)


def test_it_keeps_what_its_policy_says(catalog: Catalog, tmp_path: Path) -> None:
    job = Job()
    job.train(job.launch.saver(tmp_path, every=1, keep=Policy(keep_last=2)), epochs=2)
    assert len(list(tmp_path.glob("*.safetensors"))) < 12
    assert catalog.resolve("run").plan.global_step == 12


@pytest.mark.parametrize("broken", [(6, 9), pytest.param((), marks=pytest.mark.long)], ids=str)
def test_early_stopping_stops_at_the_same_step_wherever_it_was_killed(
    catalog: Catalog, tmp_path: Path, broken: tuple[int, ...]
) -> None:
    """It hears of an epoch's end after the state of its last step was saved. No steps given: at each."""

    def stopping() -> EarlyStopping:
        return EarlyStopping(monitor="loss", patience=2, min_delta=100.0)

    whole = new_job()
    whole.train(stopping(), whole.launch.saver(tmp_path / "whole", every=2), epochs=9)
    stopped = whole.launch.global_step
    for broken_at in broken or range(1, stopped):
        job = new_job(fresh=True)
        job.fail(RaiseAt(broken_at), stopping(), job.launch.saver(tmp_path / f"{broken_at}", every=2), epochs=9)
        again = new_job()
        assert again.start.global_step == (broken_at if broken_at % 6 else broken_at - 2)
        again.train(stopping(), again.launch.saver(tmp_path / f"{broken_at}", every=2), epochs=9)
        assert again.launch.global_step == stopped
        assert_same(again.model, whole.model)
    last = Job()
    before = values(last.model)
    last.train(stopping(), last.launch.saver(tmp_path / "last", every=2), epochs=9)
    assert last.launch.global_step == stopped
    assert all(np.array_equal(value, before[name]) for name, value in values(last.model).items())


@pytest.mark.parametrize(
    ("asked", "what"),
    [
        ({"every": 0}, "every is 0"),
        ({"every": "epochs"}, 'every is \'epochs\'; give a number of steps, a datetime.timedelta, "epoch", or "auto"'),
        ({"every": 1, "format": "npz"}, "format is 'npz'"),
        ({"every": 1, "append_info": ["step"]}, "append_info has 'step'"),
        ({"every": 1, "append_info": [{"name": "text"}]}, "append_info has"),
        ({"every": 1, "append_info": [{"n": 2**63}]}, "append_info has {'n': 9223372036854775808}"),
        ({"every": 1, "append_info": [{1: 2}]}, "append_info has {1: 2}"),
        ({"every": 1, "append_info": {"n": 2}}, r"append_info is {'n': 2}; give a list, as \[{\"batch_scale\": 2}\]"),
        ({"every": 1, "append_info": None}, "append_info is None"),
        ({"every": 1, "metrics": {"accuracy"}}, "metrics is {'accuracy'}; give a function"),
        ({"every": 1, "buffers": "1G"}, "buffers is '1G'"),
        ({"every": 1, "copies": 0}, "copies is 0"),
        ({"every": 1, "prefix": "sub/net"}, "prefix is 'sub/net'"),
        ({"every": 1, "prefix": "n" * 201}, "prefix is 'nnn"),
        ({"every": 1, "keep": Policy(floor=3)}, "no rule says what to keep"),
    ],
)
def test_what_it_cannot_follow_is_refused_at_once(catalog: Catalog, tmp_path: Path, asked: Any, what: str) -> None:
    with pytest.raises((UsageError, RefusedError), match=what):
        Job().launch.saver(tmp_path, **asked)


def test_numbers_may_be_numpys(catalog: Catalog, tmp_path: Path) -> None:
    job = new_job()
    job.train(job.launch.saver(tmp_path, every=np.int64(4), copies=np.int32(1), buffers=np.int64(1 << 30)))
    assert saved_steps(catalog) == [4, 6]


def test_a_registrar_or_another_saver_beside_it_is_refused(catalog: Catalog, tmp_path: Path) -> None:
    job = Job()
    for other in (job.registrar(), job.launch.saver(tmp_path, every=2)):
        with pytest.raises(RefusedError, match=f"a Saver and another {type(other).__name__} are among the callbacks"):
            job.train(other, job.launch.saver(tmp_path, every=2))


@pytest.mark.parametrize("below", ["file", "file/deeper"])
def test_where_nothing_can_be_saved_training_does_not_begin(catalog: Catalog, tmp_path: Path, below: str) -> None:
    (tmp_path / "file").touch()
    job = Job()
    with pytest.raises(RefusedError, match=f"nothing can be saved to {tmp_path}/{below}: "):
        job.train(job.launch.saver(tmp_path / below, every=2))


def test_a_directory_whose_saves_could_not_be_recorded_is_refused_at_once(catalog: Catalog, tmp_path: Path) -> None:
    job = Job()
    with pytest.raises(UsageError, match="which is not UTF-8; give it and its directory names in UTF-8"):
        job.launch.saver(tmp_path / "n\udcff", every=2)
    with pytest.raises(RefusedError, match="give it and its directory names in UTF-8, of 2000 bytes together"):
        job.train(job.launch.saver(tmp_path / "/".join(["n" * 100] * 19), every=2))


def test_the_cause_is_said_where_a_disk_is_read_only(catalog: Catalog, tmp_path: Path) -> None:
    job = Job()
    with (
        small_disk(tmp_path / "disk", "size=1m,ro") as disk,
        pytest.raises(RefusedError, match=f"nothing can be saved to {disk}: Read-only file system; give another"),
    ):
        job.train(job.launch.saver(disk, every=2))


def test_a_model_checkpoint_beside_it_is_named_and_what_it_saves_is_registered(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = Job()
    job.train(saving(tmp_path), saving(tmp_path / "elsewhere", "other"), job.launch.saver(tmp_path, every=3))
    assert [each for each in complaints(caplog) if "leave it out" in each] == [
        f"ModelCheckpoint saves to {tmp_path} too: leave it out, launch.saver saves the same state"
    ]
    assert {Path(file.path).name.split("-")[0] for file in catalog.files("run")} == {"net", "other", "CKP"}


def test_parameters_that_are_cut_are_refused_before_the_first_step(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job()
    monkeypatch.setattr(saver_module.mindspore, "get_auto_parallel_context", lambda name: "semi_auto_parallel")
    with pytest.raises(RefusedError, match="in semi_auto_parallel each rank has parts"):
        job.train(job.launch.saver(tmp_path, every=1))
    assert job.launch.global_step == 0


class WithMore(nn.Cell):
    """A layer, and a parameter of a type that a .safetensors cannot hold."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Dense(3, 4)
        self.more = Parameter(Tensor(np.ones(2, np.complex128)), name="more", requires_grad=False)

    def construct(self, x: Any) -> Any:
        return self.layer(x)


def test_a_type_that_the_format_cannot_hold_is_refused_before_the_first_step(catalog: Catalog, tmp_path: Path) -> None:
    """Without that nothing would be saved, and one line in the log would say so."""
    job = Job(create_model(network=WithMore()))
    with pytest.raises(RefusedError, match=r'cannot hold more, which is Complex128; use format="ckpt"'):
        job.train(job.launch.saver(tmp_path, every=1))


def calls_of_a_save(directory: Path) -> int:
    """How many calls the saver's thread makes to what is written in C."""
    job = new_job(fresh=True)
    saver = job.launch.saver(directory, every=6)
    calls: list[int] = []
    saver._writer._write = at_call(0, saver._writer._write, lambda: calls.append(1))
    job.train(saver)
    return len(calls)


def full() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    ("mode", "draws"),
    [
        (ms.PYNATIVE_MODE, 2),
        *(pytest.param(mode, 30, marks=pytest.mark.long) for mode in (ms.PYNATIVE_MODE, ms.GRAPH_MODE)),
    ],
)
def test_a_disk_that_is_full_at_any_point_of_a_save(
    catalog: Catalog, tmp_path: Path, set_mode: Callable[[int], None], mode: int, draws: int
) -> None:
    """Training goes on, to the same end, and a start goes on from the newest state that is whole."""
    set_mode(mode)
    whole = new_job()
    whole.train(whole.launch.saver(tmp_path / "whole", every=2), epochs=2)
    most = calls_of_a_save(tmp_path / "counted")
    chance = np.random.RandomState(draws)
    for draw in range(draws):
        first = new_job(fresh=True)
        saver = first.launch.saver(tmp_path / f"{draw}", every=2)
        saver._writer._write = at_call(chance.randint(1, 2 * most), saver._writer._write, full)
        first.fail(RaiseAt(9), saver, epochs=2)
        second = new_job()
        assert second.start.global_step in {8, 9}
        second.train(second.launch.saver(tmp_path / f"{draw}", every=2), epochs=2)
        assert_same(second.model, whole.model)


def no_thread(self: Any) -> None:
    raise RuntimeError("can't start new thread")


def no_memory(self: Any) -> None:
    raise MemoryError


@pytest.mark.parametrize(
    ("owner", "name", "fails", "said"),
    [
        (ThreadPoolExecutor, "_adjust_thread_count", no_thread, "can't start new thread: training waits at each save"),
        (Parameters, "make_room", no_memory, "there is no memory for a copy of the state"),
        (Parameters, "copied", no_memory, "there is no memory for a copy of the state"),
    ],
    ids=["thread", "room", "copy"],
)
def test_a_system_that_gives_no_thread_or_no_memory_does_not_keep_states_from_being_saved(
    catalog: Catalog,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    *,
    owner: type,
    name: str,
    fails: Callable[[Any], None],
    said: str,
) -> None:
    """One failure at the beginning was logged, and no step of the whole training was saved; a loop ended with it."""
    with monkeypatch.context() as system:
        system.setattr(owner, name, fails)
        job = new_job()
        job.train(job.launch.saver(tmp_path, every=2), epochs=1)
        Trained().train(tmp_path / "loop", launch=ckptstore.mindspore.join("loop"))
    assert saved_steps(catalog) == [2, 4, 6]
    assert sorted(file.global_step for file in catalog.files("loop")) == [2, 4, 6, 8, 10, 12]
    assert any(said in each for each in complaints(caplog))
    assert_same(new_job().model, job.model)


def by_saver_until_asked(directory: Path) -> None:
    job = new_job()
    saver = job.launch.saver(directory / "ckpt", every=2)
    job.train(DoAt(2, partial(replaced_by_a_file, directory / "ckpt")), ExitAt(3), saver)


def by_loop_until_asked(directory: Path) -> None:
    trained = Trained()
    loop = trained.loop(directory / "ckpt")
    for batch in loop:
        loop.step(loss=trained.step(*batch))
        if loop.global_step == 3:
            replaced_by_a_file(directory / "ckpt")
            signal.raise_signal(signal.SIGTERM)


def replaced_by_a_file(directory: Path) -> None:
    """From now on no file can be written there."""
    directory.rename(directory.with_name("before"))
    directory.touch()


@pytest.mark.parametrize("until_asked", [by_saver_until_asked, by_loop_until_asked])
def test_an_exit_whose_save_failed_is_not_said_to_be_saved(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture, until_asked: Callable[[Path], None]
) -> None:
    """The log said that step 3 is not saved, and then that it is."""
    with pytest.raises(SystemExit) as left:
        until_asked(tmp_path)
    assert left.value.code == LEFT
    assert "step 3 is saved" not in caplog.text
    assert any(
        "step 3 could not be saved; training ends on request all the same" in each for each in complaints(caplog)
    )


class TerminatedAtEnd(Callback):
    def on_train_end(self, run_context: Any) -> None:
        signal.raise_signal(signal.SIGTERM)


def by_saver_to_the_end(directory: Path) -> None:
    job = new_job()
    job.train(TerminatedAtEnd(), job.launch.saver(directory, every=100))


def by_loop_to_the_end(directory: Path) -> None:
    trained = Trained()
    loop = trained.loop(directory, every=100, epochs=1)
    for batch in loop:
        loop.step(loss=trained.step(*batch))
        if loop.global_step == 6:
            signal.raise_signal(signal.SIGTERM)


def by_loop_to_a_break(directory: Path) -> None:
    trained = Trained()
    loop = trained.loop(directory, every=100, epochs=3)
    for batch in loop:
        loop.step(loss=trained.step(*batch))
        if loop.global_step == 6:
            signal.raise_signal(signal.SIGTERM)
            break


@pytest.mark.parametrize("to_the_end", [by_saver_to_the_end, by_loop_to_the_end, by_loop_to_a_break])
def test_sigterm_while_training_ends_ends_the_process_too(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to_the_end: Callable[[Path], None]
) -> None:
    """It said that training ends, and the script went on after the training until it was killed."""
    killed: list[tuple[int, ...]] = []
    monkeypatch.setattr(os, "kill", lambda *told: killed.append((*told, saved_steps(catalog)[-1])))
    to_the_end(tmp_path)
    assert killed == [(os.getpid(), signal.SIGTERM, 6)]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_flag_that_is_set_between_two_trainings_is_heeded(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As by an operator, while the script evaluates: it counted as one of before the launch, and was put back to 0."""
    job, flag = Job(), tmp_path / "exit.json"
    asks = '{"GracefulExit": 1}'
    flag.write_text(asks)
    saver = job.launch.saver(tmp_path / "ckpt", every=100, exit_flag=flag)
    job.model.train(1, job.dataset, callbacks=[saver])
    assert f"{flag} still asks for an exit (GracefulExit: 1): put back to 0" in complaints(caplog)
    flag.write_text(asks)
    with pytest.raises(SystemExit) as left:
        job.model.train(2, job.dataset, callbacks=[saver], initial_epoch=1)
    assert (left.value.code, saved_steps(catalog)) == (LEFT, [6, 7])
    job.model.train(2, job.dataset, callbacks=[saver], initial_epoch=1)  # as a notebook that caught it
    assert job.launch.global_step == 13


def test_a_directory_whose_journals_cannot_be_read_is_refused(catalog: Catalog, tmp_path: Path) -> None:
    """Training went on, and none of its steps but the last was saved."""
    (tmp_path / "ckpt").mkdir()
    (tmp_path / "ckpt/.ckptstore").symlink_to(tmp_path)
    job = Job()
    with pytest.raises(RefusedError, match=r"the journals in .*/ckpt cannot be read \(\.ckptstore is a link\)"):
        job.train(job.launch.saver(tmp_path / "ckpt", every=2))


def test_a_saver_that_was_made_before_resume_saves_no_restored_state_again(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each start that failed before its first step wrote the whole state that it had loaded."""
    first = new_job()
    first.train(first.launch.saver(tmp_path, every=2))
    launch = ckptstore.mindspore.join("run")
    saver = launch.saver(tmp_path, every=2)
    second = Job(launch=launch)
    with pytest.raises(RefusedError, match="a Saver and another Saver"):
        second.train(saver, launch.saver(tmp_path, every=2), epochs=2)
    launch = ckptstore.mindspore.join("run")
    saver = launch.saver(tmp_path, every=2)
    third = Job(launch=launch)
    third.fail(BeforeStep(), saver, epochs=2)
    assert saved_steps(catalog) == [2, 4, 6]
    assert "ckptstore failed" not in caplog.text


class BeforeStep(Callback):
    def on_train_step_begin(self, run_context: Any) -> None:
        raise RuntimeError("on purpose")


def test_ctrl_c_while_training_waits_for_a_save_leaves_that_save_whole(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The save at the exception took the memory of the copy that was still being written: step 2 held step 4."""
    goes_on, write = threading.Event(), Values.write
    monkeypatch.setattr(Values, "write", lambda self, path: goes_on.wait(20) and write(self, path))
    waits = 0

    def waiting(wait: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def waited(self: Any) -> Any:
            nonlocal waits
            waits += 1
            if waits == 2:  # the first one is for the memory of the copies
                raise KeyboardInterrupt
            if waits > 2:
                goes_on.set()
            return wait(self)

        return waited

    for name in ("result", "exception"):
        monkeypatch.setattr(Future, name, waiting(getattr(Future, name)))
    trained = Trained()
    loop = trained.loop(tmp_path)
    after = {}
    with pytest.raises(KeyboardInterrupt):
        for batch in loop:
            loop.step(loss=trained.step(*batch))
            after[loop.global_step] = trained.values()
    assert saved_steps(catalog) == [2, 4]
    for file in catalog.files("run"):
        held = ms.load_checkpoint(file.path, format="safetensors")
        assert {name: held[name].asnumpy().tobytes() for name in after[2]} == after[file.global_step]


@pytest.mark.parametrize("name", ["make_room", "copied"])
def test_memory_for_a_part_of_a_copy_is_given_back(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """What had been allocated was held to the end of training, where there was no memory."""
    held, makes_room = [], Parameters.make_room

    def no_memory_at_last(self: Any) -> None:
        makes_room(self)
        held.extend(map(weakref.ref, self._buffers.values()))
        raise MemoryError

    monkeypatch.setattr(Parameters, name, no_memory_at_last)
    Trained().train(tmp_path)
    assert held
    assert not any(each() is not None for each in held)


def test_a_training_that_is_refused_after_an_exit_does_not_leave_again(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A notebook goes on after the exit: the refused training recorded a good end, and said that it had saved."""
    job, flag = new_job(), tmp_path / "flag.json"
    saver = job.launch.saver(tmp_path / "ckpt", every=100, exit_flag=flag)
    with pytest.raises(SystemExit):
        job.train(DoAt(3, lambda: flag.write_text('{"GracefulExit": 1}')), saver, epochs=2)
    assert "training ends on request" in caplog.text
    caplog.clear()
    with pytest.raises(RefusedError):
        job.train(saver, job.registrar(), epochs=2)
    assert "training ends on request" not in caplog.text


class TerminatedAndFailed(Callback):
    def on_train_step_end(self, run_context: Any) -> None:
        signal.raise_signal(signal.SIGTERM)
        raise RuntimeError("on purpose")


def test_sigterm_before_an_exception_ends_the_next_training_of_the_launch(catalog: Catalog, tmp_path: Path) -> None:
    """A script that tries again after errors went on, though the log had said that training ends."""
    job = new_job()
    saver = job.launch.saver(tmp_path, every=100)
    job.fail(TerminatedAndFailed(), saver)
    with pytest.raises(SystemExit):
        job.train(saver)
    assert job.launch.global_step == 2


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_rank_of_several_does_not_end_while_others_may_still_save(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch, world_size: int
) -> None:
    """msrun killed the ranks that still wrote the last state once one had ended by the signal."""
    launch = ckptstore.mindspore.join("run")
    launch.facts = replace(launch.facts, world_size=world_size)
    schedule = Schedule(launch, 100, step=0, mtbf=None, flag=None)
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda *told: killed.append(told))
    schedule.begin()
    signal.raise_signal(signal.SIGTERM)
    schedule.end()
    schedule.obey()
    assert killed == [(os.getpid(), signal.SIGTERM)] * (world_size == 1)


@pytest.mark.parametrize("form", ["safetensors", "ckpt"])
def test_a_first_save_that_got_no_name_was_never_whole(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """It was noted before it had its name: a start that took it for lost would be refused."""
    with monkeypatch.context() as disk:

        def fails(*_: str) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        disk.setattr(aside, "_give", fails)
        first = new_job()
        first.train(first.launch.saver(tmp_path, every=2, format=form))
    assert [file.state.value for file in catalog.files("run")] == ["in_progress"] * 3
    second = new_job()
    assert second.start.fresh
    second.train(second.launch.saver(tmp_path, every=2, format=form))
    assert new_job().start.global_step == 6


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Callable[[dict[str, Any]], bytes]:
    """The final state of the run that nothing happens to, for each way to train."""

    @cache
    def of(**how: Any) -> bytes:
        run = Run(tmp_path_factory.mktemp("unbroken"), saves="launch.saver")
        outcome = run.launch(**how)
        assert outcome.code == 0, outcome.output
        return run.final()

    return of


GRAPH, PYNATIVE, SINK = {}, {"pynative": True}, {"sink": True}
"""A sink is asked for; on CPU MindSpore trains without one."""
CODES = {"kill": -signal.SIGKILL, "raise": 1, "terminate": LEFT, "asked": LEFT, "full": 0}


@pytest.mark.parametrize(
    ("fault", "how", "ranks", "draws"),
    [
        ("kill", GRAPH, 1, 1),
        pytest.param("kill", GRAPH, 1, 30, marks=pytest.mark.long),
        *(
            pytest.param(fault, how, ranks, draws, marks=[pytest.mark.long, *marks])
            for ranks, draws, marks in ((1, 8, []), (2, 2, [pytest.mark.msrun]))
            for fault in CODES
            for how in ([GRAPH, PYNATIVE, SINK] if ranks == 1 else [GRAPH, PYNATIVE])
        ),
    ],
)
def test_at_any_point_of_a_save(
    catalog: Catalog, tmp_path: Path, unbroken: Any, *, fault: str, how: dict[str, Any], ranks: int, draws: int
) -> None:
    """Of one rank, the last one: a file that has its name is whole, and the run goes on from the newest."""
    most = calls_of_a_save(tmp_path / "counted")
    chance = np.random.RandomState(draws)
    for draw in range(draws):
        run = Run(tmp_path / f"{draw}", saves="launch.saver")
        asked = {"ranks": ranks, "rank": ranks - 1, **how}
        told = f"{fault}-writing {chance.randint(1, 2 * most)}"  # later ones may come when training has ended
        ended = run.launch(fault=told, epochs=2 if fault == "full" else 3, **asked)
        assert ended.code == CODES[fault] or (ranks > 1 and ended.code), (told, ended.output)
        newest = max(steps_of_names(run.out / "ckpt"), default=0)
        if fault == "raise":
            assert run.files()[0][:2] == ("dying_gasp", newest)
        again = run.launch(**asked)
        assert (again.code, again.start["global_step"]) == (0, newest), (told, again.output)
        assert [run.final(rank) for rank in range(ranks)] == [unbroken(**how)] * ranks


def steps_of_names(directory: Path) -> list[int]:
    """Those of the files that have their names, of all ranks."""
    found = [*directory.glob("net-*.safetensors"), *directory.glob("rank_*/net-*.safetensors")]
    places = [re.findall(r"-(\d+)_(\d+)\.safetensors", path.name)[0] for path in found]
    return [10 * (int(epoch) - 1) + int(step) for epoch, step in places]


def test_what_a_rank_that_does_not_save_will_lack_is_told_at_its_first_save(
    catalog: Catalog, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And at the start that gives it the file of another rank."""
    monkeypatch.setattr(saver_module.communication, "hosts", lambda: [1, 1])

    def trained(rank: int, launch_id: str) -> None:
        joined = catalog.join("run", rank=rank, world_size=2, launch_id=launch_id, layout="data_parallel")
        network = nn.SequentialCell(nn.Dense(3, 4), nn.BatchNorm1d(4))
        job = Job(create_model(network=network), launch=TrainingLaunch(joined.database, joined.facts, rank))
        saver = job.launch.saver(tmp_path, every=2, copies=1)
        job.train(DoAt(1, np.random.rand), saver, epochs=job.start.initial_epoch + 1)

    trained(0, "L1")
    trained(1, "L1")
    said = (
        "rank 1 does not save (copies=1): a restart does not bring back its moving averages of BatchNorm and its "
        "random numbers; leave out copies= for that"
    )
    assert complaints(caplog) == [said]
    trained(1, "L2")
    assert complaints(caplog)[1:] == [
        "rank 1 uses 2 moving averages of rank 0, because it loads that rank's file, and its own values were not kept",
        "rank 1 has the file of rank 0: its own random numbers start over",
        said,
    ]


@pytest.mark.msrun
def test_a_saver_of_rank_0_alone__before_added_up_its_vote_and_gradients__now_is_refused(
    tmp_path: Path,
) -> None:
    """Many scripts give a ModelCheckpoint to rank 0 only. What the hint says is done below."""
    refused = Run(tmp_path, saves="launch.saver").launch(ranks=2, saves_alone=True)
    assert refused.code != 0
    said = "1 of 2 ranks have a saver among their callbacks, and after a step all ranks must decide together"
    assert said in refused.output
    assert "give launch.saver(…, copies=1) to all ranks: then one of them writes" in refused.output


@pytest.mark.long
@pytest.mark.msrun
@pytest.mark.parametrize("copies", [1, 2])
def test_a_directory_of_four_ranks_is_lost(tmp_path: Path, undisturbed: bytes, copies: int) -> None:
    """Each in turn: what a replica has left is enough to go on. Of data parallel every rank is every other's."""
    run = Run(tmp_path, saves="launch.saver")
    asked: dict[str, Any] = {"ranks": 4, "saver": {"copies": copies}}
    assert run.launch(fault="kill 6", **asked).code != 0
    assert {file.rank for file in run.catalog.files("run")} == set(range(copies))
    covered = [rank for rank in range(4) if copies > 1 or rank > 0]
    step = 5
    for lost in covered:
        shutil.rmtree(tmp_path / "ckpt" / f"rank_{lost}")
        again = run.launch(fault="kill 6", **asked)
        assert again.start["global_step"] == step, again.output
        step += 5
    writers, away = [tmp_path / "ckpt" / f"rank_{rank}" for rank in range(copies)], tmp_path / "away"
    away.mkdir()
    for each in writers:
        each.rename(away / each.name)
    refused = run.launch(**asked)
    assert refused.code != 0
    lost = rf"step {step} was whole, but {re.escape(str(writers[0]))}/net\S+ is gone, and its directory is missing"
    assert re.search(lost, refused.output), refused.output
    for each in writers:
        (away / each.name).rename(each)
    last = run.launch(**asked)
    assert (last.code, last.start["global_step"]) == (0, step), last.output
    assert [run.final(rank) for rank in range(4)] == [undisturbed] * 4


@pytest.mark.long
@pytest.mark.msrun
def test_one_rank_writes_for_its_replica_and_without_its_files_the_start_is_refused(
    tmp_path: Path, undisturbed: bytes
) -> None:
    run = Run(tmp_path, saves="launch.saver")
    asked: dict[str, Any] = {"ranks": 2, "saver": {"copies": 1}}
    assert run.launch(fault="kill 17", rank=1, **asked).code != 0
    assert {file.rank for file in run.catalog.files("run")} == {0}
    seen = [check.detail for check in examine(run.url, "run").checks if check.name == "ranks"]
    assert seen == ["rank 0 of 2 saved step 15; its file serves the other ranks, its replicas"]
    rank_0, away = tmp_path / "ckpt" / "rank_0", tmp_path / "away"
    rank_0.rename(away)
    assert run.launch(**asked).code != 0
    away.rename(rank_0)
    again = run.launch(fault="raise 6", rank=1, **asked)
    assert (again.code != 0, again.start["global_step"]) == (True, 15), again.output
    assert [file.rank for file in run.catalog.files("run") if file.global_step == 21] == [1]  # at an exception all save
    rank_0.rename(away)
    last = run.launch(**asked)
    assert (last.code, last.start["global_step"]) == (0, 21), last.output
    assert run.final(0) == run.final(1) == undisturbed
