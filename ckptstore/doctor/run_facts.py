"""What `doctor` judges a run by: what the catalog says it did last, and what is around its files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckptstore.catalog import reads, recent, replay
from ckptstore.ops.checkup import Check
from ckptstore.ops.lease import CLOCKS_DIFFER, LEASE, RENEWED_EVERY
from ckptstore.storage import journal, places
from ckptstore.storage.surroundings import look_around

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from ckptstore.catalog.engine import Database
    from ckptstore.catalog.recent import End, Home, Lock, Saved, Waiting
    from ckptstore.core.model import Launch
    from ckptstore.ops.checkup import Status
    from ckptstore.storage.surroundings import Surroundings

SAVES = 5
"""So many of the newest saves tell how large the next one is, who lags, and how clocks differ."""


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """One run: `launches` oldest first, those that saved anything (`saved`), and the newest of them with its saves.

    `homes` are where the newest launch saves, `saving_homes` where the one does that saved last; `around` is what was
    seen of all these directories, and of those that have a journal of the run (`journals`: how far each was taken up).
    """

    run: str
    run_id: int
    now: datetime
    launches: tuple[Launch, ...]
    saved: frozenset[str]
    saving: Launch | None
    saves: tuple[Saved, ...]
    homes: tuple[Home, ...]
    saving_homes: tuple[Home, ...]
    ends: tuple[End, ...]
    leased_until: datetime | None
    lock: Lock | None
    trash: tuple[Waiting, ...]
    doubled: tuple[str, str] | None
    journals: Mapping[str, int]
    around: Mapping[str, Surroundings]

    @property
    def newest(self) -> Launch | None:
        """The newest launch."""
        return self.launches[-1] if self.launches else None

    @property
    def is_saving(self) -> bool:
        """Whether the newest launch has saved."""
        return self.saving is not None and self.saving == self.newest

    @property
    def directories(self) -> list[str]:
        """Where the run saves now, and where its newest files are."""
        homes = {home.directory for home in (*self.homes, *self.saving_homes)}
        return sorted(homes | {folder_of(saved.path) for saved in self.saves})

    @property
    def hosts(self) -> dict[int, str]:
        """The host of each rank that said it."""
        return {home.rank: home.host for home in (*self.saving_homes, *self.homes) if home.host}

    @property
    def last_sign(self) -> datetime | None:
        """When the newest launch was last heard of: it began, saved, or said that it makes steps (once an hour)."""
        newest = self.newest
        if newest is None:
            return None
        signs = [newest.created_at, self.leased_until - LEASE if self.leased_until else None]
        signs += [saved.at for saved in self.saves] if self.is_saving else []
        return max((sign for sign in signs if sign is not None), default=None)

    @property
    def is_alive(self) -> bool:
        """Whether the newest launch may be running."""
        if self.newest is None or self.last_sign is None or self.ends:
            return False
        return self.now - self.last_sign < 2 * RENEWED_EVERY + CLOCKS_DIFFER

    def check(self, name: str, status: Status, detail: str, hint: str = "") -> Check:
        """A check of this run."""
        return Check(name, status, detail, hint, self.run)


def gather(database: Database, run: str, run_id: int, now: datetime) -> RunFacts:
    """Ask the catalog about a run, then look at its directories."""
    with database.read() as connection:
        launches = tuple(launch for launch in reads.launches_of(connection, run_id) if not launch.foreign)
        saving_id = recent.newest_saving(connection, run_id)
        saving = next((launch for launch in launches if launch.id == saving_id), None)
        saves = recent.newest_saves(connection, saving.id, SAVES) if saving else []
        newest = launches[-1].id if launches else ""
        homes = recent.homes_of(connection, newest)
        saving_homes = recent.homes_of(connection, saving.id) if saving and saving.id != newest else homes
        known = replay.journals_of(connection, run_id)
        saved = frozenset(reads.first_saves(connection, run_id))
        ends = tuple(recent.ends_of(connection, newest))
        leased_until = recent.lease_of(connection, newest)
        lock, trash = recent.lock_of(connection, run_id), tuple(recent.waiting(connection, run_id))
        doubled = recent.twice(connection, [newest, *([saving.id] if saving else [])])
    folders = {home.directory for home in (*homes, *saving_homes)} | {folder_of(each.path) for each in saves}
    around = look_around(sorted(folders | {journal.directory_of(path) for path in known}))
    return RunFacts(
        run=run,
        run_id=run_id,
        now=now,
        launches=launches,
        saved=saved,
        saving=saving,
        saves=tuple(saves),
        homes=tuple(homes),
        saving_homes=tuple(saving_homes),
        ends=ends,
        leased_until=leased_until,
        lock=lock,
        trash=trash,
        doubled=doubled,
        journals={path: each.end for path, each in known.items()},
        around={each.directory: each for each in around},
    )


def folder_of(path: str) -> str:
    """The directory that a file is in."""
    return path.rpartition("/")[0] or "/"


def roots(directories: list[str]) -> list[str]:
    """The directories that have those of the ranks in them."""
    return sorted({places.root_of(directory) for directory in directories})
