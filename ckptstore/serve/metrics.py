"""Metrics in Prometheus' text format, computed when they are asked for."""

from __future__ import annotations

from importlib import metadata
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from prometheus_client.metrics_core import Metric

    from ckptstore.resume.overview import RunRow

_RUN = ("run",)


class _Collector:
    def __init__(self, rows: Iterable[RunRow]) -> None:
        self._rows = list(rows)

    def collect(self) -> Iterator[Metric]:
        version = {"version": metadata.version("ckptstore")}
        yield InfoMetricFamily("ckptstore_build", "Version of ckptstore.", version)
        step = GaugeMetricFamily("ckptstore_restorable_step", "Step of the newest restorable state.", labels=_RUN)
        at = GaugeMetricFamily(
            "ckptstore_restorable_timestamp_seconds", "When the newest restorable state was saved.", labels=_RUN
        )
        last = GaugeMetricFamily(
            "ckptstore_last_save_timestamp_seconds", "When the newest save was recorded.", labels=("run", "kind")
        )
        stored = GaugeMetricFamily("ckptstore_stored_bytes", "Bytes of the states that are there.", labels=_RUN)
        trash = GaugeMetricFamily("ckptstore_trash_bytes", "Bytes that gc moved to the trash.", labels=_RUN)
        launches = CounterMetricFamily("ckptstore_launches", "Launches of the run.", labels=_RUN)
        for row in self._rows:
            if row.newest_restorable is not None:
                step.add_metric((row.run,), row.newest_restorable.global_step)
                at.add_metric((row.run,), row.newest_restorable.created_at.timestamp())
            if row.last is not None:
                last.add_metric((row.run, row.last.kind.value), row.last.created_at.timestamp())
            stored.add_metric((row.run,), row.bytes)
            trash.add_metric((row.run,), row.trash_bytes)
            launches.add_metric((row.run,), row.launches)
        yield from (step, at, last, stored, trash, launches)


def text(rows: Iterable[RunRow]) -> bytes:
    """The metrics of these runs. Labels are `run` and `kind`."""
    registry = CollectorRegistry()
    registry.register(_Collector(rows))
    return generate_latest(registry)
