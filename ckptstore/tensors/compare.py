"""Compares two states, or two files: which parameters are new, gone or of another shape, and how far the others moved.

Two files with the same recorded digest are not read. Ranks whose pairs of files have the same digests share one
comparison.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from ckptstore.core.groups import grouped
from ckptstore.core.naming import ONE_FILE
from ckptstore.formats.tensor_file import TensorFile
from ckptstore.outside import Path, ThreadPoolExecutor, os
from ckptstore.tensors.norms import NUMBERS, Apart, Room
from ckptstore.tensors.opened import open_state, tensors_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from ckptstore.catalog.engine import Database
    from ckptstore.core.model import Checkpoint
    from ckptstore.core.replicas import Layout
    from ckptstore.outside import Future
    from ckptstore.tensors.opened import OpenState, Place

    Progress = Callable[[int, int], None]
    """Called with the number of bytes compared so far, and their number at most."""

_PIECE = 8 << 20  # bytes of a tensor that a thread compares at a time, block by block
_THREADS = min(4, os.cpu_count() or 1)


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the two sides. A file has only `name`, and `optimizer_step` from its counter (None: not known)."""

    name: str  # the reference, or the path
    run: str | None = None
    launch: str | None = None
    global_step: int | None = None
    epoch: int | None = None
    step_in_epoch: int | None = None
    optimizer_step: int | None = None
    metrics: Mapping[str, float]
    world_size: int | None = None
    layout: Layout | None = None


class Described(NamedTuple):
    """A parameter; `dtype` is MindSpore's name of its type."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class Reshaped(NamedTuple):
    """A parameter that is of another type or shape on the second side."""

    name: str
    first: Described
    second: Described


class Changed(NamedTuple):
    """A parameter whose bytes differ, with norms of the difference over the elements that are finite on both sides.

    The norms are None for a type that is not compared as numbers, as Int4. `relative` is `l2` divided by the larger L2
    norm of the two sides: 0 to 2.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    relative: float | None
    l2: float | None
    max_abs: float | None
    nan: tuple[int, int]  # how many elements of the first and of the second side are not a number
    inf: tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class RankCompared:
    """The comparison of ranks that share one pair of files."""

    ranks: tuple[int, ...]
    paths: tuple[tuple[str, ...], tuple[str, ...]]  # the files of both sides, of the first of these ranks
    same_bytes: bool  # both sides are one file or have the same recorded digest: nothing was read
    same: int | None = None  # how many parameters have the same bytes; None: nothing was read
    new: tuple[Described, ...] = ()  # in the second only
    gone: tuple[Described, ...] = ()  # in the first only
    reshaped: tuple[Reshaped, ...] = ()
    changed: tuple[Changed, ...] = ()  # those with elements that are not finite first, then the largest relative norm


@dataclass(frozen=True, kw_only=True)
class Compared:
    """Two states or files side by side."""

    first: Side
    second: Side
    ranks: tuple[RankCompared, ...]
    unmatched: tuple[int, ...]  # ranks that only the side with more ranks has


@dataclass(frozen=True)
class _Files:
    """The files that a rank reads on one side. They are equal if their digests are, or without digests their paths."""

    key: tuple[str, ...]
    paths: tuple[str, ...] = field(compare=False)
    opened: tuple[TensorFile, ...] = field(default=(), compare=False)

    def tensors(self) -> dict[str, Place]:
        """Their tensors by name."""
        return tensors_in(self.opened or (TensorFile(Path(path)) for path in self.paths))


def compare(
    first: str | Path,
    second: str | Path,
    database: Callable[[], Database],
    progress: Progress = lambda _done, _all: None,
) -> Compared:
    """Compare two states or files: each is a reference, or a file, as a path or a name in .ckpt or .safetensors.

    `database` is called only to resolve a reference. Each rank is compared with the same rank of the other side. Raises
    as `open_state` and `TensorFile` do.
    """
    (one, its_ranks), (other, other_ranks) = (_side(each, database) for each in (first, second))
    pairs = grouped((pair, rank) for rank, pair in enumerate(zip(its_ranks, other_ranks, strict=False)))
    to_read = {path for one, other in pairs if one != other for path in one.paths + other.paths}
    count = _Count(sum(map(os.path.getsize, to_read)), progress)
    return Compared(
        first=one,
        second=other,
        ranks=tuple(_of_ranks(tuple(ranks), *pair, count) for pair, ranks in pairs.items()),
        unmatched=tuple(range(*sorted((len(its_ranks), len(other_ranks))))),
    )


def is_file(given: str | Path) -> bool:
    """Whether the text names a file, and not a state."""
    return isinstance(given, Path) or given.endswith(tuple(f".{form}" for form in ONE_FILE))


def _side(given: str | Path, database: Callable[[], Database]) -> tuple[Side, Sequence[_Files]]:
    if not is_file(given):
        state = open_state(database(), str(given))
        return _of_state(str(given), state), [_recorded(state.files_of(each.rank)) for each in state.plan.ranks]
    file = TensorFile(Path(given))
    side = Side(name=str(given), optimizer_step=file.header.optimizer_step, metrics={})
    return side, [_Files((os.path.realpath(given),), (str(given),), (file,))]


def _of_state(name: str, state: OpenState) -> Side:
    plan, launch = state.plan, state.plan.launch
    counted = {each.source.optimizer_step for each in plan.ranks}
    return Side(
        name=name,
        run=state.run,
        launch=launch.id,
        global_step=plan.global_step,
        epoch=plan.epoch,
        step_in_epoch=plan.step_in_epoch,
        optimizer_step=counted.pop() if len(counted) == 1 else None,
        metrics=plan.metrics,
        world_size=launch.world_size,
        layout=launch.layout,
    )


def _recorded(files: Sequence[Checkpoint]) -> _Files:
    keys = [file.digest or os.path.realpath(file.path) for file in files]
    return _Files(tuple(sorted(keys)), tuple(file.path for file in files))  # sorted: each rank has its own share first


def _of_ranks(ranks: tuple[int, ...], one: _Files, other: _Files, count: _Count) -> RankCompared:
    paths = (one.paths, other.paths)
    if one == other:
        return RankCompared(ranks=ranks, paths=paths, same_bytes=True)
    first, second = one.tensors(), other.tensors()
    both = {name: (first[name], second[name]) for name in first if name in second}
    alike = {name: pair for name, pair in both.items() if _described(pair[0]) == _described(pair[1])}
    apart = dict(zip(alike, _apart(list(alike.values()), count), strict=True))
    return RankCompared(
        ranks=ranks,
        paths=paths,
        same_bytes=False,
        same=sum(each.same_bytes for each in apart.values()),
        new=tuple(_described(place) for name, place in second.items() if name not in both),
        gone=tuple(_described(place) for name, place in first.items() if name not in both),
        reshaped=tuple(
            Reshaped(name, _described(before), _described(after))
            for name, (before, after) in both.items()
            if name not in alike
        ),
        changed=tuple(
            largest_first(
                _changed(_described(alike[name][0]), each) for name, each in apart.items() if not each.same_bytes
            )
        ),
    )


def _described(place: Place) -> Described:
    return Described(*place.entry[:3])


def _changed(what: Described, apart: Apart) -> Changed:
    if what.dtype not in NUMBERS:
        return Changed(*what, None, None, None, (0, 0), (0, 0))
    return Changed(*what, apart.relative, apart.l2, apart.max_abs, apart.nan, apart.inf)


def largest_first(changed: Iterable[Changed]) -> list[Changed]:
    """Sort: parameters with the most elements that are not finite first, then by the relative norm, then by `l2`."""
    return sorted(
        changed, key=lambda each: (sum(each.nan + each.inf), each.relative or 0.0, each.l2 or 0.0), reverse=True
    )


class _Count:
    """Counts the bytes that were compared, and reports them to `progress`."""

    def __init__(self, total: int, progress: Progress) -> None:
        self._done, self._total, self._progress = 0, total, progress

    def add(self, more: int) -> None:
        self._done += more
        self._progress(self._done, self._total)


class _Piece(NamedTuple):
    number: int  # of the pair of tensors
    bytes: range  # of both


def _apart(pairs: Sequence[tuple[Place, Place]], count: _Count) -> list[Apart]:
    """Compare pairs of tensors of the same type and shape. A few threads read them in pieces."""
    found = [Apart(same_bytes=one.entry.nbytes == other.entry.nbytes) for one, other in pairs]
    rooms = [Room() for _ in range(_THREADS)]

    def look(pieces: Sequence[_Piece]) -> list[Apart]:
        one, other = pairs[pieces[0].number]
        room = rooms.pop()
        try:
            with one.file.opened() as read_one, other.file.opened() as read_other:
                return [
                    room.compared(
                        pairs[number][0].entry.dtype,
                        piece,
                        partial(read_one, pairs[number][0].entry),
                        partial(read_other, pairs[number][1].entry),
                    )
                    for number, piece in pieces
                ]
        finally:
            rooms.append(room)

    with ThreadPoolExecutor(_THREADS, "ckptstore-diff") as pool:
        begun: deque[tuple[Sequence[_Piece], Future[list[Apart]]]] = deque()

        def finish() -> None:
            pieces, future = begun.popleft()
            for (number, piece), apart in zip(pieces, future.result(), strict=True):
                found[number] = found[number].with_piece(apart)
                count.add(2 * len(piece))

        try:
            for pieces in _portions(pairs):
                begun.append((pieces, pool.submit(look, pieces)))
                if len(begun) > 2 * _THREADS:
                    finish()
            while begun:
                finish()
        finally:
            pool.shutdown(cancel_futures=True)
    return found


def _portions(pairs: Sequence[tuple[Place, Place]]) -> Iterator[list[_Piece]]:
    """Split the bytes of all tensors into portions for the threads. A portion is in one pair of files."""
    portion: list[_Piece] = []
    left, files = 0, None
    for number, (one, other) in enumerate(pairs):
        size = one.entry.nbytes if one.entry.nbytes == other.entry.nbytes else 0  # else: a type of unknown size
        for begin in range(0, size, _PIECE):
            piece = range(begin, min(begin + _PIECE, size))
            if portion and (len(piece) > left or files != (one.file, other.file)):
                yield portion
                portion = []
            if not portion:
                left, files = _PIECE, (one.file, other.file)
            portion.append(_Piece(number, piece))
            left -= len(piece)
    if portion:
        yield portion
