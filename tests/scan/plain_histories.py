"""Kinds of histories of plain MindSpore, drawn by a seed: what a script says, how it was started, what is left."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ckptstore.evidence.unregistered import FoundFile
from ckptstore.resume.lineage import lineage
from ckptstore.scan.copies import copies_among
from tests.resume.builders import launch
from tests.scan.plain_mindspore import SECOND, Job, Saver, Script, Start, Written

PREFIXES = ("net", "net", "net", "lenet5_2-3", "run-2_v3-10_4", "20240101_3", "net_1", "a-1_1")


@dataclass(frozen=True)
class History:
    """What is left of a history and is scanned, the ranks that the scan is told, and the truth.

    `parents` are launch and step that each launch restored (None: it began afresh); `is_hidden`: see `Kind`.
    """

    script: Script
    found: tuple[FoundFile, ...]
    truth: Mapping[str, Written]
    parents: Mapping[int, tuple[int, int] | None]
    world_size: int | None
    is_hidden: bool

    def state(self, path: str) -> tuple[int, int]:
        """Launch and step of the state that a file is of."""
        return self.truth[path].launch, self.truth[path].state.step

    @property
    def newest(self) -> tuple[int, int] | None:
        """Launch and step of the state that a catalog goes on from which watched all of it."""
        states: dict[int, dict[int, set[int]]] = {}
        for of, step, rank in ((*self.state(file.path), self.truth[file.path].rank) for file in self.found):
            states.setdefault(of, {}).setdefault(step, set()).add(rank)
        launches = [
            launch(str(order), order, parent=(str(parent[0]), parent[1]) if parent else None)
            for order, parent in self.parents.items()
        ]
        for segment in lineage(launches, {str(order): min(steps) for order, steps in states.items()}):
            steps = states[segment.launch.order]
            whole = [step for step, ranks in steps.items() if segment.has(step) and len(ranks) == self.script.ranks]
            if whole:
                return segment.launch.order, max(whole)
        return None


@dataclass(frozen=True)
class Kind:
    """How to draw a history: what the script says beside the usual, the ways of its restarts, and its ends.

    `is_ordinary`: nothing but launches as they should be. `is_hidden`: what falsifies the counter leaves no trace, so
    that only the length of the dataset tells. `restarts`: how many there may be. `has_copies`: a part of the files lies
    in a second directory too.
    """

    script: Callable[[random.Random, int], Mapping[str, Any]] = lambda chance, length: {}
    restarts: tuple[int, ...] = (0, 1, 1, 2, 3)
    ways: tuple[str, ...] = ("exact",)
    at_epoch_end: bool | None = None
    ends: tuple[str, ...] = ("kill", "kill", "kill", "finish")
    back: tuple[int, ...] = (0,)
    tidied: tuple[float, ...] = (0.0,)
    keep: tuple[int, ...] = tuple(range(1, 11))
    prefixes: tuple[str, ...] = ("net",)
    savers: tuple[int, ...] = (1,)
    lost: tuple[str, ...] = ("",)
    copied: tuple[str, ...] = ("kept",)
    is_ordinary: bool = False
    is_hidden: bool = False
    has_copies: bool = False


def _loss_scale(chance: random.Random, length: int) -> dict[str, Any]:
    return {"loss_scale": True, "overflows": chance.choice([0.02, 0.1, 0.3])}


def _sinks(chance: random.Random, length: int) -> dict[str, Any]:
    size = chance.choice([length, chance.randint(1, length), chance.choice([2, 5, 10])])
    return {"sink": chance.choice(["graph", "graph", "pynative"]), "sink_size": size}


def _anything(chance: random.Random, length: int) -> dict[str, Any]:
    parts = [_loss_scale, _sinks, lambda *_: {"counted": False}, lambda *_: {"counts_on": True}]
    parts += [lambda *_: {"gathers": 3}, lambda *_: {"appends": "plain"}, lambda *_: {"appends": "base"}]
    said: dict[str, Any] = {}
    for part in chance.sample(parts, chance.choice([0, 0, 1, 2])):
        said |= part(chance, length)
    return said


_ENDS = ("kill", "kill", "finish", "raise", "raise in the next", "raise at an epoch's begin", "exit", "signal", "ttp")
_RAISES = ("raise", "raise in the next", "raise in the next", "raise at an epoch's begin")
_WAYS = ("exact", "again", "rest left out", "zero", "zero exact", "anew")
_LOST = ("", "oldest", "newest", "any", "any", "last alone", "first launch", "one rank", "kind")

KINDS: dict[str, Kind] = {
    "first launch": Kind(restarts=(0,), is_ordinary=True),
    "first launch, `keep_checkpoint_max=1`": Kind(restarts=(0,), keep=(1,), is_ordinary=True),
    "relaunched at an epoch's end": Kind(restarts=(1, 1, 2, 3), at_epoch_end=True, is_ordinary=True),
    "relaunched in mid-epoch, `set_init_step`": Kind(restarts=(1, 1, 2, 3), at_epoch_end=False, is_ordinary=True),
    "prefixes that end in digits, two ModelCheckpoints": Kind(prefixes=PREFIXES, savers=(1, 1, 2), is_ordinary=True),
    "breakpoints (`exception_save`)": Kind(ends=(*_RAISES, "kill"), is_ordinary=True),
    "graceful exits": Kind(ends=("exit", "signal", "kill"), restarts=(0, 1, 2)),
    "TTP": Kind(ends=("ttp", "ttp", "kill")),
    "`append_info`": Kind(script=lambda chance, _: {"appends": chance.choice(["plain", "base"])}),
    "relaunched with `initial_epoch=0`": Kind(restarts=(1, 1, 2), ways=("zero", "zero", "zero exact")),
    "an epoch begun again": Kind(restarts=(1, 1, 2), ways=("again",)),
    "the rest of an epoch left out": Kind(restarts=(1, 1, 2), ways=("rest left out",), ends=("kill", *_RAISES)),
    "gone back to an older file": Kind(restarts=(1, 2, 3), back=(0, 1, 2)),
    "begun anew beside older files": Kind(restarts=(1, 2, 3), ways=("anew", "exact")),
    "written over by later starts": Kind(
        script=lambda *_: {"numbers": False}, restarts=(1, 2, 3), ways=("anew", "anew", "exact")
    ),
    "older files deleted between launches": Kind(restarts=(1, 2, 3), tidied=(0.0, 0.5, 1.0), ends=_ENDS),
    "a callback that sets the count": Kind(script=lambda *_: {"counts_on": True}, restarts=(1, 1, 2)),
    "network loaded without its optimizer": Kind(
        script=lambda *_: {"weights_alone": True},
        restarts=(1, 1, 2),
        ways=("rest left out",),
        is_hidden=True,
    ),
    "loss scale, no update skipped": Kind(script=lambda *_: {"loss_scale": True}),
    "loss scale, updates skipped": Kind(script=_loss_scale),
    "gathered gradients": Kind(script=lambda chance, _: {"gathers": chance.choice([2, 3, 4])}),
    "gathered gradients without a trace": Kind(
        script=lambda chance, _: {"gathers": chance.choice([2, 3, 4]), "is_seen": False}, is_hidden=True
    ),
    "optimizers without a counter": Kind(script=lambda *_: {"counted": False}),
    "`sink_size`": Kind(script=_sinks),
    "`sink_size` on a CPU": Kind(script=lambda chance, length: {"sink": "cpu", "sink_size": chance.randint(1, length)}),
    "files deleted by hand": Kind(lost=_LOST[1:], prefixes=PREFIXES),
    "copied beside itself": Kind(restarts=(0, 1, 1, 2), has_copies=True),
    "copied, times lost": Kind(copied=("alike", "shuffled", "by path")),
    "anything at once": Kind(
        script=_anything,
        ways=("exact", "exact", *_WAYS),
        ends=_ENDS,
        back=(0, 0, 0, 1, 2),
        tidied=(0.0, 0.0, 0.0, 0.5, 1.0),
        prefixes=PREFIXES,
        savers=(1, 1, 2),
        lost=("", "", *_LOST),
        copied=("kept", "kept", "alike", "shuffled", "by path"),
    ),
}


def draw(kind: Kind, seed: int, spread: float = 0.0) -> History:
    """A history of a kind, the same for the same seed; its ranks save that part of a save interval apart."""
    chance = random.Random(seed)  # noqa: S311 — a test
    length = chance.choice([chance.randint(1, 12), chance.randint(5, 40)])
    ranks = chance.choice([1, 1, 1, 2, 2, 3])
    said = kind.script(chance, length)
    whole = length * chance.choice([1, 1, 2])
    keep = chance.choice(kind.keep)
    families = [chance.choice(kind.prefixes), "other"][: chance.choice(kind.savers)]
    saves = [Saver(name, chance.choice([1, chance.randint(1, length), whole]), keep) for name in families]
    script = Script(length, ranks, tuple(saves), rank_directories=ranks > 1 or chance.random() < 0.5, **said)
    job = Job(script, chance, spread)
    for place in range(chance.choice(kind.restarts) + 1):
        _start(job, kind, is_first=place == 0)
    _lose(job, chance.choice(kind.lost), chance)
    files = job.found(_times(job, chance.choice(kind.copied), chance))
    size = chance.choice([None, ranks])
    history = History(script, tuple(files.values()), job.truth(), job.parents, size, kind.is_hidden)
    return with_copies(history, chance) if kind.has_copies else history


def _start(job: Job, kind: Kind, *, is_first: bool) -> None:
    chance, script = job.chance, job.script
    calls = script.named_length // script.stride
    end = chance.choice(kind.ends)
    longest = min(3 * calls, 60)
    length = chance.randint(1, longest)
    if is_first and kind.restarts != (0,):  # so that there is something to start from
        length = max(length, min(-(-max(saver.period for saver in script.savers) // script.stride), longest))
    if end == "finish":
        length = calls * chance.choice([1, 1, 2])
    if kind.at_epoch_end and is_first:
        length = max(length, calls)
    late = chance.sample(range(script.ranks), chance.randint(0, script.ranks - 1)) if end != "finish" else ()
    at_end = kind.at_epoch_end if kind.at_epoch_end is not None else chance.random() < 0.3
    job.launch(
        Start(
            calls=length,
            way=chance.choice(kind.ways),
            end=end,
            back=chance.choice(kind.back),
            tidied=chance.choice(kind.tidied),
            at_epoch_end=at_end,
            late=frozenset(late) if chance.random() < 0.5 else frozenset(),
        )
    )
    leftover = [each for each in job.files() if each[0].startswith("exits/")]
    if leftover and chance.random() < 0.5:
        job.remove(leftover)  # else MindSpore goes back to it at each start


def _lose(job: Job, how: str, chance: random.Random) -> None:
    """Somebody tidies up."""
    files = job.files()
    of = {each: job.disk[each[0]][each[1]] for each in files}
    some = chance.randint(0, len(files) - 1) if files else 0
    share = chance.choice([0.2, 0.5, 0.9])
    last = max((one.launch for one in of.values()), default=0)
    rank = chance.randrange(job.script.ranks)
    kinds = sorted({one.kind.value for one in of.values()})
    gone: dict[str, Callable[[tuple[str, str]], bool]] = {
        "": lambda each: False,
        "oldest": lambda each: each in files[:some],
        "newest": lambda each: each in files[len(files) - some :],
        "any": lambda each: chance.random() < share,
        "last alone": lambda each: each not in files[-job.script.ranks :],
        "first launch": lambda each: of[each].launch < last,
        "one rank": lambda each: of[each].rank == rank,
        "kind": lambda each: of[each].kind.value == kinds[0] and len(kinds) > 1,
    }
    job.remove([each for each in files if gone[how](each)])


def _times(job: Job, how: str, chance: random.Random) -> dict[tuple[str, str], int]:
    """What a copy makes of the times of files: kept, all alike, or those of the copying in some order."""
    files = sorted(job.files())
    if how == "kept":
        return {}
    if how == "shuffled":
        chance.shuffle(files)
    return {each: SECOND * (1 if how == "alike" else 5 * place) for place, each in enumerate(files)}


def with_copies(history: History, chance: random.Random) -> History:
    """The same with a part of its files copied to a directory beside it, with their times or with those of the copying.

    Copies are found before launches are made; `copies_among` reads bytes, which are the same for copies only.
    """
    share, keeps_times = chance.choice([0.2, 0.5, 1.0]), chance.random() < 0.5
    newest = max((file.mtime_ns for file in history.found), default=0)
    copies = [
        replace(
            file,
            path=f"/backup{file.path}",
            family=f"backup/{file.family}",
            mtime_ns=file.mtime_ns if keeps_times else newest + (place + 3) * SECOND,
        )
        for place, file in enumerate(history.found)
        if chance.random() < share
    ]
    truth = {**history.truth, **{each.path: history.truth[each.path.removeprefix("/backup")] for each in copies}}
    every = (*history.found, *copies)
    told = copies_among(every, lambda path, other: truth[path] == truth[other])
    return replace(history, found=tuple(file for file in every if file.path not in told), truth=truth)


def with_some(history: History, seed: int) -> History:
    """The same with a part of its files."""
    chance = random.Random(seed)  # noqa: S311 — a test
    part = chance.choice([0.1, 0.3, 0.5, 0.8])
    return replace(history, found=tuple(file for file in history.found if chance.random() < part))
