"""Simulated jobs that choose names and directories themselves (callables), started from scratch again and again.

MindSpore numbers no such names (`_chg_ckpt_file_name_if_same_exist`): a start may write over files of earlier ones.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from ckptstore.core.classify import prefixes
from ckptstore.evidence.unregistered import FoundFile
from tests.scan.builders import unregistered
from tests.scan.plain_mindspore import SECOND

SKEW, JITTER = SECOND // 2, 2 * SECOND // 5


@dataclass(frozen=True)
class Moment:
    """What a callable may use: the start (of all, and the rank's own count), the save, the time, a number by chance."""

    start: int
    own_start: int
    save: int
    seconds: int
    chance: int
    rank: int
    epoch: int
    step: int


PLACES: dict[str, Callable[[Moment], str]] = {
    "one directory": lambda at: f"rank_{at.rank}/net",
    "a directory for each epoch": lambda at: f"rank_{at.rank}/epoch_{at.epoch}/net",
    "a directory for each save": lambda at: f"rank_{at.rank}/save_{at.save}/net",
    "a directory for each step": lambda at: f"step_{at.step}/rank_{at.rank}/net",
    "a directory for each time": lambda at: f"{at.seconds}/rank_{at.rank}/net",
    "a directory for each start": lambda at: f"start_{at.start}/rank_{at.rank}/net",
    "one for each start that the rank saved in": lambda at: f"rank_{at.rank}/start_{at.own_start}/net",
    "a start named as a rank": lambda at: f"rank_{at.start}/rank_{at.rank}/net",
    "a number by chance": lambda at: f"rank_{at.rank}/net_{at.chance}",
    "a number for each start": lambda at: f"rank_{at.rank}/net_{at.start}",
    "a number for each start that the rank saved in": lambda at: f"rank_{at.rank}/net_{at.own_start}",
    "a number for each save": lambda at: f"rank_{at.rank}/net_{at.save}",
    "a number for each time": lambda at: f"rank_{at.rank}/net_{at.seconds}",
}


@dataclass
class Written:
    """A file: the start, rank and step that it is of, and when it was written."""

    start: int
    rank: int
    step: int
    mtime_ns: int
    info: dict[str, object] = field(default_factory=dict)


class OwnNames:
    """A job of several starts. `disk` has what is left of them; all is chosen by `seed`."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)  # noqa: S311 — a test
        self.ranks = self.chance.choice([2, 2, 3])
        self.steps_per_epoch = self.chance.randint(2, 8)
        self.place = self.chance.choice(sorted(PLACES))
        self.keep = self.chance.choice([1, 2, 3, 100, 100])
        self.skews = [self.chance.randint(0, SKEW) for _ in range(self.ranks)]
        self.pace = self.chance.choice([1, 10, 60])
        self.uneven = self.chance.random() < 0.5
        self.disk: dict[str, Written] = {}
        self.clock = 10**9 * SECOND
        self.saved_in = [0] * self.ranks
        for start in range(self.chance.choice([1, 2, 2, 2, 3, 4])):
            self._start(start)

    def _start(self, start: int) -> None:
        chance = self.chance
        self.clock += chance.choice([5, 30, 300]) * SECOND
        length, number = chance.randint(1, 9), chance.randint(0, 2)
        savers = [
            (name, chance.choice([1, 1, 1, 2, 3])) for name in chance.choice([("net",), ("net",), ("net", "other")])
        ]
        end = chance.choice(["kill", "kill", "kill", "finish", "raise", "exit"])
        first = {rank: self.saved_in[rank] for rank in range(self.ranks)}
        late = set() if end == "finish" else set(chance.sample(range(self.ranks), chance.randint(0, self.ranks - 1)))
        for step in range(1, length + 1):
            self.clock += self.pace * (chance.randint(1, 10) if self.uneven else 3) * SECOND
            is_last = step == length
            for rank in [rank for rank in range(self.ranks) if not (is_last and rank in late)]:
                seconds, epoch = self._time(rank) // SECOND, (step - 1) // self.steps_per_epoch + 1
                for saver, period in savers:
                    at = Moment(start, first[rank], (step - 1) // period, seconds, number, rank, epoch, step)
                    place = PLACES[self.place](at).replace("net", saver)
                    name = f"/out/{place}-{epoch}_{(step - 1) % self.steps_per_epoch + 1}"
                    if step % period == 0 or (is_last and end == "finish"):
                        self.saved_in[rank] = first[rank] + 1
                        self._drop_oldest(name)
                        self._write(f"{name}.ckpt", start, rank, step)
                    if is_last and end == "raise":
                        self._write(f"{name}_breakpoint.ckpt", start, rank, step)
                    if is_last and end == "kill" and late and chance.random() < 0.3:
                        break  # killed between its callbacks
                if is_last and end == "exit":
                    info = {"epoch_num": epoch, "step_num": step, "batch_num": self.steps_per_epoch}
                    self._write(f"/exits/rank_{rank}/net_train.ckpt", start, rank, step, info)

    def _time(self, rank: int) -> int:
        return self.clock + self.skews[rank]

    def _write(self, path: str, start: int, rank: int, step: int, info: dict[str, object] | None = None) -> None:
        written = self._time(rank) + self.chance.randint(0, JITTER)
        self.disk[path] = Written(start, rank, step, written, info or {})

    def _drop_oldest(self, name: str) -> None:
        """As `update_ckpoint_filelist` finds them: of this directory and prefix, whichever start they are of."""
        prefix = name.rpartition("-")[0]
        beside = [path for path in self.disk if path.rpartition("-")[0] == prefix and "_breakpoint" not in path]
        if len(beside) >= self.keep:
            del self.disk[min(beside, key=lambda path: self.disk[path].mtime_ns)]

    def found(self) -> list[FoundFile]:
        """The files as a scan reads them."""
        beside: dict[str, list[str]] = {}
        for path in self.disk:
            beside.setdefault(path.rpartition("/")[0], []).append(path.rpartition("/")[2])
        files = []
        for path, written in self.disk.items():
            folder = path.rpartition("/")[0]
            content = {"optimizer_step": written.step, "info": written.info, "updates_every_step": True}
            files.append(unregistered(path, prefixes(beside[folder]), **content, mtime_ns=written.mtime_ns))
        return files
