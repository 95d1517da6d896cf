"""Generated jobs: several launches of up to 64 ranks, what they saved, and what became of the files since."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from ckptstore.core.model import Checkpoint, Content, FileState, Kind, Launch, Observed, Resolution, Rule, State
from ckptstore.core.replicas import Layout, data_parallel, from_groups, stand_alone
from ckptstore.resume import resolver
from ckptstore.resume.lineage import lineage
from tests.oracle import broken_rules
from tests.resume.builders import launch as make_launch

Fate = tuple[dict[str, Any], Callable[[Checkpoint], Observed | None]]


def _as_recorded(file: Checkpoint) -> Observed:
    return Observed(file.size)


FATES: dict[str, Fate] = {
    "gone": ({}, lambda _: None),
    "cut": ({}, lambda file: Observed((file.size or 0) - 1)),
    "rewritten": ({}, lambda file: Observed(file.size, "other", mtime_ns=2)),
    "rewritten the same": ({}, lambda file: Observed(file.size, file.digest, mtime_ns=2)),
    "touched": ({"digest": None}, lambda file: Observed(file.size, mtime_ns=2)),
    "other bytes": ({}, lambda file: Observed(file.size, "other")),
    "unreadable": ({}, lambda _: Observed(None, unreadable="Permission denied")),
    "in progress": ({"state": FileState.IN_PROGRESS, "size": None, "digest": None, "mtime_ns": None}, _as_recorded),
    "damaged": ({"state": FileState.DAMAGED}, _as_recorded),
    "damaged size": ({"state": FileState.DAMAGED, "problem": Rule.SIZE_MISMATCH}, _as_recorded),
    "quarantined": ({"quarantine": "the loss was nan"}, _as_recorded),
    "marked missing": ({"state": FileState.MISSING}, lambda _: None),
    "back": ({"state": FileState.MISSING}, _as_recorded),
}
"""What may happen to a whole file: what the catalog comes to know of it, and what the disk shows then."""
HARM = sorted(FATES.keys() - {"back", "rewritten the same", "in progress"})
"""What may happen to a file that is finished; it never is in progress again."""


@dataclass(frozen=True)
class Job:
    """What the catalog knows of a run, and what the disk shows of its files, by path."""

    launches: tuple[Launch, ...]
    files: tuple[Checkpoint, ...]
    disk: dict[str, Observed]

    @property
    def newest(self) -> Launch:
        return max(self.launches, key=lambda launch: launch.order)

    def strike(self, index: int, fate: str) -> Job:
        """The job after something happened to one of its files; nothing new happens to one that has been struck."""
        file = self.files[index]
        if broken_rules(file, self.disk) or file.state is not FileState.COMPLETE or file.quarantine:
            return self
        known, shown = FATES[fate]
        now = shown(file)
        disk = {path: each for path, each in self.disk.items() if path != file.path}
        if now is not None:
            disk[file.path] = now
        struck = replace(file, **known)
        return Job(self.launches, (*self.files[:index], struck, *self.files[index + 1 :]), disk)


def candidates(job: Job, of: str | None = None) -> list[State]:
    """What `ops` hands to the resolver: the states of each part of the lineage (that of `of`), newest first."""
    steps: dict[str, list[int]] = {}
    proves: set[str] = set()
    of_state: dict[tuple[str, int], list[Checkpoint]] = {}
    for file in job.files:
        of_state.setdefault((file.launch, file.global_step), []).append(file)
        if file.global_step > 0:
            steps.setdefault(file.launch, []).append(file.global_step)
            proves |= {file.launch} if file.size is not None else set()
    first_saves = {launch: min(every) if launch in proves else None for launch, every in steps.items()}
    found = []
    for segment in lineage(job.launches, first_saves, of=of):
        steps = sorted((step for launch, step in of_state if launch == segment.launch.id), reverse=True)
        found += [
            State(launch=segment.launch, global_step=step, files=tuple(of_state[segment.launch.id, step]))
            for step in steps
            if segment.last_step is None or step <= segment.last_step
        ]
    return found


def resolve(job: Job, world_size: int | None = None, *, take_quarantined: bool = False) -> Resolution:
    query = resolver.Query(world_size=world_size, take_quarantined=take_quarantined)
    return resolver.resolve("run", candidates(job), lambda _: job.disk, query)


@st.composite
def layouts(draw: st.DrawFn, world: int) -> Layout:
    how = draw(st.sampled_from(["none", "data parallel", "strided", "blocks", "uneven"]))
    if how == "data parallel":
        return data_parallel(world)
    if how == "none" or world == 1:
        return stand_alone()
    count = draw(st.integers(1, max(1, world // 2)))
    if how == "strided":
        label = [rank % count for rank in range(world)]
    elif how == "blocks":
        label = [rank * count // world for rank in range(world)]
    else:
        chance = random.Random(draw(st.integers(0, 999)))  # noqa: S311 — hypothesis draws the seed
        label = [chance.randrange(count + 1) for _ in range(world)]
    groups = [[rank for rank in range(world) if label[rank] == one] for one in range(count)]
    return from_groups([group for group in groups if group], world, "stated")


@st.composite
def _launches(draw: st.DrawFn) -> list[tuple[Launch, list[int]]]:
    """Launches of one run with the steps that each saved; they go on, go back, start afresh, or never say."""
    world = draw(st.one_of(st.integers(1, 8), st.sampled_from([8, 12, 16, 32, 64])))
    layout = draw(layouts(world))
    found: list[tuple[Launch, list[int]]] = []
    for order in range(1, draw(st.integers(1, 4)) + 1):
        if found and draw(st.integers(0, 7)) == 0:
            world = draw(st.integers(1, 8))
            layout = draw(layouts(world))
        saved = [(launch.id, step) for launch, steps in found for step in steps if step > 0]
        how = draw(st.sampled_from(["goes on", "goes on", "goes back", "is asked to go back", "afresh", "never says"]))
        parent, base = None, 0
        if saved and how == "goes on":
            parent = saved[-1]
        elif saved and how.endswith("back"):
            parent = draw(st.sampled_from(saved))
        elif saved and how == "never says":
            base = draw(st.sampled_from([0, max(step for _, step in saved)]))
        base = parent[1] if parent else base
        offsets = draw(st.lists(st.integers(0 if parent else 1, 6), max_size=3, unique=True))
        steps = sorted(base + offset for offset in offsets)
        if draw(st.integers(0, 9)) == 0:
            steps = [0, *steps]
        decided = how != "never says"
        name = draw(st.sampled_from([f"L{order}", f"z{9 - order}"]))  # their names tell nothing of their order
        made = make_launch(name, order, world, layout, parent, decided=decided)
        found.append((replace(made, branched=parent is not None and how == "is asked to go back"), steps))
    return found


@st.composite
def _saved(draw: st.DrawFn, of: Launch, step: int) -> list[Checkpoint]:
    """The files of one launch and step, of one callback or two, of all ranks or some."""
    groups = of.layout.partition(of.world_size)
    files: list[Checkpoint] = []
    for callback in range(draw(st.sampled_from([1, 2]))):
        kind = draw(st.sampled_from([Kind.PERIODIC, Kind.GRACEFUL_EXIT, *Kind]))
        content = draw(st.sampled_from([Content.FULL] * 5 + [Content.SHARE, Content.WEIGHTS]))
        who = draw(st.sampled_from(["all", "all", "one of each group", "some"]))
        chance = random.Random(draw(st.integers(0, 999)))  # noqa: S311 — hypothesis draws the seed
        folder = "tft_saved_checkpoints-step_1_tmp/" if kind is Kind.TTP and draw(st.booleans()) else ""
        odd = draw(st.sampled_from([None, None, 5, 5000]))
        form = draw(st.sampled_from(["ckpt", "ckpt", "safetensors"]))
        for place, group in enumerate(groups):
            savers = {
                "all": list(group),
                "one of each group": [chance.choice(group)],
                "some": [rank for rank in group if chance.random() < 0.7],
            }[who]
            for rank in savers:
                size = (
                    10_000 + 100 * place + 7 * callback + 50 * (form == "ckpt")
                )  # of several pipeline stages, each of its own size
                if content is Content.SHARE:
                    size = 50 + rank
                elif odd is not None and chance.random() < 0.3:
                    size += odd
                files.append(
                    Checkpoint(
                        run=of.run,
                        launch=of.id,
                        kind=kind,
                        global_step=step,
                        rank=rank,
                        path=f"/{of.id}/{step}/{folder}rank_{rank}/{callback}.{form}",
                        size=size,
                        digest=f"digest-{of.id}-{step}-{rank}-{callback}",
                        mtime_ns=1,
                        content=content,
                        format=form,
                    )
                )
    return files


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    launches = draw(_launches())
    every = [draw(_saved(launch, step)) for launch, steps in launches for step in steps]
    files = tuple(file for save in every for file in save)
    read = draw(st.integers(0, 3)) == 0
    disk = {file.path: Observed(file.size, file.digest if read else None) for file in files}
    died = draw(st.sampled_from(range(10)))  # in its first asynchronous save; most did not
    ids = {launch.id for launch, _ in launches[died : died + 1]}
    files = tuple(replace(file, **FATES["in progress"][0]) if file.launch in ids else file for file in files)
    job = Job(tuple(launch for launch, _ in launches), files, disk)
    for _ in range(draw(st.sampled_from([0, 1, 2, 3])) if files else 0):
        newest = draw(st.integers(0, 3)) > 0  # what was saved last is what decides
        first = max(0, len(files) - len(every[-1])) if newest and every[-1] else 0
        index = draw(st.integers(first, len(files) - 1))
        fate = draw(st.sampled_from(["gone", "gone", "cut", "unreadable", *sorted(FATES)]))
        struck = [index]
        if draw(st.integers(0, 3)) == 0:  # the whole replica group
            target = files[index]
            of = next(launch for launch, _ in launches if launch.id == target.launch)
            group = next(group for group in of.layout.partition(of.world_size) if target.rank in group)
            struck = [
                place
                for place, file in enumerate(files)
                if (file.launch, file.global_step) == (target.launch, target.global_step) and file.rank in group
            ]
        for place in struck:
            job = job.strike(place, fate)
    return job
