"""The time to the first step in a directory with many old records, compared with an empty directory.

    python -m bench.past [--quick]

At most 1.1 times as long, and 1.2 times with 500,000 records. One rank starts again and again, in turns in three
directories: an empty one, one in which another run has recorded many files, and one in which its own run has. The
recorded files were deleted, as MindSpore and gc do, so the disk has only a few saves. A script makes the records. The
time is from `join` to the end of the first step of `Model.train`, and includes building and compiling the network.
"""

from __future__ import annotations

import gc
import os
import time
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

from mindspore.train import CheckpointConfig, ModelCheckpoint

import ckptstore.mindspore
from bench import network
from bench.measure import Budget, Found, Row, say, turns
from bench.resume_job import FirstStep
from bench.task import run_alone
from ckptstore import connect
from ckptstore.catalog import reads, tallies
from ckptstore.core.events import Event, FileRecorded, LaunchStarted, SourceAdded, to_line
from ckptstore.core.model import Checkpoint, Kind, Launch, Source
from ckptstore.core.replicas import from_name
from ckptstore.disk import presence
from ckptstore.disk.presence import Home
from ckptstore.journal.jsonl import JournalWriter

TASK = "past"
RUN, OTHER = "run", "other"
STEPS, EPOCHS = 10, 100
SIZES = {(256, 100): 1.1, (1000, 500): 1.2}
QUICK_SIZES = {(16, 25): 1.1}
"""Ranks and saves of the past, and the most times as long as in an empty directory that the first step may take."""
ALONE = "empty directory"
LOOK_AGAIN_SECONDS = 0.1
WARM_UP, REPEATS = 7, 20
"""The times of a first step vary by half. Five measurements cannot show a difference of a tenth."""


def recorded(directory: Path, run: str, ranks: int, saves: int) -> None:
    """Write the journals of a launch that has ended. Each rank recorded so many files, which no longer exist."""
    directory.mkdir(parents=True, exist_ok=True)
    identity = presence.identify(str(directory), Home(set(), {"."}))
    at = datetime.now(timezone.utc)
    layout = from_name("data_parallel", ranks)
    launch = Launch(id="past", run=run, order=1, world_size=ranks, layout=layout, created_at=at, decided=True)
    for rank in range(ranks):
        files = [
            Checkpoint(
                run=run,
                launch=launch.id,
                kind=Kind.PERIODIC,
                global_step=step,
                rank=rank,
                path=f"{directory}/old_{rank}-1_{step}.ckpt",
                size=1000,
                digest="0" * 64,
                mtime_ns=step * 10**9,
                created_at=at,
                directory_id=identity,
            )
            for step in range(1, saves + 1)
        ]
        source = Source(
            run=run,
            launch=launch.id,
            rank=rank,
            directory=str(directory),
            kind=Kind.PERIODIC,
            prefix=f"old_{rank}",
            breakpoint_prefix=f"old_{rank}",
            names_before=frozenset(),
            directory_id=identity,
        )
        told: list[Event] = [SourceAdded(source, at), *map(FileRecorded, files)]
        lines = [to_line(event, str(directory)) for event in told]
        JournalWriter(str(directory), f"rank_{rank}", launch.id).append(lines, {launch.key: LaunchStarted(launch, at)})


class Job:
    """A training in a directory, with a catalog that knows all records there."""

    def __init__(self, work: Path, past: str | None, ranks: int, saves: int) -> None:
        self.directory = work / "checkpoints"
        self.catalog = connect(str(work / "catalog.db"))
        if past is not None:
            recorded(self.directory, past, ranks, saves)
            began = time.monotonic()
            taken = self.catalog.sync(self.directory)
            assert taken.records == ranks * saves, taken
            say(f"{TASK}: {taken.records:,} records of run {past} taken up in {time.monotonic() - began:.0f} s")
        self.steps = 0
        self.train()

    def train(self) -> float:
        """The seconds to the end of the first step. After that, the state is saved."""
        gc.collect()  # free the networks of earlier turns here, so that this does not happen while a turn is measured
        began = time.perf_counter()
        model, dataset = network.model(), network.dataset(STEPS)
        launch = ckptstore.mindspore.join(RUN, catalog=self.catalog)
        start = launch.resume(model, dataset, fresh=not self.steps)
        assert start.global_step == self.steps, start
        ckpt_cb = ModelCheckpoint("net", str(self.directory), CheckpointConfig(save_checkpoint_steps=STEPS))
        first = FirstStep()
        callbacks = [ckpt_cb, launch.registrar(ckpt_cb), first]
        model.train(EPOCHS, dataset, callbacks=callbacks, initial_epoch=start.initial_epoch, dataset_sink_mode=False)
        self.steps += 1
        while self.highest_step(launch.id) < self.steps:  # the thread that records it may be behind
            time.sleep(LOOK_AGAIN_SECONDS)
        return first.at - began

    def highest_step(self, launch_id: str) -> int:
        with self.catalog.database.read() as connection:
            return tallies.highest_steps(connection, reads.run_id(connection, RUN) or 0)[launch_id]


def run(work: Path, *, quick: bool) -> Found:
    """Measure in one directory for each way and size."""
    network.on_cpu()
    found = Found()
    for (ranks, saves), budget in (QUICK_SIZES if quick else SIZES).items():
        records = ranks * saves
        whose = {ALONE: None, "beside those of another run": OTHER, "beside those of its own past": RUN}
        jobs = {}
        for who, past in whose.items():
            home = work / f"{records}" / str(past)
            home.mkdir(parents=True)
            os.chdir(home)  # MindSpore leaves files there
            jobs[who] = Job(home, past, ranks, saves)
        taken, notes = turns(
            {who: partial(Job.train, job) for who, job in jobs.items()}, repeats=REPEATS, warm_up=WARM_UP
        )
        row = found.add(Row(TASK, "to the first step, records there", records, taken, notes))
        for who in (who for who, past in whose.items() if past):
            name = f"first step beside {records:,} records, {who.removeprefix('beside those ')} / {ALONE}"
            found.check(Budget(name, row.ratio(who, ALONE).median, budget))
    return found


if __name__ == "__main__":
    run_alone(run)
