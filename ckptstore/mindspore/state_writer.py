"""Saves the values of networks and optimizers: copied at once, written on a thread of its own, then registered."""

from __future__ import annotations

import errno
import logging
from collections import deque
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain, count
from statistics import median
from typing import TYPE_CHECKING, Any

from ckptstore.core import validate
from ckptstore.core.interval import Cost
from ckptstore.core.model import Content, Kind, Timing
from ckptstore.core.text import size
from ckptstore.disk.files import digest, names_in, real_directory
from ckptstore.errors import CkptstoreError, RefusedError, UsageError, reason_of
from ckptstore.outside import Future, Path, ThreadPoolExecutor, os, time
from ckptstore.resume.register import measured
from ckptstore.training import companions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ckptstore.core.model import Checkpoint
    from ckptstore.mindspore.session import Session
    from ckptstore.mindspore.state import Parameters, Values

log = logging.getLogger("ckptstore")

_FULL = (errno.ENOSPC, errno.EDQUOT)

_PART = 10
"""The copies may take this fraction of the free memory: one tenth."""

_MUCH = 1.0
"""Seconds of waiting for earlier saves, from which on a warning is logged."""

_MEASURED = 5
"""The cost of a save is the median of so many last ones: the first is slower, and now and then another."""

_LONGEST = 200
"""Bytes of a prefix: a name has 255 on most disks, and epoch, step and ending need some."""

_OWN_GROUP, _GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
_V2 = ("memory.max", "memory.current", "inactive_file")
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
"""Of Linux's control groups, version 2 or 1: the files with bound and usage, and the name of the page cache."""


class StateWriter:
    """Saves the state of one rank. At most one save is under way: the next one waits for it, and sums up the waiting.

    `buffers` are the bytes that the copies may take; None: a tenth of the free memory. If they need more, a save copies
    nothing, and training waits until it is written.
    """

    def __init__(
        self,
        session: Session,
        *,
        directory: str | os.PathLike[str],
        prefix: str,
        form: str,
        buffers: int | None = None,
    ) -> None:
        if buffers is not None:
            validate.number("buffers", buffers, "give a number of bytes, as 4 << 30")
        if not isinstance(prefix, str) or "/" in prefix or len(os.fsencode(prefix)) > _LONGEST:
            raise UsageError(f"prefix is {prefix!r}", f"give a text without /, of {_LONGEST} bytes at most")
        self._session, self._launch = session, session.launch
        self._form = form
        self._most = buffers
        self._copies = True
        root = real_directory(validate.path("directory", directory))
        self.directory = root if self._launch.world_size == 1 else f"{root}/rank_{self._launch.rank}"
        self._prefix = prefix
        self._writer = ThreadPoolExecutor(1, "ckptstore-save")
        self._has_begun = False
        self._has_complained = False
        self._has_saved = False
        self._waited = 0.0  # seconds
        self._under_way: Future[None] | None = None
        self._written: Checkpoint | None = None  # the newest one that is on the disk
        self.saved_step = session.progress.global_step  # of the newest save that was begun, or of the start
        self._since: tuple[int, float] | None = None
        self._costs: deque[Cost] = deque(maxlen=_MEASURED)
        self.cost: Cost | None = None  # of the last few saves of this rank; None: none is on the disk yet

    def begin(self, state: Parameters, *, copies: bool = True) -> None:
        """Training of `state` begins; `copies`: this rank makes the periodic saves, and memory for them is allocated.

        Raises `UsageError` if the format cannot hold it, or its paths cannot be recorded, `RefusedError` if the
        directory cannot be written, or has newer states of the run that the start did not see.
        """
        if not self._has_begun:  # the script may have made it before `resume`
            self.saved_step = self._session.progress.global_step
        state.check_format(self._form)
        self._state = state
        self._session.describe(self.path((0, 0)), kind=Kind.PERIODIC)
        self._check_directory()
        names = names_in(self.directory)
        if not self._has_begun:  # a later training of the launch goes on with its names
            prefixes = chain([self._prefix], (f"{self._prefix}_{repeat}" for repeat in count(1)))
            self._prefix = next(each for each in prefixes if not any(name.startswith(f"{each}-") for name in names))
        self._has_begun = True
        kind = Kind.PERIODIC if copies else Kind.DYING_GASP  # the latter does not make it a laggard
        self._session.places.add(
            self.directory, kind=kind, prefix=self._prefix, names_before=None, content=Content.FULL
        )
        if copies:
            self._make_room()

    def _check_directory(self) -> None:
        try:
            Path(self.directory).mkdir(parents=True, exist_ok=True)
            problem = "" if os.access(self.directory, os.W_OK | os.X_OK) else "this user may not write there"
            if problem and os.statvfs(self.directory).f_flag & os.ST_RDONLY:
                problem = os.strerror(errno.EROFS)
        except OSError as error:
            problem = "" if error.errno in _FULL else reason_of(error)  # there may be room again by then
        if problem:
            raise RefusedError(f"nothing can be saved to {self.directory}: {problem}", "give another directory")

    def _make_room(self) -> None:
        """Allocate the memory for the copies while the first steps run; if it would be too much, save without."""
        needed, free = self._state.nbytes, free_memory()
        most = self._most if self._most is not None else needed if free is None else free // _PART
        self._copies = needed <= most
        if self._copies:
            self._begin_work(self._allocate)
        else:
            log.warning(
                "run %s: a copy of the state takes %s, but only %s may be used for it: training waits at each save "
                "until it is written. buffers=%d allows the copy",
                self._launch.name,
                size(needed),
                size(most),
                needed,
            )

    def _allocate(self) -> None:
        try:
            self._state.make_room()
        except MemoryError:
            self._save_without_copies()

    def _save_without_copies(self) -> None:
        self._copies = False
        self._state.give_room_back()
        log.warning(
            "run %s: there is no memory for a copy of the state, which takes %s: training waits at each save until it "
            "is written",
            self._launch.name,
            size(self._state.nbytes),
        )

    def _begin_work(self, work: Callable[[], None]) -> None:
        """Do this on the thread that writes; here, if the system allows no more threads."""
        try:
            self._under_way = self._writer.submit(work)
        except RuntimeError as error:
            self._session.complaints.warn(f"{error}: training waits at each save until it is written")
            self._writer = ThreadPoolExecutor(1, "ckptstore-save")  # the one before has kept the work
            work()

    def save(
        self,
        kind: Kind,
        place: tuple[int, int],
        beside: Callable[[], dict[str, Any]],
        *,
        numbers: Mapping[str, Any] | None = None,
        at_exit: bool = False,
    ) -> Checkpoint | None:
        """Copy the state after the last step, and let it be written, with the companion of `beside`, and registered.

        `place` is its epoch and the step in that; `numbers` go into the file, by name. `at_exit`: write on this thread,
        since the interpreter starts no other any more. Returns the record, as far as it is known; None if nothing is
        saved.
        """
        step = self._session.progress.global_step
        took: float | None = None  # seconds a step, since the save before this one or the first, compiled step
        if self._since is not None and step > self._since[0]:
            took = (time.monotonic() - self._since[1]) / (step - self._since[0])
        self._wait_for_the_last(step)
        try:
            file = self._session.describe(self.path(place), kind=kind)
        except CkptstoreError as error:
            log.error("step %d is not saved: %s; training goes on", step, error)  # noqa: TRY400
            return None
        if file.quarantine:
            self._session.complaints.warn(
                f"step {step} of run {self._launch.name} is quarantined: {file.quarantine}. Saves in this "
                "condition are registered, and no start takes them"
            )
        began = time.monotonic()
        values = self._values().with_numbers(numbers or {})
        timing = Timing(time.monotonic() - began, step=took)
        self.saved_step = step
        write = partial(self._write, file, values, beside, began=began, timing=timing, at_exit=at_exit)
        if at_exit or not self._copies:
            write()
        else:
            self._begin_work(write)
        self.time_from(step)
        return file

    def _values(self) -> Values:
        if self._copies:
            try:
                return self._state.copied()
            except MemoryError:
                self._save_without_copies()
        return self._state.uncopied()

    def _wait_for_the_last(self, step: int) -> None:
        """Wait for the previous save, and sum up the waiting. No save is skipped: all ranks save the same steps."""
        began = time.monotonic()
        self.wait()
        self._waited += time.monotonic() - began if self._has_saved else 0.0
        self._has_saved = True
        if self._waited >= _MUCH and not self._has_complained:
            self._has_complained = True
            log.warning(
                "run %s: saves wait until the one before is written (%.1f s so far, at step %d), and training waits "
                "with them: save less often, or to a faster disk",
                self._launch.name,
                self._waited,
                step,
            )

    def path(self, place: tuple[int, int]) -> str:
        """Where the state of an epoch and a step in it is saved to, unless the name is taken then."""
        return f"{self.directory}/{self._prefix}-{place[0]}_{place[1]}.{self._form}"

    def save_beside(self, beside: dict[str, Any]) -> None:
        """Replace the companion of the newest save: the parameters have not changed since."""
        self.wait()
        file = self._written
        if file is not None and self.has_saved(self.saved_step):
            companions.write(file, beside, durable=True)

    def has_saved(self, step: int) -> bool:
        """Whether the newest file on the disk holds the state after this step. Wait for the save before."""
        return self._written is not None and self._written.global_step == step

    def time_from(self, step: int) -> None:
        """Measure the time of steps from now on; `step` was just done."""
        self._since = step, time.monotonic()

    def wait(self) -> None:
        """Wait for the save that is under way."""
        if self._under_way is not None:
            error = self._under_way.exception()  # at Ctrl-C it is still under way, and uses the memory of the copies
            self._under_way = None
            if error is not None:
                raise error

    def _write(
        self,
        file: Checkpoint,
        values: Values,
        beside: Callable[[], dict[str, Any]],
        *,
        began: float,
        timing: Timing,
        at_exit: bool = False,
    ) -> None:
        whole = file

        def write(path: str) -> None:
            nonlocal whole
            whole = replace(file, digest=values.write(path) or digest(path), size=Path(path).stat().st_size)

        def before_it_has_its_name(path: str) -> None:
            if content := beside():
                companions.write(replace(whole, path=path), content, durable=True)
            if self._written is None:  # no start takes files of a run's first launch if that recorded nothing
                self._launch.recorder.note(replace(file, path=path))

        try:
            path = self._launch.aside(self.directory).save(Path(file.path).name, write, before_it_has_its_name)
            self._written = replace(whole, path=path)
            written = time.monotonic() - began
            timing = Timing(timing.pause, written, timing.step)
            whole = replace(file, path=path, digest=whole.digest, timing=timing)
            self._costs.append(Cost(timing.pause, written))
            self.cost = Cost(*map(median, zip(*self._costs, strict=True)))
            if not at_exit:
                self._session.saved(whole, is_state=False)
            else:
                names = self._session.recorder.state_names
                if (found := measured(whole, prove_step=True, expected=names, digest=whole.digest)) is not None:
                    self._launch.record_files([found])
        except (OSError, CkptstoreError) as error:
            told = (file.global_step, self.directory, reason_of(error))
            log.error("step %d is not saved to %s: %s; training goes on", *told)  # noqa: TRY400
            self._session.begin_retention()  # it makes room if the disk is full
        except Exception:
            log.exception("step %d is not saved; training goes on", file.global_step)


def free_memory() -> int | None:
    """Bytes that are free on the machine, or in this process's control group if that has less; None if not known.

    Page cache counts as free: `MemAvailable` of proc(5), and the memory controller of Linux's control groups, version
    2 or 1.
    """
    found = []
    with suppress(OSError, ValueError, KeyError):
        found.append(int(_fields(Path("/proc/meminfo"))["MemAvailable:"]) << 10)
    with suppress(OSError):
        own = [line[3:] for line in _OWN_GROUP.read_text(encoding="utf-8").splitlines() if line.startswith("0::")]
        for folder, names in (*((_GROUPS / each.lstrip("/"), _V2) for each in own), (_GROUPS / "memory", _V1)):
            with suppress(OSError, ValueError, KeyError):
                found.append(_free_in(folder, *names))
    return max(0, min(found)) if found else None


def _free_in(folder: Path, most: str, used: str, cache: str) -> int:
    """The free bytes of a group. Raises `ValueError` if it has no bound: "max" is no number.

    A container sees its own group here.
    """
    cached = int(_fields(folder / "memory.stat")[cache])
    return int((folder / most).read_text()) - int((folder / used).read_text()) + cached


def _fields(path: Path) -> dict[str, str]:
    return dict(line.split()[:2] for line in path.read_text(encoding="utf-8").splitlines())
