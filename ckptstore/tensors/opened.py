"""Opens a state without MindSpore: its run and step, its files, and its tensors by name."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from ckptstore.catalog import reads
from ckptstore.core import limits
from ckptstore.core.groups import grouped
from ckptstore.core.naming import FOREIGN, ONE_FILE
from ckptstore.errors import UsageError
from ckptstore.formats.tensor_file import TensorFile
from ckptstore.outside import Path
from ckptstore.resume.resolve import choose_state
from ckptstore.resume.resolver import Loads

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ckptstore.catalog.engine import Database
    from ckptstore.core.model import Checkpoint, RestorePlan
    from ckptstore.core.replicas import Layout
    from ckptstore.formats.header import Entry, Scalar
    from ckptstore.tensors.arrays import Array


class Place(NamedTuple):
    """Where a tensor is."""

    file: TensorFile
    entry: Entry


def tensors_in(files: Iterable[TensorFile]) -> dict[str, Place]:
    """The parameters in files by name. If several files have one, the first file counts."""
    found: dict[str, Place] = {}
    for file in files:
        for name, entry in file.tensors.items():
            found.setdefault(name, Place(file, entry))
    return found


def open_state(database: Database, reference: str, *, loads: Loads = Loads.ALL) -> OpenState:
    """The state that a reference names. Raises as `choose_state` does."""
    plan = choose_state(database, reference, loads=loads)
    with database.read() as connection:
        run = reads.called(connection, plan.launch.run)
        saved = reads.files_at(connection, plan.launch, plan.global_step) if plan.in_parts else ()
    parts = grouped((file.rank, file) for file in plan.parts_among(saved) if file.format in ONE_FILE)
    return OpenState(plan, run.name if run else plan.launch.run, parts=parts)


class OpenState(Mapping[str, "Array"]):
    """A state of a run: a mapping from the names of its parameters, also the optimizer's, to NumPy arrays.

    It reads on demand. The first access reads the headers of the files; each `state["conv1.weight"]` reads the bytes of
    that tensor into new memory. `tensors` has types and shapes, and reads no tensor. The parameters are those of rank
    0; `state.rank(1)` has those of rank 1. In a data-parallel state in shares (`remove_redundancy`), every rank has all
    parameters. NumPy has no bfloat16 and no floats of 8 bits: it returns arrays of the same bits, as `uint16` and
    `uint8`. When the state was opened, its files had their recorded sizes and times. `ckptstore.mindspore.load` and
    `Catalog.verify` prove their digests.

    An access raises `KeyError` for an unknown name; `UsageError` if NumPy is not installed, or for a file of another
    framework; `UnreadableError` for an encrypted or damaged file; `DamageError` for a file that was replaced since its
    header was read; `CkptstoreError` for a file that cannot be read.
    """

    def __init__(
        self,
        plan: RestorePlan,
        run: str,
        rank: int = 0,
        parts: Mapping[int, Sequence[Checkpoint]] | None = None,
    ) -> None:
        self.plan = plan
        """For every rank the file that it reads."""
        self.run = run
        """The name that the run has now."""
        self._rank = rank
        self._parts = parts or {}  # of each rank, if the state is the directory of an iteration

    @property
    def launch(self) -> str:
        """The id of the launch that saved it."""
        return self.plan.launch.id

    @property
    def global_step(self) -> int:
        """Batches consumed since the run began."""
        return self.plan.global_step

    @property
    def metrics(self) -> Mapping[str, float]:
        """Its metrics by name, each the mean over the ranks that measured it."""
        return self.plan.metrics

    @property
    def paths(self) -> tuple[str, ...]:
        """The file of each rank, in their order; the file of a replica if a rank has no file of its own."""
        return tuple(each.source.path for each in self.plan.ranks)

    @property
    def layout(self) -> Layout:
        """Who is whose replica: `groups` of ranks, and the `source` of this knowledge."""
        return self.plan.launch.layout

    def rank(self, rank: int) -> OpenState:
        """The same state with the parameters of another rank. Raises `UsageError` if the state has no such rank."""
        last = len(self.plan.ranks) - 1
        try:
            number = limits.whole(rank, last)
        except ValueError:
            told = f"step {self.global_step} of {self.run} has no rank {rank!r}"
            raise UsageError(told, f"it has ranks 0 to {last}") from None
        return OpenState(self.plan, self.run, number, self._parts)

    def files_of(self, rank: int) -> list[Checkpoint]:
        """The files that a rank reads; of an iteration its parts. Raises `UsageError` for another framework's."""
        own = self.plan.files_for(rank, self.layout)
        found = [*own, *(file for file in self._parts.get(rank, ()) if file.path != own[0].path)]
        other = next((file.path for file in found if file.format in FOREIGN), None)
        if other is not None:
            raise UsageError(f"{other} is of another framework than MindSpore", "read it with the one that wrote it")
        return found

    @property
    def tensors(self) -> Mapping[str, Entry]:
        """The `dtype` (MindSpore's name), `shape` and `nbytes` of each parameter by name, from the headers."""
        return {name: place.entry for name, place in self._places.items()}

    @property
    def info(self) -> Mapping[str, Scalar]:
        """The values that were appended to the file, by name: for example `epoch_num`."""
        return self._files[0].header.info

    @cached_property
    def _files(self) -> tuple[TensorFile, ...]:
        return tuple(TensorFile(Path(file.path)) for file in self.files_of(self._rank))

    @cached_property
    def _places(self) -> dict[str, Place]:
        return tensors_in(self._files)

    def __getitem__(self, name: str) -> Array:
        place = self._places[name]
        from ckptstore.tensors.arrays import array_of  # noqa: PLC0415 - it needs NumPy

        return array_of(*place)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, name: object) -> bool:
        return name in self._places

    __eq__ = object.__eq__  # a comparison of all arrays would read each: `ckptstore diff` does that
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"<state {self.run}@{self.global_step} of launch {self.launch}, rank {self._rank} of {len(self.paths)}>"
