"""A simulator of jobs as MindSpore runs and names them, whose truth is known; it shares no code with ckptstore."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from ckptstore.core.model import Content, Kind
from ckptstore.scan.found import FoundFile

SECOND = 1_000_000_000


@dataclass(frozen=True)
class Saver:
    """A ModelCheckpoint: what it calls its files, how often it saves, and how many it keeps."""

    family: str
    period: int
    keep: int = 100


@dataclass(frozen=True)
class Start:
    """One launch: how it starts (from the newest state, an older one, or afresh), counts, and ends."""

    length: int
    back: int = 0
    fresh: bool = False
    truthful: bool = False
    end: str = "kill"
    skips: frozenset[int] = frozenset()
    late: frozenset[int] = frozenset()
    savers: tuple[int, ...] | None = None
    cascade: bool = False


def _prefix(family: str, number: int) -> str:
    return f"{family}_{number}" if number else family


@dataclass
class Job:
    """A job of several ranks on a disk of its own. `truth` maps a path to the launch, rank and step it is of.

    `lagging`: the network can skip updates; `uncounted`: ranks whose files hold no counter, such as shares.
    """

    steps_per_epoch: int
    world_size: int
    savers: list[Saver]
    lagging: bool = False
    step_num: bool = False
    uncounted: frozenset[int] = frozenset()
    disk: dict[str, FoundFile] = field(default_factory=dict)
    truth: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    clock: int = 1_000 * SECOND
    launches: int = 0

    def launch(self, start: Start) -> None:
        """Train on for `length` steps, the last of which is where the launch ends."""
        self.launches += 1
        self.clock += 60 * SECOND
        steps = self.steps_per_epoch
        states = sorted({(self.truth[path][2], self.counters[path]) for path in self.disk})
        base, count = (0, 0) if start.fresh or not states else states[max(0, len(states) - 1 - start.back)]
        self.numbers = {
            (saver.family, rank, kind): self._next_number(saver.family, rank, kind)
            for saver in self.savers
            for rank in range(self.world_size)
            for kind in (Kind.PERIODIC, Kind.DYING_GASP)
        }
        active = [self.savers[place] for place in (start.savers or range(len(self.savers))) if place < len(self.savers)]
        cur = base if start.truthful else 0
        triggered = {saver.family: (base // saver.period * saver.period if start.truthful else 0) for saver in active}
        length = start.length
        if start.end == "finish":
            length += -(base + length) % steps
        for done in range(1, length + 1):
            cur += 1
            step = base + done
            count += done not in start.skips
            self.clock += 10 * SECOND
            last = done == length
            epoch = (step - 1) // steps + 1
            in_epoch = (cur - 1) % steps + 1
            for saver in active:
                if cur >= triggered[saver.family] + saver.period or (last and start.end == "finish"):
                    if cur == triggered[saver.family]:
                        continue
                    triggered[saver.family] = cur
                    for rank in range(self.world_size):
                        if not (last and rank in start.late and start.end != "finish"):
                            self._periodic(saver, rank, epoch=epoch, in_epoch=in_epoch, step=step, count=count, cur=cur)
            if last:
                self._end(start, active, epoch=epoch, in_epoch=in_epoch, step=step, count=count, cur=cur)

    def _end(
        self, start: Start, active: list[Saver], *, epoch: int, in_epoch: int, step: int, count: int, cur: int
    ) -> None:
        steps = self.steps_per_epoch
        self.clock += SECOND
        info = {"epoch_num": epoch, "step_num": cur, "batch_num": steps}
        for rank in [rank for rank in range(self.world_size) if rank not in start.late] or [0]:
            if start.end in ("raise after", "raise before") and active:
                family = active[-1].family
                named = (epoch, in_epoch)
                if start.end == "raise before":  # the next step was under way
                    named = (step // steps + 1, cur % steps + 1)
                number = self.numbers[family, rank, Kind.DYING_GASP]
                path = f"/out/rank_{rank}/{_prefix(family, number)}-{named[0]}_{named[1]}_breakpoint.ckpt"
                self._write(path, rank, step, count, Kind.DYING_GASP, family=family, named=named, relaunch=number)
            elif start.end in ("exit", "exit by signal", "kept exit"):
                known = {} if start.end == "exit by signal" else info
                named_step = step if start.end == "kept exit" else None
                path = f"/exits/rank_{rank}/net_train{f'-step_{step}' if named_step else ''}.ckpt"
                self._write(
                    path, rank, step, count, Kind.GRACEFUL_EXIT, family="net", info=known, named_step=named_step
                )
            elif start.end == "ttp":
                directory = f"/ttp/ttp_saved_checkpoints-step_{cur}_tmp"
                path = f"{directory}/rank_{rank}/ttp_rank_{rank}-{epoch}_{in_epoch}.ckpt"
                known = info | {"cur_rank": rank}
                self._write(
                    path, rank, step, count, Kind.TTP, family="ttp", named=(epoch, in_epoch), info=known, named_step=cur
                )
        if start.end == "ttp" and not start.cascade:
            self._rename(f"/ttp/ttp_saved_checkpoints-step_{cur}_tmp/")

    def _rename(self, unfinished: str) -> None:
        """As `_rename_save_result` does, with all that is in it; `os.rename` fails if the other has files."""
        finished = unfinished.replace("_tmp/", "/")
        if any(path.startswith(finished) for path in self.disk):
            return
        for path in [path for path in self.disk if path.startswith(unfinished)]:
            to = path.replace(unfinished, finished)
            self.disk[to] = replace(self.disk.pop(path), path=to)
            self.truth[to], self.counters[to] = self.truth.pop(path), self.counters.pop(path)

    def _next_number(self, family: str, rank: int, kind: Kind) -> int:
        """As `_chg_ckpt_file_name_if_same_exist` finds it, in the directory of one rank."""
        used = [file.relaunch for file in self._of(family, rank, kind)]
        return max(used) + 1 if used else 0

    def _of(self, family: str, rank: int, kind: Kind) -> list[FoundFile]:
        return [file for file in self.disk.values() if (file.family, file.rank, file.kind) == (family, rank, kind)]

    def _periodic(self, saver: Saver, rank: int, *, epoch: int, in_epoch: int, step: int, count: int, cur: int) -> None:
        number = self.numbers[saver.family, rank, Kind.PERIODIC]
        kept = [file for file in self._of(saver.family, rank, Kind.PERIODIC) if file.relaunch == number]
        if len(kept) >= saver.keep:
            oldest = min(kept, key=lambda file: file.mtime_ns).path
            del self.disk[oldest], self.truth[oldest]
        path = f"/out/rank_{rank}/{_prefix(saver.family, number)}-{epoch}_{in_epoch}.ckpt"
        info = {"step_num": cur} if self.step_num else {}
        named = (epoch, in_epoch)
        self._write(
            path, rank, step, count, Kind.PERIODIC, family=saver.family, named=named, relaunch=number, info=info
        )

    def _write(
        self,
        path: str,
        rank: int,
        step: int,
        count: int,
        kind: Kind,
        *,
        family: str,
        named: tuple[int | None, int | None] = (None, None),
        relaunch: int = 0,
        info: Mapping[str, Any] = MappingProxyType({}),
        named_step: int | None = None,
    ) -> None:
        self.truth[path] = (self.launches, rank, step)
        self.counters[path] = count
        self.disk[path] = FoundFile(
            path=path,
            kind=kind,
            content=Content.FULL,
            format="ckpt",
            family=family,
            relaunch=relaunch,
            rank=rank,
            epoch=named[0],
            step_in_epoch=named[1],
            named_step=named_step,
            optimizer_step=None if rank in self.uncounted and kind is Kind.PERIODIC else count,
            info=dict(info),
            updates_every_step=not self.lagging,
            size=100,
            mtime_ns=self.clock + (rank * 137_000_000 + len(family) * 10_000_000) % (400_000_000),
        )

    def copied(self, how: str, seed: int) -> list[FoundFile]:
        """The files as a copy shows them: times kept, all alike, or those of the copying."""
        files = sorted(self.disk.values(), key=lambda file: file.path)
        if how == "kept":
            return files
        if how == "alike":
            return [replace(file, mtime_ns=SECOND) for file in files]
        places = list(range(len(files)))
        if how == "shuffled":
            random.Random(seed).shuffle(places)  # noqa: S311 — a test
        return [replace(file, mtime_ns=5 * SECOND * place) for file, place in zip(files, places, strict=True)]
