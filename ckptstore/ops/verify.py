"""Compare files with what the catalog has of them: by any number of processes at once, on any number of nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptstore.catalog import reads, verifications
from ckptstore.core.model import Rule
from ckptstore.errors import CatalogUnavailableError, UsageError
from ckptstore.ops import to_verify
from ckptstore.ops.adopt import Skipped
from ckptstore.ops.verifier import Verifier

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from datetime import datetime

    from ckptstore.catalog.engine import Database
    from ckptstore.ops.to_verify import Task


@dataclass(frozen=True)
class Damage:
    """A file that is not what was recorded of it: the rule that it breaks, and the particulars."""

    path: str
    rule: Rule
    detail: str


@dataclass(frozen=True)
class Verified:
    """What a verification found, whoever of those that shared it did the work.

    `checked` files were looked at, of `bytes` in all; this call did `own` of them, and others the rest, or an earlier
    call that was interrupted: `began_at` is when the earliest began. `troubles` could not be looked at from here;
    `skipped` are being written or another file by now; `unknown` are on disk in the run's directories and not in the
    catalog; `whole_again` were damaged or gone before. Of `new_digests` files the digest was taken for the first time.
    """

    runs: tuple[str, ...]
    checked: int
    bytes: int
    own: int
    began_at: datetime | None
    damaged: tuple[Damage, ...]
    troubles: tuple[Skipped, ...]
    skipped: tuple[Skipped, ...]
    unknown: tuple[Skipped, ...]
    whole_again: tuple[str, ...]
    new_digests: int


def verify(
    database: Database,
    run: str | None = None,
    *,
    digest: bool = False,
    sample: float | None = None,
    progress: Callable[[int, int], None] = lambda _done, _all: None,
) -> Verified:
    """Compare the files of a run, or of every run, with the catalog, and mark there what is damaged or gone.

    Sizes and headers; with `digest` every byte. `sample` is the part of the files, above 0 and up to 1, that is chosen
    by chance; what the run would go on from, what is newer and what is marked as damaged is always looked at. Those
    who ask for the same at once share the work, and return when all of it is done. `progress` hears how much of it is,
    in bytes with `digest`, else in files. Raises `UnknownRunError`, `UsageError`, and `CatalogUnavailableError` where
    the catalog fails: what was done until then is kept.
    """
    if sample is not None and not 0 < sample <= 1:
        raise UsageError(f"the sample is {sample:g}", "give the part of the files, as 0.1 or 10%")
    if run is None:
        with database.read() as connection:
            names = reads.run_names(connection)
    else:
        names = [run]
    tasks = [to_verify.begin(database, name, digest=digest, sample=sample) for name in names]
    try:
        with Verifier(database, tasks, digest=digest, progress=progress) as verifier:
            verifier.work()
        return _verified(database, tasks, verifier.own)
    except CatalogUnavailableError as error:
        hint = f"{error.hint}; what was verified until now is kept: the same command goes on from there"
        raise CatalogUnavailableError(error.message, hint) from error


def _verified(database: Database, tasks: Sequence[Task], own: int) -> Verified:
    found = []
    unknown: list[tuple[str, str]] = []
    for task in tasks:
        with database.read() as connection:
            in_portions, strangers = verifications.found(connection, task.verification.id)
        found += in_portions
        unknown += strangers

    def every(name: str) -> Iterable[tuple[str, ...]]:
        return sorted({tuple(each) for told in found for each in told[name]})

    return Verified(
        runs=tuple(task.run for task in tasks),
        checked=sum(told["checked"] for told in found),
        bytes=sum(told["bytes"] for told in found),
        own=own + sum(task.gone for task in tasks),
        began_at=min((task.verification.created_at for task in tasks), default=None),
        damaged=tuple(Damage(path, Rule(rule), detail) for path, rule, detail in every("damaged")),
        troubles=tuple(Skipped(*each) for each in every("troubles")),
        skipped=tuple(Skipped(*each) for each in every("skipped")),
        unknown=tuple(Skipped(*each) for each in sorted(unknown)),
        whole_again=tuple(path for told in found for path in told["whole_again"]),
        new_digests=sum(told["new_digests"] for told in found),
    )
