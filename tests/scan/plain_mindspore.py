"""A simulator of scripts of plain MindSpore: what they leave on a disk, of which the truth is known.

It names, numbers and deletes files as MindSpore does, and shares no code with what it is held against but the reading
of names.
"""

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from ckptstore.core.classify import prefixes
from ckptstore.core.model import Kind
from ckptstore.evidence.unregistered import FoundFile
from tests.scan.builders import unregistered

SECOND = 1_000_000_000
APART = (SECOND // 100, SECOND // 10, SECOND // 2)  # how far apart ranks save
EXITS, FAULTS = "exits", "ttp_saved_checkpoints-step_"


@dataclass(frozen=True)
class Saver:
    """A ModelCheckpoint: what it calls its files, how often it saves, and how many it keeps."""

    family: str
    period: int
    keep: int = 100


@dataclass(frozen=True)
class Script:
    """What a training script says at each of its starts."""

    steps_per_epoch: int
    ranks: int
    savers: tuple[Saver, ...]
    sink: str = ""  # how data sinks: "graph", "pynative"; on a "cpu" MindSpore only takes the size for its names
    sink_size: int = 0  # steps
    counted: bool = True  # the optimizer has a counter
    gathers: int = 1  # batches that make one update
    is_seen: bool = True  # the files show that they do
    loss_scale: bool = False  # the files hold a loss scale
    overflows: float = 0.0  # the probability that a step does, and brings no update
    weights_alone: bool = False  # a restart loads the network without its optimizer
    counts_on: bool = False  # a callback of the user's sets MindSpore's count to where it restarts
    appends: str = ""  # asked of `append_info`, with the restart's step as its base ("base") or without ("plain")
    rank_directories: bool = True
    numbers: bool = True  # MindSpore gives each launch new names: not if `prefix` or `directory` is a callable

    @property
    def stride(self) -> int:
        """Steps of one call of the callbacks."""
        return self.sink_size if self.sink == "graph" else 1

    @property
    def named_length(self) -> int:
        """Steps of what MindSpore calls an epoch."""
        return self.sink_size if self.sink in ("graph", "pynative") else self.steps_per_epoch

    @property
    def batch_num(self) -> int:
        """What MindSpore counts steps of an epoch by."""
        return self.sink_size if self.sink else self.steps_per_epoch

    @property
    def updates_every_step(self) -> bool:
        """What a reader of the files finds."""
        return not self.loss_scale and (self.gathers == 1 or not self.is_seen)


@dataclass(frozen=True)
class Start:
    """One launch: from which state, how it goes on in the data, for how many calls of the callbacks, and its end.

    `way`: "exact" (`set_init_step` and the epoch it is in), "again" (the named epoch from its beginning), "rest left
    out" (the next epoch), "zero" (`initial_epoch=0`), "zero exact" (and `set_init_step`), "anew" (with nothing that was
    saved).
    """

    calls: int
    way: str = "exact"
    end: str = "kill"
    back: int = 0
    at_epoch_end: bool = False
    tidied: float = 0.0  # the part of the older files that somebody deletes before it
    late: frozenset[int] = frozenset()  # ranks that do not come to the last save


@dataclass(frozen=True)
class State:
    """What training stands at: steps done, updates, the epoch as MindSpore calls it, and the steps done in it."""

    step: int = 0
    count: int = 0
    epoch: int = 0
    done: int = 0


@dataclass(frozen=True)
class Written:
    """A file as it was written: the launch, rank and state that it is of, its place among all that were written."""

    launch: int
    rank: int
    state: State
    kind: Kind
    mtime_ns: int
    order: int
    info: Mapping[str, object] = field(default_factory=dict)


class Job:
    """The starts of one script, and the disk that they write to.

    `spread` is how far apart its ranks save, as a part of the time between two saves (0: half a second at most).
    """

    def __init__(self, script: Script, chance: random.Random, spread: float = 0.0) -> None:
        self.script, self.chance = script, chance
        self.disk: dict[str, dict[str, Written]] = {}
        self.launches = 0
        self.clock = 10**9 * SECOND
        self.pace = chance.choice([1, 3, 10, 60])
        self.apart = chance.choice(APART)
        if spread:
            period = max(min(saver.period for saver in script.savers), script.stride) * self.pace
            self.apart = int(period * SECOND * spread / 2)
        self.skews = [chance.randint(0, self.apart) for _ in range(script.ranks)]
        self.last = [0] * script.ranks
        self.written = 0
        self.parents: dict[int, tuple[int, int] | None] = {}

    def launch(self, start: Start) -> None:
        """Restart by hand, train on, save as the script says, and end."""
        script = self.script
        self.launches += 1
        self.clock = max(self.clock, *self.last) + self.chance.choice([20, 60, 600]) * SECOND
        base = self._restored(start)
        self.remove([each for each in self.files() if self.chance.random() < start.tidied])
        names = {
            (place, rank): numbered(self.disk.get(self._home(rank), ()), saver.family, breakpoints=False)
            if script.numbers
            else saver.family
            for place, saver in enumerate(script.savers)
            for rank in range(script.ranks)
        }
        triggered = [0] * len(script.savers)
        cur = offset = base.step if script.counts_on else 0
        state = base
        for place, state in enumerate(self._steps(base, start), 1):
            cur = offset + state.step - base.step
            self.clock += self.pace * script.stride * SECOND
            is_last = place == start.calls
            savers = self.chance.randint(0, len(triggered)) if is_last and start.end == "kill" else len(triggered)
            for at, saver in enumerate(script.savers):
                is_due = cur >= triggered[at] + saver.period or (is_last and start.end in ("finish", "exit", "signal"))
                if not is_due or cur == triggered[at]:
                    continue
                triggered[at] = cur
                for rank in range(script.ranks):
                    if not (is_last and start.end == "kill" and (rank in start.late or at > savers)):
                        self._periodic(names[at, rank], rank, saver.keep, state, cur)
        self._end(start, state, cur)

    def _restored(self, start: Start) -> State:
        """The state that a launch begins with: its step and count those of a file, its place in the data as asked."""
        script = self.script
        file = None if start.way == "anew" else self._to_restore(start)
        self.parents[self.launches] = (file.launch, file.state.step) if file else None
        if file is None:
            return State()
        length, found = script.named_length, file.state
        epoch, done = {
            "exact": (found.step // length, found.step % length),
            "again": (found.epoch - (found.done < length), 0),
            "rest left out": (found.epoch, 0),
            "zero": (0, 0),
            "zero exact": (0, found.step % length),
        }[start.way]
        return State(found.step, 0 if script.weights_alone else found.count, epoch, done)

    def _to_restore(self, start: Start) -> Written | None:
        exits = self.disk.get(f"{EXITS}/rank_0", {})
        if exits:  # MindSpore loads it whatever was restored before (`OnRequestExit.on_train_begin`)
            return exits["net_train.ckpt"]
        states = self.whole_states()
        if start.at_epoch_end:
            states = [one for one in states if one.state.done == self.script.named_length]
        return states[max(0, len(states) - 1 - start.back)] if states else None

    def whole_states(self) -> list[Written]:
        """A file of each state of which all ranks have one, in the order in which they were complete."""
        found: dict[tuple[int, int], dict[int, Written]] = {}
        for one in (one for files in self.disk.values() for one in files.values()):
            ranks = found.setdefault((one.launch, one.state.step), {})
            ranks[one.rank] = min(one, ranks.get(one.rank, one), key=lambda each: each.order)
        whole = [list(ranks.values()) for ranks in found.values() if len(ranks) == self.script.ranks]
        last = [max(files, key=lambda one: one.order) for files in whole]
        return sorted(last, key=lambda one: one.order)

    def _steps(self, base: State, start: Start) -> Iterator[State]:
        """The states after each call of the callbacks."""
        script = self.script
        step, count, gathered = base.step, base.count, 0
        epoch, done = base.epoch + 1, base.done
        if script.gathers > 1 and script.is_seen and not script.weights_alone:
            gathered = base.step % script.gathers  # what was gathered is in the files too
        calls = 0
        while calls < start.calls:
            if done == script.named_length:
                epoch, done = epoch + 1, 0
            for _ in range(script.stride):
                gathered += not (script.overflows and self.chance.random() < script.overflows)
                count, gathered = count + gathered // script.gathers, gathered % script.gathers
            step, done, calls = step + script.stride, done + script.stride, calls + 1
            yield State(step, count, epoch, done)

    def _home(self, rank: int) -> str:
        return f"out/rank_{rank}" if self.script.rank_directories else "out"

    def _periodic(self, prefix: str, rank: int, keep: int, state: State, cur: int) -> None:
        script, home = self.script, self._home(rank)
        own = [name for name in self.disk.get(home, ()) if is_of_prefix(name, prefix)]
        if 0 < keep <= len(own):
            del self.disk[home][min(own, key=lambda name: self.disk[home][name].mtime_ns)]
        told = {"plain": cur, "base": state.step}
        info = {"epoch_num": state.epoch, "step_num": told[script.appends]} if script.appends else {}
        name = f"{prefix}-{state.epoch}_{(cur - 1) % script.batch_num + 1}.ckpt"
        self._write(f"{home}/{name}", rank, state, Kind.PERIODIC, info)

    def _end(self, start: Start, state: State, cur: int) -> None:
        script = self.script
        self.clock += SECOND
        in_epoch = (cur - 1) % script.batch_num + 1
        info = {"epoch_num": state.epoch, "step_num": cur, "batch_num": script.batch_num}
        ranks = [rank for rank in range(script.ranks) if rank not in start.late] or [0]
        directory = f"{FAULTS}{cur}"
        if start.end == "ttp" and not any(folder.startswith(f"{directory}/") for folder in self.disk):
            for rank in ranks:
                named = f"ttp_rank_{rank}-{state.epoch}_{in_epoch}.ckpt"
                self._write(f"{directory}/rank_{rank}/{named}", rank, state, Kind.TTP, info | {"cur_rank": rank})
        if start.end in ("exit", "signal"):
            for rank in range(script.ranks):
                known = info if start.end == "exit" else {}
                self._write(f"{EXITS}/rank_{rank}/net_train.ckpt", rank, state, Kind.GRACEFUL_EXIT, known)
        if start.end.startswith("raise"):
            named = (state.epoch, in_epoch)
            if start.end != "raise":  # the next step was under way
                is_new = state.done == script.named_length
                begun = start.end == "raise at an epoch's begin" and is_new
                named = (state.epoch + is_new, 0 if begun else (cur + script.stride - 1) % script.batch_num + 1)
            for rank in ranks:
                home = self._home(rank)
                prefix = numbered(self.disk.get(home, ()), script.savers[-1].family, breakpoints=True)
                path = f"{home}/{prefix}-{named[0]}_{named[1]}_breakpoint.ckpt"
                self._write(path, rank, state, Kind.DYING_GASP, {})

    def _write(self, path: str, rank: int, state: State, kind: Kind, info: Mapping[str, object]) -> None:
        home, _, name = path.rpartition("/")
        self.written += 1
        written = self.clock + self.skews[rank] + self.chance.randint(0, self.apart)
        self.last[rank] = written = max(written, self.last[rank] + 1)
        files = self.disk.setdefault(home, {})
        files[name] = Written(self.launches, rank, state, kind, written, self.written, info)

    def remove(self, names: Iterable[tuple[str, str]]) -> None:
        """Somebody deletes files: directories and names."""
        for home, name in names:
            del self.disk[home][name]

    def files(self) -> list[tuple[str, str]]:
        """Directory and name of every file, as they were written."""
        found = [(home, name) for home, files in self.disk.items() for name in files]
        return sorted(found, key=lambda each: self.disk[each[0]][each[1]].order)

    def found(self, times: Mapping[tuple[str, str], int] = MappingProxyType({})) -> dict[str, FoundFile]:
        """The files as a scan reads them, by path; `times` are those that a copy gave them."""
        script = self.script
        made = {}
        for home, files in self.disk.items():
            beside = prefixes(files)
            for name, one in files.items():
                path = f"/{home}/{name}"
                made[path] = unregistered(
                    path,
                    beside,
                    optimizer_step=one.state.count if script.counted else None,
                    info=one.info,
                    updates_every_step=script.updates_every_step,
                    mtime_ns=times.get((home, name), one.mtime_ns),
                )
        return made

    def truth(self) -> dict[str, Written]:
        """What each file is, by path."""
        return {f"/{home}/{name}": one for home, files in self.disk.items() for name, one in files.items()}


def numbered(names: Iterable[str], prefix: str, *, breakpoints: bool) -> str:
    """As `_chg_ckpt_file_name_if_same_exist` in MindSpore's `train/callback/_checkpoint.py` finds it."""
    number = 0
    for name in names:
        rest = name[len(prefix) :]
        if name.endswith("_breakpoint.ckpt") is not breakpoints or not name.startswith(prefix) or rest[0].isalpha():
            continue
        index = rest.find("-")
        if index == 0:
            number = max(number, 1)
        elif index > 0 and rest[1:index].isdigit():
            number = max(number, int(rest[1:index]) + 1)
    return f"{prefix}_{number}" if number else prefix


def is_of_prefix(name: str, prefix: str) -> bool:
    """Whether `keep_checkpoint_max` counts a file (`CheckpointManager.update_ckpoint_filelist`)."""
    rest = name.removesuffix(".ckpt")[len(prefix) :]
    return name.startswith(f"{prefix}-") and not any(letter.isalpha() for letter in rest)
