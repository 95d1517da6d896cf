"""What journals say against the protection of states, and the catalog does not: it waits to be confirmed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptstore.doctor.checkup import Status
from ckptstore.journal import jsonl
from ckptstore.journal.accept import unconfirmed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ckptstore.catalog.engine import Database
    from ckptstore.doctor.checkup import Check
    from ckptstore.doctor.run_facts import RunFacts

_MOST_BYTES = 16 << 20


def checks(database: Database, facts: RunFacts) -> Iterator[Check]:
    """A note for each shared journal that says so: what people say of a run is in those."""
    shared = [path for path in facts.journals if path.rpartition("/")[2].startswith(jsonl.SHARED)]
    found, _ = jsonl.read_tails(dict.fromkeys(sorted(shared), 0), _MOST_BYTES)
    for path, contents in found.items():
        with database.read() as connection:
            told = unconfirmed(connection, facts.run, contents.entries)
        if told:
            more = f", and {len(told) - 1} more" if len(told) > 1 else ""
            yield facts.check("marks", Status.NOTE, f"{path}: {told[0]}{more}")
