"""A watch for each callback that saves checkpoints: where it saves, and what it saved last."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from mindspore.train import ModelCheckpoint
from mindspore.train.callback import OnRequestExit

from ckptstore.core.iterations import COMMON, METADATA, MODEL, OPTIMIZER, PartName, parse_iteration, parse_part
from ckptstore.core.model import Content, Kind
from ckptstore.core.naming import parse_name
from ckptstore.disk.files import absolute, names_in, real_directory
from ckptstore.mindspore import compat
from ckptstore.mindspore.graceful_exit import ExitWatch
from ckptstore.mindspore.session import Saved, Watch
from ckptstore.mindspore.state import state_names
from ckptstore.mindspore.ttp import TtpWatch
from ckptstore.outside import Path
from ckptstore.training.exit_request import version_at

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ckptstore.mindspore.session import Session

log = logging.getLogger("ckptstore")


class PeriodicWatch(Watch):
    """A ModelCheckpoint: what it saved last, and whether its files hold the whole state."""

    def __init__(self, callback: Any) -> None:
        super().__init__(callback)
        self.seen = self._latest()
        self._written = version_at(self.seen[0])
        self.content = Content.FULL
        self._session: Session | None = None
        self._first_directory: object = None

    def begin(self, session: Session) -> None:
        """Decide what its files hold by comparison with the train network, and record where they go."""
        self._session = session
        self._first_directory = compat.DIRECTORY.get(self.callback, None)
        config = compat.CONFIG.of(self.callback)
        saved = config.saved_network
        session.check_limit(config.keep_checkpoint_max, config.keep_checkpoint_per_n_minutes)
        if config.remove_redundancy:
            self.content = Content.SHARE
        elif saved is not None and session.network.names - state_names(saved):
            self.content = Content.WEIGHTS
            log.warning("saved_network leaves out the optimizer: a run cannot be restored from such files")
        self._record_place()

    def continue_count(self, global_step: int) -> None:
        """Let the callback save at multiples of its N steps, and count no step twice, from `global_step` on.

        Else the callback would save at the first resumed step, and every N from there. And a base that the script put
        into `append_info` would be added to MindSpore's count, which includes it.
        """
        every = compat.CONFIG.of(self.callback).save_checkpoint_steps
        if every and not compat.LAST_TRIGGERED_STEP.missing_in(self.callback):
            compat.LAST_TRIGGERED_STEP.put(self.callback, global_step // every * every)
            self.seen = self._latest()
        compat.APPEND_STEP.put(self.callback, 0)

    def count_epochs_once(self) -> None:
        """Remove a base in `append_info`: MindSpore would add it to its count of epochs, which includes it."""
        compat.APPEND_EPOCH.put(self.callback, 0)

    def steps_given(self) -> int:
        """The steps done before this launch, as the script says in `append_info`."""
        return int(compat.APPEND_STEP.of(self.callback) or 0)

    def poll(self) -> Saved | None:
        """Its last save, if it is a new one.

        MindSpore notes the step before it saves and the name after (`_save_ckpt`). So if a save fails, as on a full
        disk, the callback still has the name of the previous save, whose file is no new one.
        """
        latest, before = self._latest(), self.seen
        if latest == before or not latest[0]:
            return None
        self.seen = latest
        asynchronous = bool(compat.CONFIG.of(self.callback).async_save)
        written, self._written = self._written, version_at(latest[0])
        if latest[0] == before[0] and self._written == written and not asynchronous:
            return None
        self._record_place(has_begun=True)
        return Saved(absolute(latest[0]), Kind.PERIODIC, self.content, asynchronous=asynchronous)

    def end(self, session: Session) -> None:  # noqa: ARG002
        """Record where MindSpore would write a breakpoint now: a callable directory may be another at each step."""
        has_moved = compat.DIRECTORY.get(self.callback, None) != self._first_directory
        if has_moved and compat.CONFIG.of(self.callback).exception_save:
            self._record_place(has_begun=True)

    def _latest(self) -> tuple[str, int]:
        """Path and trigger of its last save: a callable prefix may give one name twice."""
        return self.callback.latest_ckpt_file_name, compat.LAST_TRIGGERED_STEP.get(self.callback, 0)

    def _record_place(self, *, has_begun: bool = False) -> None:
        """Record where it saves; a callable directory is not known before the first save."""
        callback = self.callback
        directory = compat.DIRECTORY.get(callback, None)
        prefix, base = compat.PREFIX.of(callback), compat.EXCEPTION_PREFIX.of(callback)
        session = self._session
        if session and isinstance(directory, str) and isinstance(prefix, str) and isinstance(base, str):
            session.places.add(
                directory,
                kind=Kind.PERIODIC,
                prefix=prefix,
                breakpoint_prefix=base,
                names_before=breakpoints_among,
                has_begun=has_begun,
                content=self.content,
            )


class IterationWatch(PeriodicWatch):
    """A CheckpointMonitor of MindFormers with `use_legacy_format: False`: a directory for each save, of all ranks.

    MindFormers: `core/callback/callback.py` (`_save_megatron_ckpt_file_format`), `checkpoint/checkpoint.py`
    (`save_checkpoint`). Unless it saves asynchronously, every rank's files are there when it returns.
    """

    def begin(self, session: Session) -> None:
        """Record where it saves."""
        self._session = session
        self.content = Content.PART if self.callback.save_optimizer else Content.WEIGHTS
        root = self.callback.directory
        if isinstance(root, str):
            session.places.add(
                real_directory(root),
                kind=Kind.PERIODIC,
                prefix=str(self.callback.origin_prefix),
                names_before=lambda names: [name for name in names if parse_iteration(name) is not None],
                content=Content.PART,  # even with weights only: it holds iterations
            )

    def poll_all(self) -> list[Saved]:
        """The parts of this rank in the last save, if it is a new one; on rank 0 also its `_NOTES`."""
        latest, before = self._latest(), self.seen
        session = self._session
        if latest == before or not latest[0] or session is None:
            return []
        self.seen = latest
        directory = real_directory(latest[0])
        step, counted = parse_iteration(Path(directory).name), session.progress.global_step
        if step != counted:
            session.complaints.warn(
                f"{directory} is not registered: MindFormers counts it as step {step}, and it was saved after step "
                f"{counted} of run {session.launch.name}"
            )
            return []
        asynchronous = bool(compat.CONFIG.of(self.callback).async_save)
        return [
            Saved(f"{directory}/{name}", Kind.PERIODIC, self.content, asynchronous=asynchronous and name not in _NOTES)
            for name in self._names(directory, session)
        ]

    def end(self, session: Session) -> None:
        """Nothing: its directory was recorded at the beginning."""

    def _latest(self) -> tuple[str, int]:
        saved = self.callback.current_ckpt_step_list
        return (saved[-1] if saved else ""), compat.LAST_TRIGGERED_STEP.get(self.callback, 0)

    def _names(self, directory: str, session: Session) -> list[str]:
        """The names of the files that this rank registers. A part's name has the number of the rank."""
        rank, world_size, prefix = session.launch.rank, session.launch.world_size, str(self.callback.origin_prefix)
        if self.callback.need_remove_redundancy:  # then there are fewer files than ranks
            parts = ((name, parse_part(name)) for name in names_in(directory))
            own = sorted(name for name, part in parts if part is not None and part.index == rank)
        else:
            kinds = (MODEL, OPTIMIZER) if self.callback.save_optimizer else (MODEL,)
            own = [str(PartName(prefix, holds, rank, world_size)) for holds in kinds]
        notes = [COMMON, *((METADATA,) if world_size > 1 else ())] if rank == 0 else []
        return [*own, *notes]


_NOTES = (COMMON, METADATA)


def _saves_iterations(callback: Any) -> bool:
    """Whether a callback is MindFormers' for checkpoints, and saves in its newer format."""
    is_of_mindformers = any(each.__name__ == "CheckpointMonitor" for each in type(callback).__mro__)
    return is_of_mindformers and getattr(callback, "use_legacy_format", True) is False


class GaspWatch(Watch):
    """The Elastic Agent's ExceptionCheckpoint, which saves at a signal or in its `__exit__`, after the registrar's.

    Its file is adopted when the interpreter ends, with the step at which training ended.
    """

    def begin(self, session: Session) -> None:
        """Record where it saves."""
        directory, prefix = str(compat.DIRECTORY.of(self.callback)), str(compat.PREFIX.of(self.callback))
        session.places.add(directory, kind=Kind.DYING_GASP, prefix=prefix, names_before=breakpoints_among)


def breakpoints_among(names: Iterable[str]) -> list[str]:
    """The breakpoints among the names in a directory."""
    parsed = ((name, parse_name(name)) for name in names)
    return sorted(name for name, named in parsed if named is not None and named.is_breakpoint)


def watches_for(callbacks: Sequence[Any]) -> Iterator[Watch]:
    """A watch for each callback that saves, as MindSpore, MindIO and the Elastic Agent know them."""
    for callback in callbacks:
        if isinstance(callback, ModelCheckpoint):
            yield IterationWatch(callback) if _saves_iterations(callback) else PeriodicWatch(callback)
        if isinstance(callback, OnRequestExit):
            yield ExitWatch(callback)
        if compat.fault_tolerance_module(callback) is not None:
            yield TtpWatch(callback)
        if any(each.__name__ == "ExceptionCheckpoint" for each in type(callback).__mro__):
            yield GaspWatch(callback)
