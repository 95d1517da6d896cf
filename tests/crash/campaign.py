"""Processes that register are killed at moments nobody chose; afterwards catalog, journals and disk must agree.

Launch after launch, the two ranks of a run join, ask where to start, save and register in a loop, and print where they
start and the path of each file that `register` returned for. Each gets SIGKILL, a random time after it was started or
after some saves, in the middle of whatever it does. Every other file is written straight to its name, so that some are
cut. As the ranks of a job wait for each other in every step, none begins a save before the other has begun the one
before it: at most two are of one rank only.
"""

import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from ckptstore.api import Catalog, connect
from ckptstore.core.events import Event, FileRecorded, LaunchStarted, from_lines
from ckptstore.core.model import Checkpoint, FileState
from ckptstore.journal import jsonl
from ckptstore.journal.sync import found_below
from tests import ckpt_bytes
from tests.crash.servers import new_database
from tests.crash.table import Row

RANKS = 2
_EXPECTED = ("was not taken into the catalog: ", "; incomplete since then: ")
"""What is said of a file that is cut, and of saves in which a rank was killed."""

WORKER = """
import os, sys, time
from pathlib import Path
import ckptstore
from ckptstore.core.model import Kind
from tests import ckpt_bytes
url, directory, launch_id, rank = sys.argv[1:]
launch = ckptstore.connect(url).join("run", rank=int(rank), world_size=2, launch_id=launch_id)
launch.set_steps_per_epoch(10)
plan = launch.resolve()
step = plan.global_step if plan else 0
for each in plan.ranks if plan else ():
    content = Path(each.source.path).read_bytes()
    if content != ckpt_bytes.checkpoint(step, step):
        print("CUT", each.source.path, flush=True)
print("PLAN", step, plan.launch.id if plan else None, flush=True)
folder = Path(directory) / f"rank_{rank}"
folder.mkdir(parents=True, exist_ok=True)
launch.add_source(str(folder), kind=Kind.PERIODIC, prefix=f"net_{launch_id}", breakpoint_prefix="net", names_before=())
begun, other = (Path(directory) / f"{launch_id}.rank_{each}.begun" for each in (int(rank), 1 - int(rank)))
begun.touch()
while True:
    while not other.exists() or begun.stat().st_size > other.stat().st_size:
        time.sleep(0.001)
    with begun.open("a") as counter:
        counter.write(".")
    step += 1
    path = folder / f"net_{launch_id}-{(step - 1) // 10 + 1}_{(step - 1) % 10 + 1}.ckpt"
    if step % 2:
        content = ckpt_bytes.checkpoint(step, step)
        with path.open("wb", buffering=0) as file:
            for start in range(0, len(content), 40):
                file.write(content[start : start + 40])
                os.fsync(file.fileno())
    else:
        os.rename(ckpt_bytes.write(path.with_suffix(".tmp"), step, step), path)
    launch.register(path, global_step=step, optimizer_step=step)
    print("HAS", path, flush=True)
"""


@dataclass
class Outcome:
    """What a campaign did, and what it found wrong: files that are lost, plans that are wrong, and anything else.

    `awaited` is how many files were registered before their ranks could be killed: `registered` cannot be fewer.
    """

    kills: int = 0
    awaited: int = 0
    registered: int = 0
    cut: int = 0
    seconds: float = 0.0
    lost: list[str] = field(default_factory=list)
    wrong_plans: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def is_right(self) -> bool:
        """Whether nothing was found."""
        return not (self.lost or self.wrong_plans or self.wrong)


@dataclass(frozen=True)
class Moment:
    """So many seconds after a process was started or, if `saves` is a number, after it knew its plan and saved."""

    saves: int | None
    seconds: float


@dataclass(frozen=True)
class Died:
    """What a killed process had printed, complained of, and how it ended."""

    printed: tuple[str, ...]
    complaints: str
    code: int

    def said(self, word: str) -> list[str]:
        """The rest of the lines that begin with a word."""
        return [line.removeprefix(f"{word} ") for line in self.printed if line.startswith(f"{word} ")]


def campaign(
    url: str, directory: Path, *, kills: int, seed: int, longest: float = 0.6, within: float = 3600.0
) -> Outcome:
    """Kill so many processes, two at a time, each at a moment of its own: `longest` is the most seconds of one.

    The campaign ends sooner if it would take longer than `within` seconds: `kills` of the outcome says how many there
    were.
    """
    chance = random.Random(seed)  # noqa: S311 — moments, not secrets
    outcome = Outcome()
    began = time.monotonic()
    returned: set[str] = set()
    newest = "0 None"
    connect(url)
    while outcome.kills < kills and time.monotonic() - began < within:
        launch = f"L{outcome.kills // RANKS:05}"
        begun = [chance.random() < 0.8 for _ in range(RANKS)]
        saves = chance.randint(0, 6) if all(begun) else 0  # a rank saves no more than one step ahead of the other
        moments = [Moment(saves if each else None, chance.uniform(0, longest)) for each in begun]
        with ThreadPoolExecutor(RANKS) as pool:
            commands = [[sys.executable, "-c", WORKER, url, str(directory), launch, str(rank)] for rank in range(RANKS)]
            died = list(pool.map(_live, commands, moments))
        for rank, each in enumerate(died):
            complaints = [line for line in each.complaints.splitlines() if not any(said in line for said in _EXPECTED)]
            if each.code != -signal.SIGKILL or complaints:
                outcome.wrong.append(f"rank {rank} of {launch} ended with {each.code}: {complaints[-5:]}")
            outcome.wrong_plans += [f"{launch} was given {path}, which is cut" for path in each.said("CUT")]
            returned |= {path for path in each.said("HAS") if path.endswith(".ckpt")}
        plans = {plan for each in died for plan in each.said("PLAN")}
        if len(plans) > 1:
            outcome.wrong_plans.append(f"the ranks of {launch} were given {plans}")
        outcome.wrong_plans += [f"{launch} starts at {plan}, not {newest}" for plan in plans - {newest}]
        newest = newest_of(directory, launch, next(iter(plans), newest))
        outcome.kills += RANKS
        outcome.awaited += RANKS * saves
    outcome.registered = len(returned)
    outcome.cut = sum(not is_whole(path) for path in directory.glob("rank_*/*.ckpt"))
    look(url, directory, returned, newest, outcome)
    outcome.seconds = round(time.monotonic() - began, 1)
    return outcome


def _live(command: list[str], moment: Moment) -> Died:
    """A process that is killed at a moment."""
    worker = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert worker.stdout is not None
    before: list[str] = []
    if moment.saves is not None:
        for line in worker.stdout:
            before.append(line.rstrip("\n"))
            if sum(each.startswith(("PLAN ", "HAS ")) for each in before) > moment.saves:
                break
    timer = threading.Timer(moment.seconds, worker.send_signal, [signal.SIGKILL])
    timer.start()
    printed, complaints = worker.communicate()
    timer.cancel()
    return Died((*before, *printed.splitlines()), complaints, worker.returncode)


def newest_of(directory: Path, launch: str, started: str, ranks: int = RANKS, *, are_replicas: bool = False) -> str:
    """Where the next launch has to start, by nothing but the files: the newest step that all ranks have whole.

    That one of them has whole, where they are replicas.
    """
    steps = [
        {step_of(path) for path in (directory / f"rank_{rank}").glob(f"net_{launch}-*.ckpt") if is_whole(path)}
        for rank in range(ranks)
    ]
    common = set.union(*steps) if are_replicas else set.intersection(*steps)
    return f"{max(common)} {launch}" if common else started


def step_of(path: Path) -> int:
    """The step in a file's name."""
    epoch, place = map(int, path.stem.rpartition("-")[2].split("_"))
    return (epoch - 1) * 10 + place


def _launch(path: str) -> str:
    return Path(path).name.removeprefix("net_").partition("-")[0]


def is_whole(path: Path) -> bool:
    """Whether a file has all bytes of its step."""
    return path.read_bytes() == ckpt_bytes.checkpoint(step_of(path), step_of(path))


def look(url: str, directory: Path, returned: set[str], newest: str | None, into: Outcome) -> None:
    """After `sync`: what the catalog, the journals, the disk and those who registered do not agree on.

    `newest` is the step and launch that the plan has to be of (None: whichever).
    """
    catalog = connect(url)
    catalog.sync(directory)
    plan = _plan(catalog)
    if newest is not None and plan[0] != newest:
        into.wrong_plans.append(f"the plan is {plan[0]}, not {newest}")
    into.wrong_plans += [f"{path} is in the plan, and is cut" for path in plan[1:] if not is_whole(Path(path))]
    recorded = _complete(catalog)
    into.lost += [f"register returned for {path}, the catalog lacks it" for path in sorted(returned - recorded.keys())]
    told: list[Event] = []
    for path in found_below([str(directory)])[0]:
        told += from_lines(jsonl.read(path).entries, jsonl.directory_of(path))[0]
    files = [event.file for event in told if isinstance(event, FileRecorded)]
    journalled = {file.path for file in files if file.state is FileState.COMPLETE}
    into.lost += [f"{path} is in a journal, not in the catalog" for path in sorted(journalled - recorded.keys())]
    into.lost += [f"{path} is in the catalog, in no journal" for path in sorted(recorded.keys() - journalled)]
    there = {str(path): is_whole(path) for path in directory.glob("rank_*/*.ckpt")}
    unknown = [path for path, has_all in there.items() if has_all and path not in recorded]
    # What no rank of a first launch has registered anything beside may be another program's.
    own = {file.launch for file in recorded.values()}
    own |= {event.launch.id for event in told if isinstance(event, LaunchStarted) and event.launch.parent}
    into.lost += [f"{path} is whole, and not in the catalog" for path in unknown if _launch(path) in own]
    into.wrong += [f"{path} is not as recorded" for path in recorded if not there.get(path)]
    with tempfile.TemporaryDirectory() as home:
        rebuilt = connect(str(Path(home) / "catalog.db"))
        rebuilt.scan(directory)
        anew = _complete(rebuilt)
        into.lost += [f"a catalog made anew lacks {path}" for path in sorted(recorded.keys() - anew.keys())]
        into.wrong += [
            f"a catalog made anew has {path} as {anew[path]}, not {recorded.get(path)}"
            for path in sorted(anew)
            if anew[path] != recorded.get(path)
        ]
        if _plan(rebuilt) != plan:
            into.wrong_plans.append(f"a catalog made anew has the plan {_plan(rebuilt)}, not {plan}")


def _complete(catalog: Catalog) -> dict[str, Checkpoint]:
    return {file.path: file for file in catalog.files("run") if file.state is FileState.COMPLETE}


def _plan(catalog: Catalog) -> list[str]:
    """The step and launch of the plan, and its files; those of none."""
    plan = catalog.resolve("run").plan
    if plan is None:
        return ["0 None"]
    return [f"{plan.global_step} {plan.launch.id}", *(each.source.path for each in plan.ranks)]


def run(database: str, *, kills: int, within: float, seed: int = 1) -> tuple[Row, Outcome]:
    """A campaign on a database of its own, "sqlite" or "postgresql", and its row of the table of results."""
    with tempfile.TemporaryDirectory() as home, ExitStack() as stack:
        url = str(Path(home) / "catalog.db") if database == "sqlite" else stack.enter_context(new_database())
        outcome = campaign(url, Path(home) / "ckpt", kills=kills, seed=seed, within=within)
    name = {"sqlite": "SQLite", "postgresql": "PostgreSQL"}[database]
    row = Row(
        what=f"SIGKILL of a rank that saves and registers, {name}",
        times=outcome.kills,
        lost=len(outcome.lost),
        wrong_plans=len(outcome.wrong_plans),
        seconds=round(outcome.seconds),
    )
    return row, outcome
