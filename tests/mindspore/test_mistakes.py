"""Mistakes that people make, one after the other on one training: each is told, none costs progress or a weight."""

import logging
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn
from mindspore.train import Callback, Model

import ckptstore.mindspore
from ckptstore.api import Catalog, connect
from ckptstore.catalog import marks
from ckptstore.catalog.clock import clock
from ckptstore.disk import owner
from ckptstore.errors import CkptstoreError
from ckptstore.retention.policy import Policy
from ckptstore.training import life_signs
from tests.cli.advice import follow
from tests.mindspore.trainings import Job, RaiseAt, complaints, create_dataset, create_model, saving

EPOCHS = 5
STEPS = 6
MISTAKES = 20


def always_the_same() -> Model:
    """A model with the same weights each time: those of a first launch count."""
    model = create_model()
    for parameter in model.train_network.network.trainable_params():
        parameter.set_data(ms.Tensor(np.linspace(-1, 1, parameter.size, dtype=np.float32).reshape(parameter.shape)))
    return model


@dataclass
class World:
    """A run of 30 steps, its directory and its catalog; `at` is the step that the next start must go on from."""

    home: Path
    directory: Path
    monkeypatch: pytest.MonkeyPatch
    caplog: pytest.LogCaptureFixture
    at: int = 0
    seen: list[str] = field(default_factory=list)

    @property
    def catalog(self) -> Catalog:
        return connect()

    @property
    def files(self) -> list[Path]:
        """The files of the newest step."""
        return [Path(file.path) for file in self.catalog.show("run", self.at) if Path(file.path).exists()]

    def older(self) -> int:
        """The step before the newest that can be restored."""
        steps = {save.global_step for save in self.catalog.saves("run") if save.restorable}
        return max((step for step in steps if step < self.at), default=0)

    def go_on(self, steps: int = 1, **joined: Any) -> Job:
        """The job as it should be, for so many steps."""
        job = Job(always_the_same(), launch=ckptstore.mindspore.join("run", **joined))
        assert job.start.global_step == self.at, self.seen
        ckpt_cb = saving(self.directory, save_checkpoint_steps=1)
        registrar = job.registrar(ckpt_cb)
        if self.at + steps < EPOCHS * STEPS:
            job.fail(RaiseAt(steps + 1), ckpt_cb, registrar, epochs=EPOCHS)
        else:
            job.train(ckpt_cb, registrar, epochs=EPOCHS)
        self.at += steps
        return job

    @contextmanager
    def refused(self, word: str) -> Iterator[None]:
        """It is refused, with a message that has this word and something to do."""
        with pytest.raises(CkptstoreError) as told:
            yield
        assert word in str(told.value), told.value
        assert told.value.hint, told.value

    @contextmanager
    def warned(self, word: str) -> Iterator[None]:
        """It is said, once or more."""
        self.caplog.clear()
        with self.caplog.at_level(logging.INFO, "ckptstore"):
            yield
        assert any(word in said for said in complaints(self.caplog)), complaints(self.caplog)


def begun(world: World, **asked: Any) -> Job:
    """A launch that has asked where to start."""
    return Job(**asked)


def resume_is_forgotten(world: World) -> None:
    launch = ckptstore.mindspore.join("run")
    ckpt_cb = saving(world.directory, save_checkpoint_steps=1)
    with world.refused("training would begin at step 0"):
        create_model().train(EPOCHS, create_dataset(), callbacks=[ckpt_cb, launch.registrar(ckpt_cb)])


def registrar_is_forgotten(world: World) -> None:
    with world.warned("no registrar is among the callbacks"):
        begun(world).fail(RaiseAt(1), epochs=EPOCHS)


def initial_epoch_is_forgotten(world: World) -> None:
    job = begun(world)
    if world.at >= STEPS:
        with world.refused("training would begin in epoch 1"):
            job.model.train(EPOCHS, job.dataset, callbacks=[job.registrar()])


def one_epoch_in_a_loop(world: World) -> None:
    job = begun(world)
    if world.at > STEPS:
        with world.refused("are asked for"):
            job.train(job.registrar(), epochs=1)


def arguments_are_swapped(world: World) -> None:
    with world.refused("resume"):
        ckptstore.mindspore.join("run").resume(create_dataset(), create_model())


def no_dataset(world: World) -> None:
    with world.refused("resume"):
        ckptstore.mindspore.join("run").resume(create_model(), None)


def a_cell_for_a_model(world: World) -> None:
    with world.refused("resume"):
        ckptstore.mindspore.join("run").resume(nn.Dense(3, 4), create_dataset())


def a_number_for_a_name(world: World) -> None:
    with world.refused("the name of a run is text, not int"):
        ckptstore.mindspore.join(5)  # type: ignore[arg-type]


def no_name(world: World) -> None:
    with world.refused("name"):
        ckptstore.mindspore.join("")


def the_name_is_mistyped(world: World) -> None:
    job = begun(world, launch=ckptstore.mindspore.join("rum"))
    ckpt_cb = saving(world.directory, "net", save_checkpoint_steps=1)
    with world.warned("to go on with those join('run')"):
        job.fail(RaiseAt(1), ckpt_cb, job.registrar(ckpt_cb), epochs=EPOCHS)


def a_callback_is_not_trained_with(world: World) -> None:
    job = begun(world)
    with world.warned("is not in the callbacks of this training"):
        job.fail(RaiseAt(1), job.registrar(saving(world.directory)), epochs=EPOCHS)


def a_callback_is_not_given(world: World) -> None:
    job = begun(world)
    mine, other = saving(world.directory), saving(world.home / "other")
    with world.warned("was not given to the registrar"):
        job.fail(RaiseAt(1), mine, other, job.registrar(mine), epochs=EPOCHS)


def a_callback_that_saves_nothing_known(world: World) -> None:
    job = begun(world)
    with world.warned("does not know what Callback saves"):
        job.registrar(Callback())


def nothing_saves(world: World) -> None:
    job = begun(world)
    with world.warned("nothing to register"):
        job.fail(RaiseAt(1), job.registrar(), epochs=EPOCHS)


def another_network(world: World) -> None:
    with world.refused("does not fit"):
        begun(world, model=create_model(5))


def another_optimizer(world: World) -> None:
    with world.refused("lacks"):
        begun(world, model=create_model(optimizer=nn.Adam))


def another_batch(world: World) -> None:
    if world.at % STEPS:
        with world.refused("has no place in the data"):
            begun(world, dataset=create_dataset(5))


def a_file_is_deleted(world: World) -> None:
    older = world.older()
    if older:
        for path in world.files:
            path.unlink()
        with world.warned("was whole once"):
            assert begun(world).start.global_step == older
        world.at = older


def a_file_is_cut(world: World) -> None:
    older = world.older()
    if older:
        for path in world.files:
            content = path.read_bytes()
            path.unlink()
            path.write_bytes(content[:-1])
        with world.warned("was whole once"):
            assert begun(world).start.global_step == older
        world.at = older


def a_byte_is_turned(world: World) -> None:
    older = world.older()
    if older:
        for path in world.files:
            status, content = path.stat(), bytearray(path.read_bytes())
            content[len(content) // 2] ^= 1
            path.unlink()
            path.write_bytes(content)
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        with world.refused("other bytes"):
            begun(world)
        assert begun(world).start.global_step == older
        world.at = older


def the_directory_is_away(world: World) -> None:
    away = world.home / "away"
    world.directory.rename(away)
    with world.refused("run"):
        begun(world)
    shutil.rmtree(world.directory, ignore_errors=True)
    away.rename(world.directory)


def the_directory_is_moved(world: World) -> None:
    moved = world.home / f"moved_{len(world.seen)}"
    world.directory.rename(moved)
    world.directory = moved
    with pytest.raises(CkptstoreError) as refused:
        begun(world)
    assert follow(os.environ["CKPTSTORE_URL"], str(refused.value), NEW=str(moved)).code == 0


def the_catalog_is_deleted(world: World) -> None:
    for path in world.home.glob("catalog.db*"):
        path.unlink()


def the_catalog_is_elsewhere(world: World) -> None:
    with world.monkeypatch.context() as context:
        context.setenv("CKPTSTORE_URL", str(world.home / "mistyped" / "catalog.db"))
        with world.warned("Training goes on without"):
            job = ckptstore.mindspore.join("run", directories=[world.directory])
            assert job.resume(create_model(), create_dataset()).global_step == world.at


def a_step_that_was_never_saved(world: World) -> None:
    with world.refused("step 9999"):
        begun(world, step=9999)


def a_launch_that_never_was(world: World) -> None:
    with world.refused("no launch 'mine'"):
        begun(world, lineage="mine")


def metrics_that_fail(world: World) -> None:
    with world.warned("metrics= failed"):
        job = Job()
        ckpt_cb = saving(world.directory, save_checkpoint_steps=1)
        registrar = job.registrar(ckpt_cb, metrics=lambda params: {"accuracy": params.accuracy / 0})
        if world.at + 1 < EPOCHS * STEPS:
            job.fail(RaiseAt(2), ckpt_cb, registrar, epochs=EPOCHS)
    world.at += 1


def a_save_of_ones_own(world: World) -> None:
    job = begun(world)
    ckpt_cb = saving(world.directory, save_checkpoint_steps=1)

    class Own(Callback):
        def on_train_step_end(self, run_context: Any) -> None:
            ms.save_checkpoint(job.model.train_network, str(world.directory / f"best{len(world.seen)}.ckpt"))

    with world.warned("was saved by nothing that the registrar watches"):
        job.fail(RaiseAt(2), Own(), ckpt_cb, job.registrar(ckpt_cb), epochs=EPOCHS)
    world.at += 1


def a_loss_that_is_no_number(world: World) -> None:
    job = begun(world)
    for parameter in job.model.train_network.network.trainable_params():
        parameter.set_data(ms.Tensor(np.full(parameter.shape, np.nan, np.float32)))
    job.launch._guard.resumed(job.model.train_network, restored=True)  # as data would make it
    ckpt_cb = saving(world.directory, save_checkpoint_steps=1)
    with world.warned(f"The last good state is step {world.at}"):
        job.fail(RaiseAt(2), ckpt_cb, job.registrar(ckpt_cb), epochs=EPOCHS)
    with world.warned("is quarantined"):
        assert begun(world).start.global_step == world.at


def a_fresh_start_and_back(world: World) -> None:
    before = world.catalog.resolve("run").plan
    assert before is not None
    ckptstore.mindspore.join("run").begin_fresh()
    assert begun(world, lineage=before.launch.id).start.global_step == world.at


def the_same_job_twice(world: World) -> None:
    launch = ckptstore.mindspore.join("run")
    launch.signs.end()
    host, _, _, last = owner.this_process().split("|")
    parent = "|".join((host, str(os.getppid()), owner._began(os.getppid()), last))
    with world.catalog.database.write() as connection:
        marks.give_sign(connection, launch.key, parent, clock(connection))
    with world.monkeypatch.context() as context:
        context.setattr(life_signs, "SILENT", timedelta(0))
        with world.refused("is alive"):
            ckptstore.mindspore.join("run")
    ckptstore.mindspore.join("run", take_over=True)
    with world.catalog.database.write() as connection:
        marks.end_signs(connection, launch.key)


def a_launch_id_is_used_again(world: World) -> None:
    used = max(world.catalog.files("run"), key=lambda file: file.global_step).launch
    with world.refused("give every start a launch id of its own"):
        ckptstore.mindspore.join("run", launch_id=used)


def resume_after_training(world: World) -> None:
    if world.at + 1 < EPOCHS * STEPS:
        job = world.go_on()
        with world.refused("training has begun in this launch"):
            job.launch.resume(job.model, job.dataset)


def the_run_is_forgotten(world: World) -> None:
    world.catalog.forget("run")
    with world.refused("ckptstore forget run --undo"):
        ckptstore.mindspore.join("run")
    world.catalog.forget("run", undo=True)


def gc_without_rules(world: World) -> None:
    with world.refused("no rule says what to keep"):
        world.catalog.plan_gc("run")


def gc_that_keeps_one(world: World) -> None:
    world.catalog.execute(world.catalog.plan_gc("run", Policy(keep_last=1)), now=True, allow_mass_delete=True)


def a_pin_of_nothing(world: World) -> None:
    with world.refused("9999"):
        world.catalog.pin("run", 9999)


MADE: list[Callable[[World], None]] = [
    resume_is_forgotten, registrar_is_forgotten, initial_epoch_is_forgotten, one_epoch_in_a_loop, arguments_are_swapped,
    no_dataset, a_cell_for_a_model, a_number_for_a_name, no_name, the_name_is_mistyped, a_callback_is_not_trained_with,
    a_callback_is_not_given, a_callback_that_saves_nothing_known, nothing_saves, another_network, another_optimizer,
    another_batch, a_file_is_deleted, a_file_is_cut, a_byte_is_turned, the_directory_is_away, the_directory_is_moved,
    the_catalog_is_deleted, the_catalog_is_elsewhere, a_step_that_was_never_saved, a_launch_that_never_was,
    metrics_that_fail, a_save_of_ones_own, a_loss_that_is_no_number, a_fresh_start_and_back, the_same_job_twice,
    a_launch_id_is_used_again, resume_after_training, the_run_is_forgotten, gc_without_rules, gc_that_keeps_one,
    a_pin_of_nothing,
]  # fmt: skip


@pytest.mark.parametrize("begin", [0, pytest.param(len(MADE) - MISTAKES, marks=pytest.mark.long)])
def test_twenty_mistakes(
    catalog: Catalog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, begin: int
) -> None:
    """After each the run goes on from where it was, and ends with the weights of one that was never disturbed."""
    undisturbed = Job(always_the_same(), launch=ckptstore.mindspore.join("undisturbed"))
    undisturbed.train(undisturbed.registrar(), epochs=EPOCHS)
    monkeypatch.setenv("CKPTSTORE_URL", str(tmp_path / "catalog.db"))
    world = World(tmp_path, tmp_path / "ckpt", monkeypatch, caplog)
    world.go_on(3)
    for mistake in random.Random(1).sample(MADE, len(MADE))[begin : begin + MISTAKES]:  # noqa: S311
        world.seen.append(mistake.__name__)
        mistake(world)
        if world.at + 1 < EPOCHS * STEPS:
            world.go_on()
    last = world.go_on(EPOCHS * STEPS - world.at)
    for job, name in ((undisturbed, "undisturbed"), (last, "last")):
        ms.save_checkpoint(job.model.train_network, str(tmp_path / f"{name}.ckpt"))
    assert (tmp_path / "last.ckpt").read_bytes() == (tmp_path / "undisturbed.ckpt").read_bytes(), world.seen
