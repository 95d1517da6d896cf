"""The output of `ckptstore` without a command: the catalog, its runs, and what to do next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptstore.cli import text
from ckptstore.cli.terminal import line, lines
from ckptstore.core.hints import Call, Command
from ckptstore.core.text import count
from ckptstore.resume.liveness import trouble

if TYPE_CHECKING:
    from collections.abc import Iterable

_RUNS_SHOWN = 10
_ANSWER_SECONDS = 10.0


def show(url: str | None) -> None:
    """Print the overview. Nothing is changed, and no catalog is made. Raises `CatalogUnavailableError`."""
    from ckptstore.catalog.engine import open_to_look
    from ckptstore.resume.overview import runs

    database = open_to_look(url, answer_within=_ANSWER_SECONDS)
    if database.is_missing:
        line(f"no catalog yet: {database.name} is made by the first training, or by a command such as runs or scan")
        _first_steps()
        return
    rows = runs(database)
    if not rows:
        line(f"catalog: {database.name}, without runs yet")
        _first_steps()
        return
    line(f"catalog: {database.name}, {count(len(rows), 'run', 'runs')}")
    line("")
    worst_first = sorted(rows, key=lambda row: -trouble(row.status))
    text.runs(worst_first[:_RUNS_SHOWN])
    if len(rows) > _RUNS_SHOWN:
        line(f"… and {len(rows) - _RUNS_SHOWN} more: {Command('runs')}")
    run = worst_first[0].run
    doctor = (Command("doctor", run), "its problems, and how to solve them")
    _advise(
        (
            *([doctor] if trouble(worst_first[0].status) else []),
            (Command("resolve", run, "--explain"), "where its next start goes on, and why not from a newer state"),
            (Command("list", run), "its saves"),
        )
    )


def _first_steps() -> None:
    line("")
    lines(
        (
            "In a training script, to restore and to save:",
            f"  launch = {Call('ckptstore.mindspore.join', repr('my-run'))}",
            f"  start = {Call('launch.resume', 'model', 'dataset')}",
            f"  saver = {Call('launch.saver', repr('checkpoints'), every=100)}",
            "  model.train(10, dataset, callbacks=[saver], initial_epoch=start.initial_epoch)",
        )
    )
    _advise(
        (
            (Command("scan", "DIR", "--dry-run"), "what adopting the checkpoints below DIR would do"),
            (Command("selftest"), "save, kill, restore and compare a small training here"),
            (Command("--db", "URL", "runs"), "look at another catalog; or set CKPTSTORE_URL"),
        )
    )


def _advise(commands: Iterable[tuple[Command, str]]) -> None:
    shown = [*((str(command), why) for command, why in commands), ("ckptstore --help", "all commands")]
    width = max(len(command) for command, _ in shown)
    line("")
    lines(f"{command:<{width}}  {why}" for command, why in shown)
