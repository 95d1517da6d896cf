"""Disks that do not answer: those of a file system whose server is down. A look at one lasts until it is back."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ckptstore.catalog import directories as of_files
from ckptstore.catalog import reads
from ckptstore.catalog.engine import open_to_look
from ckptstore.core.text import some
from ckptstore.disk import presence
from ckptstore.disk.files import facts_if_seen
from ckptstore.disk.run_directories import root_of
from ckptstore.disk.waiting import ANSWER_SECONDS, for_each, hanging, start_thread
from ckptstore.errors import CatalogUnavailableError
from ckptstore.outside import threading

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from ckptstore.catalog.engine import Database

log = logging.getLogger("ckptstore")

NO_ANSWER = f"does not answer within {ANSWER_SECONDS:g} s"


def unanswered(directories: Collection[str]) -> set[str]:
    """Those of these directories whose disks do not answer."""
    hung = hanging({root_of(each) for each in directories})
    return {each for each in directories if root_of(each) in hung}


def unseen_of(paths: Sequence[str]) -> tuple[set[str], set[str]]:
    """Those of these files that are not there, and the directories that do not answer whether others are."""
    hung = unanswered({presence.directory_of(path) for path in paths})
    asked = [path for path in paths if presence.directory_of(path) not in hung]
    seen = for_each(facts_if_seen, asked)
    return {path for path, facts in zip(asked, seen, strict=True) if facts is None}, hung


def unanswered_of(database: Database, run: str | None) -> set[str]:
    """The directories of a run, or of all runs, whose disks do not answer. All are asked at once: it takes 5 s."""
    with database.read() as connection:
        ids = reads.names_of_runs(connection) if run is None else [reads.run_id(connection, run) or 0]
        places: set[str] = set()
        for own in ids:
            announced = {each.directory for each in reads.announced_by(connection, own)}
            found = [] if announced else of_files.of_live_files(connection, own)  # a scan announces none
            places |= announced | {presence.directory_of(path) for path, _ in found}
    return unanswered(places)  # with no transaction open: a fork would wait for its end


@contextmanager
def named_if_slow(database: Database, run: str | None = None) -> Iterator[None]:
    """If the block takes longer than 5 s, warn of the directories of a run, or of all, whose disks do not answer."""
    ended = threading.Event()

    def tell() -> None:
        if ended.wait(ANSWER_SECONDS):
            return
        # With a connection of its own: on PostgreSQL, the block may have that of the process.
        own = open_to_look(database.url.render_as_string(hide_password=False), answer_within=ANSWER_SECONDS)
        try:
            found = {*map(root_of, unanswered_of(own, run))}
        except CatalogUnavailableError:
            return
        finally:
            own.disconnect()
        if found and not ended.is_set():
            log.warning("%s: no answer from the disk: what looks there waits for it", some(sorted(found)))

    start_thread(tell, "ckptstore-disks")
    try:
        yield
    finally:
        ended.set()
