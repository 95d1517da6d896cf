"""Metrics in Prometheus' text format, computed when they are asked for."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

from ckptstore.catalog import gauges
from ckptstore.catalog.copies import tiers_of
from ckptstore.core.copies import CopyState
from ckptstore.doctor.run_facts import backlogs, folder_of, room_of
from ckptstore.doctor.unanswered import unanswered
from ckptstore.resume import overview
from ckptstore.resume.liveness import laggards

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from datetime import datetime

    from prometheus_client.metrics_core import Metric

    from ckptstore.catalog.engine import Database
    from ckptstore.catalog.gauges import InTier, LastSave, Uncopied
    from ckptstore.resume.overview import RunRow

_RUN = ("run",)


@dataclass(frozen=True, eq=False)
class Measured:
    """All runs at one moment. Mappings are by the name of the run, but `saves`."""

    rows: Sequence[RunRow]
    damaged: Mapping[str, int]  # the number of damaged files
    quarantined: Mapping[str, int]  # the number of quarantined states
    saves: Mapping[str, LastSave]  # the newest save of each run, by the id of that save
    newest: Sequence[tuple[str, str, datetime]]  # a run, a kind, and when the run last saved in this kind
    lagging: Mapping[str, int]  # the number of ranks that lack the newest save
    backlog: Mapping[str, int]  # the number of records that are in journals only
    available: Mapping[str, int]  # the free bytes of the disk that the run saved to last, if this machine sees it
    copies: Sequence[InTier]  # the copies in tiers
    uncopied: Sequence[Uncopied]  # the files that wait to be copied; empty without a declared tier of level 1 or above
    on_nodes: Mapping[str, int]  # the number of states on nodes only; empty as `uncopied`

    def collect(self) -> Iterator[Metric]:
        """The metrics. Prometheus' client calls this."""
        version = {"version": metadata.version("ckptstore")}
        yield InfoMetricFamily("ckptstore_build", "Version of ckptstore.", version)
        step = _gauge("restorable_step", "Step of the newest restorable state.")
        at = _gauge("restorable_timestamp_seconds", "When the newest restorable state was saved.")
        last = _gauge("last_save_timestamp_seconds", "When the newest save of the kind was recorded.", "kind")
        took = _gauge("save_duration_seconds", "What the newest save took on its slowest rank.", "kind")
        stored = _gauge("stored_bytes", "Bytes of the states that are there.")
        trash = _gauge("trash_bytes", "Bytes that gc moved to the trash.")
        damaged = _gauge("damaged_files", "Files that differ from their records.")
        lagging = _gauge("lagging_ranks", "Ranks that lack the newest save of their launch.")
        backlog = _gauge("journal_backlog_records", "Records in journals that the catalog has not taken up.")
        quarantined = _gauge("quarantined_states", "States that no start takes, though their files are whole.")
        available = _gauge("filesystem_avail_bytes", "Free bytes of the file system that the run saved to last.")
        launches = CounterMetricFamily("ckptstore_launches", "Launches of the run.", labels=_RUN)
        for row in self.rows:
            of_run = (row.run,)
            if row.newest_restorable is not None:
                step.add_metric(of_run, row.newest_restorable.global_step)
                at.add_metric(of_run, row.newest_restorable.created_at.timestamp())
            save = self.saves.get(row.last.tally.save_id) if row.last else None
            if row.last is not None and save is not None and save.seconds is not None:
                took.add_metric((row.run, row.last.kind.value), save.seconds)
            stored.add_metric(of_run, row.bytes)
            trash.add_metric(of_run, row.trash_bytes)
            damaged.add_metric(of_run, self.damaged.get(row.run, 0))
            quarantined.add_metric(of_run, self.quarantined.get(row.run, 0))
            lagging.add_metric(of_run, self.lagging.get(row.run, 0))
            backlog.add_metric(of_run, self.backlog.get(row.run, 0))
            if row.run in self.available:
                available.add_metric(of_run, self.available[row.run])
            launches.add_metric(of_run, row.launches)
        for run, kind, when in self.newest:
            last.add_metric((run, kind), when.timestamp())
        yield from (step, at, last, took, stored, trash, damaged, lagging, quarantined, backlog, available, launches)
        yield from self._of_tiers()

    def _of_tiers(self) -> Iterator[Metric]:
        copies = _gauge("copies", "Copies of files in the tier, by their state.", "tier", "state")
        size = _gauge("copied_bytes", "Bytes of the ready copies in the tier.", "tier")
        for each in self.copies:
            copies.add_metric((each.run, each.tier, each.state), each.copies)
            if each.state == CopyState.READY.value:
                size.add_metric((each.run, each.tier), each.size)
        uncopied = _gauge("uncopied_files", "Files that wait to be copied to the tier.", "tier")
        oldest = _gauge("oldest_uncopied_timestamp_seconds", "When the oldest of these files was recorded.", "tier")
        for waiting in self.uncopied:
            uncopied.add_metric((waiting.run, waiting.tier), waiting.files)
            oldest.add_metric((waiting.run, waiting.tier), waiting.oldest.timestamp())
        on_nodes = _gauge("states_only_on_nodes", "States with a file that no tier beyond the nodes has.")
        for run, states in self.on_nodes.items():
            on_nodes.add_metric((run,), states)
        yield from (copies, size, uncopied, oldest, on_nodes)


def measure(database: Database, known: Sequence[RunRow] | None = None) -> Measured:
    """Measure every run: by the catalog, its journals and its disk. `known`: their rows, if known already."""
    rows = overview.runs(database) if known is None else known
    with database.read() as connection:
        bad = gauges.damaged_states(connection)
        quarantined = [state.run for state in gauges.quarantined_states(connection)]
        saves = gauges.last_saves(connection, [row.last.tally.save_id for row in rows if row.last])
        newest, saving = gauges.newest_of_kinds(connection), gauges.saving_ranks(connection)
        copies = gauges.copies_in_tiers(connection)
        has_tier = any(each.declared and each.tier.level > 0 for each in tiers_of(connection))
        uncopied = gauges.uncopied_files(connection) if has_tier else []
        on_nodes = gauges.states_only_on_nodes(connection) if has_tier else {}
    damaged: Counter[str] = Counter()
    for state in bad:
        damaged[state.run] += state.files
    last = ((row.run, saves.get(row.last.tally.save_id)) for row in rows if row.last)
    folders = {run: folder_of(save.path) for run, save in last if save is not None}
    hung = unanswered({*folders.values()})
    seen: dict[str, int] = {}
    for run, folder in folders.items():
        if folder not in hung:
            with suppress(OSError):
                seen[run] = room_of(folder).bytes
    return Measured(
        rows,
        damaged,
        Counter(quarantined),
        saves,
        newest,
        {run: _behind(steps) for run, steps in saving.items()},
        backlogs(database),
        seen,
        copies,
        uncopied,
        on_nodes,
    )


def _behind(last_steps: Mapping[int, int]) -> int:
    """The number of ranks that lag. `last_steps` has the last step of each rank."""
    behind = laggards(last_steps, last_steps, max(last_steps.values()))
    return sum(len(ranks) for ranks in behind.values())


def text(measured: Measured) -> bytes:
    """The metrics in Prometheus' text format. Labels are `run`, `kind`, `tier` and `state`."""
    registry = CollectorRegistry()
    registry.register(measured)
    return generate_latest(registry)


def _gauge(name: str, help_text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"ckptstore_{name}", help_text, labels=(*_RUN, *labels))
