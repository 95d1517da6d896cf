"""The catalog's tables, the same on SQLite and PostgreSQL."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.types import TypeDecorator

from ckptstore.catalog.any_of import one_of
from ckptstore.core.model import FileState

if TYPE_CHECKING:
    from collections.abc import Callable

metadata = sa.MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    }
)


class UtcDateTime(TypeDecorator[datetime]):
    """A moment in UTC. SQLite stores no time zone, so reading adds it again."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> datetime | None:  # noqa: ARG002
        """Convert to UTC before storing."""
        return None if value is None else value.astimezone(timezone.utc)

    def result_processor(self, dialect: sa.Dialect, coltype: object) -> Callable[[Any], Any]:  # noqa: ARG002
        """Add the time zone after reading."""
        return in_utc


def in_utc(value: str | datetime | None) -> datetime | None:
    """The moment for the value that a driver returns for a `UtcDateTime`: text on SQLite."""
    if isinstance(value, str):
        return datetime.fromisoformat(f"{value}+00:00")
    if value is None:
        return None
    return value.astimezone(timezone.utc) if value.tzinfo else value.replace(tzinfo=timezone.utc)


ID = sa.String(32)
"""A derived id: 16 bytes in hexadecimal."""

runs = sa.Table(
    "runs",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("name", sa.String(200), nullable=False, unique=True),
)

launches = sa.Table(
    "launches",
    metadata,
    sa.Column("id", ID, primary_key=True),
    sa.Column("run_id", sa.ForeignKey("runs.id"), nullable=False),
    sa.Column("name", sa.String(200), nullable=False),
    sa.Column("launch_order", sa.Integer, nullable=False),
    sa.Column("world_size", sa.Integer, nullable=False),
    sa.Column("layout", sa.JSON, nullable=False),
    sa.Column("steps_per_epoch", sa.Integer),
    sa.Column("batch_size", sa.Integer),
    sa.Column("shards", sa.Integer),
    sa.Column("data_version", sa.String(64)),
    sa.Column("created_at", UtcDateTime, nullable=False),
    sa.Column("owner", sa.BigInteger, nullable=False),
    sa.Index(None, "run_id", "launch_order"),
)
"""The launches of runs. `id` is derived from the run and the `name` that users see: two runs may use the same name.
`launch_order` is the place among the launches of the run, by (`created_at`, `name`).

`data_version` is the version of `steps_per_epoch`, `batch_size` and `shards` (NULL: none of them is known). `owner` is
the number of the user that owns its process, or the journal that the launch was read from.
"""

resolutions = sa.Table(
    "resolutions",
    metadata,
    sa.Column("launch_id", sa.ForeignKey("launches.id"), primary_key=True),
    sa.Column("parent_launch_id", sa.ForeignKey("launches.id")),
    sa.Column("parent_step", sa.BigInteger),
    sa.Column("branched", sa.Boolean, nullable=False),
    sa.Column("start_step", sa.BigInteger),
    sa.Column("plan", sa.JSON, nullable=False),
    sa.Column("passed", sa.JSON, nullable=False),
    sa.Column("initial", sa.JSON(none_as_null=True)),
    sa.Column("initial_launch_id", ID, index=True),
    sa.Column("created_at", UtcDateTime, nullable=False),
)
"""The one plan of a launch: the first one stored wins, by the primary key.

`parent_step` is the step in the parent's count, `start_step` the same step in the launch's own count. `passed` are the
newer states that were passed over: launch, step, rule and why. `initial` is the state of another run that the launch
starts from, a `core.model.Initial`. `initial_launch_id` is the launch that saved it; the catalog may not know it.
"""

outcomes = sa.Table(
    "outcomes",
    metadata,
    sa.Column("launch_id", sa.ForeignKey("launches.id"), primary_key=True),
    sa.Column("rank", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("outcome", sa.String(16), nullable=False),
    sa.Column("checkpoint_id", ID),
    sa.Column("detail", sa.Text),
    sa.Column("created_at", UtcDateTime, nullable=False),
    sa.Column("version", sa.String(64), nullable=False),
    sa.Index(None, "launch_id", "outcome"),  # every rank of every launch has saved: the few that failed must be found
)
"""The outcome of a launch's plan on a rank: it could not load its file (the checkpoint and why), or it saved again.

The catalog may not have the checkpoint yet: its record may be in another journal, which is read later.
"""

sources = sa.Table(
    "sources",
    metadata,
    sa.Column("launch_id", sa.ForeignKey("launches.id"), primary_key=True),
    sa.Column("rank", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("directory", sa.Text, primary_key=True, index=True),  # whoever writes to it is sought, of any run
    sa.Column("kind", sa.String(16), primary_key=True),
    sa.Column("prefix", sa.Text, primary_key=True),
    sa.Column("breakpoint_prefix", sa.Text, nullable=False),
    sa.Column("names_before", sa.JSON, nullable=False),
    sa.Column("host", sa.Text),
    sa.Column("content", sa.String(16)),
    sa.Column("directory_id", sa.String(16)),
    sa.Column("created_at", UtcDateTime, nullable=False),
)
"""The directory and the host where a rank of a launch saves. Its unregistered files are looked for there.

`content` is what its files hold, `directory_id` the identity of the directory (NULL: not known).
"""

endings = sa.Table(
    "endings",
    metadata,
    sa.Column("launch_id", sa.ForeignKey("launches.id"), primary_key=True),
    sa.Column("rank", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("global_step", sa.BigInteger, nullable=False),
    sa.Column("optimizer_step", sa.BigInteger),
    sa.Column("error", sa.Text),
    sa.Column("quarantine", sa.Text),
    sa.Column("created_at", UtcDateTime, nullable=False),
    sa.Column("version", sa.String(64), nullable=False),
)
"""How training ended on a rank, as its callback saw it: the exact step of the breakpoint that MindSpore writes next."""

strategies = sa.Table(
    "strategies",
    metadata,
    sa.Column("digest", sa.String(64), primary_key=True),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("content", sa.LargeBinary, nullable=False),
)
"""The contents of strategy and group info files, compressed by zlib: each content once, by its BLAKE3 digest."""

launch_strategies = sa.Table(
    "launch_strategies",
    metadata,
    sa.Column("launch_id", sa.ForeignKey("launches.id"), primary_key=True),
    sa.Column("rank", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("digest", sa.ForeignKey("strategies.digest"), primary_key=True),
    sa.Column("path", sa.Text, nullable=False),
)
"""Which of `strategies` a rank of a launch wrote, and its path. The next launch overwrites the file at that path."""

saves = sa.Table(
    "saves",
    metadata,
    sa.Column("id", ID, primary_key=True),
    sa.Column("launch_id", sa.ForeignKey("launches.id"), nullable=False),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("global_step", sa.BigInteger, nullable=False),
    sa.Column("created_at", UtcDateTime, nullable=False),
    sa.Index(None, "launch_id", "global_step"),
)

checkpoints = sa.Table(
    "checkpoints",
    metadata,
    sa.Column("id", ID, primary_key=True),
    sa.Column("save_id", sa.ForeignKey("saves.id"), nullable=False),
    sa.Column("rank", sa.Integer, nullable=False),
    sa.Column("path", sa.Text, nullable=False),
    sa.Column("optimizer_step", sa.BigInteger),
    sa.Column("epoch", sa.Integer),
    sa.Column("step_in_epoch", sa.Integer),
    sa.Column("size", sa.BigInteger),
    sa.Column("digest", sa.String(64)),
    sa.Column("mtime_ns", sa.BigInteger, index=True),  # by which gc finds other paths of a file, in any run
    sa.Column("format", sa.String(16), nullable=False),
    sa.Column("content", sa.String(16), nullable=False),
    sa.Column("strategy_file", sa.Text),
    sa.Column("metrics", sa.JSON, nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("reported", sa.String(16), nullable=False),
    sa.Column("problem", sa.String(32)),
    sa.Column("quarantine", sa.Text),
    sa.Column("created_at", UtcDateTime, nullable=False),
    sa.Column("revision", sa.BigInteger),
    sa.Column("grade", sa.String(16)),
    sa.Column("doubt", sa.Text),
    sa.Column("pause", sa.Double),
    sa.Column("written_after", sa.Double),
    sa.Column("step_took", sa.Double),
    sa.Column("directory_id", sa.String(16)),
    sa.Column("version", sa.String(64), nullable=False),
    sa.Index(None, "path", "created_at"),  # a path may be written at each save: its next record must be found at once
    sa.Index(None, "save_id", "state"),  # queries for present files must not read deleted ones
)
"""`reported` is the state in the newest record. `project` derives `state` from it, from what retention did with the
file, and from other records at the same path. `version` orders the records of one file. It is made of `revision`, or of
`mtime_ns` if that is NULL. `pause`, `written_after` and `step_took` are a `core.model.Timing`, in seconds (NULL: not
measured).
"""

tiers = sa.Table(
    "tiers",
    metadata,
    sa.Column("id", ID, primary_key=True),
    sa.Column("name", sa.String(64), nullable=False),
    sa.Column("url", sa.Text, nullable=False),
    sa.Column("level", sa.Integer, nullable=False),
    sa.Column("declared", sa.Boolean, nullable=False),
    sa.Column("version", sa.String(64), nullable=False),
)
"""Places that hold copies of checkpoints of any run. `id` is derived from the name and the URL.

A tier that is not `declared` was removed, or only another user's journal names it for a copy: nothing is copied there.
"""

copies = sa.Table(
    "copies",
    metadata,
    sa.Column("checkpoint_id", ID, primary_key=True),
    sa.Column("tier_id", sa.ForeignKey("tiers.id"), primary_key=True),
    sa.Column("launch_id", sa.ForeignKey("launches.id"), nullable=False, index=True),
    sa.Column("location", sa.Text, nullable=False),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("size", sa.BigInteger),
    sa.Column("digest", sa.String(64)),
    sa.Column("beside", sa.JSON, nullable=False),
    sa.Column("detail", sa.Text, nullable=False),
    sa.Column("created_at", UtcDateTime, nullable=False),
    sa.Column("version", sa.String(64), nullable=False),
    sa.Index(None, "tier_id", "state"),
)
"""The copy of a file in a tier. It matches the record of the file if the digests are equal.

`location` is its key below the tier's URL, `beside` the objects that were copied with it. A copy may be recorded before
its file.
"""

copying = sa.Table(
    "copying",
    metadata,
    sa.Column("object_id", ID, primary_key=True),
    sa.Column("tier_id", ID, primary_key=True),
    sa.Column("launch_id", sa.ForeignKey("launches.id"), nullable=False),
    sa.Column("process", sa.Text, nullable=False),
    sa.Column("expires_at", UtcDateTime, nullable=False),
)
"""Objects that a process copies to a tier now. No other process does so until this one ends, or its lease expires.

Ranks whose files have one name and the same bytes share an object. Its id is derived from its key.
"""

unplaced = sa.Table(
    "unplaced",
    metadata,
    sa.Column("run_id", sa.ForeignKey("runs.id"), primary_key=True),
    sa.Column("path", sa.Text, primary_key=True),
    sa.Column("size", sa.BigInteger, nullable=False),
    sa.Column("mtime_ns", sa.BigInteger, nullable=False),
    sa.Column("best_guess", sa.BigInteger),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("remedy", sa.Text, nullable=False),
    sa.Column("version", sa.String(64), nullable=False),
)
"""Files whose step a scan could not tell. A row no longer counts if its file got a record, was changed or deleted."""

pins = sa.Table(
    "pins",
    metadata,
    sa.Column("run_id", sa.ForeignKey("runs.id"), primary_key=True),
    sa.Column("global_step", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("pinned", sa.Boolean, nullable=False),
    sa.Column("version", sa.String(64), nullable=False),
)
"""The last statement about a step. The row stays when it is unpinned, so that an older statement changes nothing."""

journals = sa.Table(
    "journals",
    metadata,
    sa.Column("run_id", sa.ForeignKey("runs.id"), primary_key=True),
    sa.Column("path", sa.Text, primary_key=True, index=True),  # a segment is sought by its path, of whatever run
    sa.Column("read_to", sa.BigInteger, nullable=False),
    sa.Column("by_summary", sa.Boolean, nullable=False),
    sa.Column("is_copy", sa.Boolean, nullable=False),
)
"""The segments of journals with events of a run, and up to which byte the catalog has their events.

`by_summary`: only the summary of the segment was read. It has the events that a start needs, and no outdated ones.
`is_copy`: a user has copied the segment together with its directory. Only its files were read, and only once.
"""

unwritten = sa.Table(
    "unwritten",
    metadata,
    sa.Column("run_id", sa.ForeignKey("runs.id"), primary_key=True),
    sa.Column("id", ID, primary_key=True),
    sa.Column("directory", sa.Text, nullable=False),
    sa.Column("home", sa.JSON, nullable=False),
    sa.Column("line", sa.JSON, nullable=False),
)
"""Lines that the journal of a directory lacks, since it could not be written when they were recorded.

`home` identifies the directory: its identities, and places of files in it.
"""

tags = sa.Table(
    "tags",
    metadata,
    sa.Column("run_id", sa.ForeignKey("runs.id"), primary_key=True),
    sa.Column("name", sa.String(200), primary_key=True),
    sa.Column("global_step", sa.BigInteger),
    sa.Column("version", sa.String(64), nullable=False),
)
"""The step of a tag; NULL: the tag was removed."""

policies = sa.Table(
    "policies",
    metadata,
    sa.Column("run_id", sa.ForeignKey("runs.id"), primary_key=True),
    sa.Column("rules", sa.JSON(none_as_null=True)),
    sa.Column("version", sa.String(64), nullable=False),
)
"""The rules of retention for a run, if the command line has none; NULL: cleared."""

renamed = sa.Table(
    "renamed",
    metadata,
    sa.Column("run_id", sa.ForeignKey("runs.id"), primary_key=True),
    sa.Column("name", sa.String(200), nullable=False, index=True),
    sa.Column("version", sa.String(64), nullable=False),
)
"""The present name of a run. Ids are made of its first name (`runs`), which still finds it."""

forgotten = sa.Table(
    "forgotten",
    metadata,
    sa.Column("run_id", sa.ForeignKey("runs.id"), primary_key=True),
    sa.Column("forgotten", sa.Boolean, nullable=False),
    sa.Column("version", sa.String(64), nullable=False),
)
"""Whether a run is hidden. The row stays when it is shown again, so that an older statement changes nothing."""

leases = sa.Table(
    "leases",
    metadata,
    sa.Column("launch_id", sa.ForeignKey("launches.id"), primary_key=True),
    sa.Column("expires_at", UtcDateTime, nullable=False),
    sa.Column("process", sa.String(300)),
    sa.Column("seen_at", UtcDateTime),
)
"""Until when a launch holds the state that it starts from (`resolutions`), and its newest sign of life: `seen_at`, and
the `process` that gave it (NULL: none did, or the launch has ended).
"""

exit_requests = sa.Table(
    "exit_requests",
    metadata,
    sa.Column("launch_id", sa.ForeignKey("launches.id"), primary_key=True),
    sa.Column("asked_at", UtcDateTime, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
)
"""Which launches were asked to save and leave. Rank 0 reads this too: the requester may not see the disk of rank 0."""

views = sa.Table(
    "views",
    metadata,
    sa.Column("launch_id", sa.ForeignKey("launches.id"), primary_key=True),
    sa.Column("rank", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("host", sa.Text, nullable=False),
    sa.Column("seen", sa.JSON, nullable=False),
)
"""Which of the files that it may load each rank of a starting launch sees, if the ranks have no disk in common."""

gc_locks = sa.Table(
    "gc_locks",
    metadata,
    sa.Column("run_id", sa.ForeignKey("runs.id"), primary_key=True),
    sa.Column("owner", sa.String(300), nullable=False),
    sa.Column("expires_at", UtcDateTime, nullable=False),
)
"""The process that moves or deletes files of a run now: one at a time."""

notifications = sa.Table(
    "notifications",
    metadata,
    sa.Column("receiver", ID, primary_key=True),
    sa.Column("fact", ID, primary_key=True),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("owner", sa.String(32), nullable=False),
    sa.Column("held_until", UtcDateTime, nullable=False),
    sa.Column("told_at", UtcDateTime),
)
"""When `watch` told which fact to which receiver (`told_at` NULL: not yet, or the fact has ended since).

Until `held_until` no watcher but `owner` sends the fact.

The receiver's address is not stored, since it may contain a password: `receiver` is an id.
"""

collections = sa.Table(
    "collections",
    metadata,
    sa.Column("run_id", sa.ForeignKey("runs.id"), primary_key=True),
    sa.Column("id", sa.String(32), primary_key=True),
    sa.Column("created_at", UtcDateTime, nullable=False),
    sa.Column("purge_after", UtcDateTime, nullable=False),
    sa.Column("ended", sa.Boolean, nullable=False),
    sa.Column("version", sa.String(64), nullable=False),
)
"""One gc that moved files into the trash."""

trash = sa.Table(
    "trash",
    metadata,
    sa.Column("id", ID, primary_key=True),
    sa.Column("run_id", sa.ForeignKey("runs.id"), nullable=False),
    sa.Column("collection_id", sa.String(32), nullable=False, index=True),
    sa.Column("checkpoint_id", ID),
    sa.Column("of_version", sa.String(64), nullable=False),
    sa.Column("root", sa.Text, nullable=False),
    sa.Column("place", sa.Text, nullable=False),
    sa.Column("size", sa.BigInteger, nullable=False),
    sa.Column("mtime_ns", sa.BigInteger, nullable=False),
    sa.Column("wanted", sa.String(16), nullable=False),
    sa.Column("settled", sa.Boolean, nullable=False),
    sa.Column("changed_at", UtcDateTime, nullable=False),
    sa.Column("version", sa.String(64), nullable=False),
    sa.Index(None, "run_id", "settled", "wanted"),
    sa.Index(None, "checkpoint_id", "run_id", "settled", "wanted"),  # else SQLite reads all rows of a run for one
)
"""A file that retention has given up: `place` is its path below `root`, `of_version` the generation of its record then.

`wanted` (home, trash or gone) is recorded before the move, `settled` after it. Finished rows stay, so that an older
event changes nothing. A removal may be recorded before its file.
"""

IS_REMOVED = sa.or_(sa.not_(trash.c.settled), sa.and_(trash.c.settled, trash.c.wanted == "trash"))
"""Whether retention has a file: it is in the trash, or on its way to or from it. In this form the index is used."""

REMOVED_PATH = sa.func.rtrim(trash.c.root, "/") + "/" + trash.c.place
"""Where a file was that retention has given up. In a tree that was moved, its record there has another id."""

IS_THERE = one_of(checkpoints.c.state, FileState.COMPLETE.value, FileState.IN_PROGRESS.value, FileState.DAMAGED.value)
"""Whether a file is where it was recorded, as far as the catalog knows."""

FILES = checkpoints.join(saves)
FILES_OF_LAUNCHES = FILES.join(launches, launches.c.id == saves.c.launch_id)
FILES_OF_RUNS = FILES_OF_LAUNCHES.join(runs)
"""How a file, its save, its launch and its run belong together: every query for files is made of one of these."""
