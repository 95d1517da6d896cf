"""The command that says how often a run should save. Imports stand where they are used: `--help` must be quick."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from ckptstore.cli import values
from ckptstore.cli.commands import Parsed, as_json, catalog, duration, run_argument, seconds
from ckptstore.cli.terminal import Rows, line
from ckptstore.core.text import count, size, span

if TYPE_CHECKING:
    from ckptstore.advise.advise import Advice, Interval

_FEW = 10
_SHORT_SECONDS = 120


@click.command()
@run_argument
@click.option(
    "--mtbf",
    type=Parsed("time", duration),
    metavar="12h",
    help="The mean time between failures. Default: that of the failures in the catalog.",
)
@click.option(
    "--grace",
    type=Parsed("time", seconds),
    metavar="30s",
    help="Say whether this grace period of its containers is enough.",
)
@as_json
@click.pass_context
def advise(context: click.Context, run: str, *, mtbf: timedelta | None, grace: float | None, as_json: bool) -> None:
    """Say how often RUN should save to lose the least.

    From the cost of its newest saves and the failures of its launches it computes how many steps a week the run is
    expected to lose now and at the best interval, how much space its states take, and how long it needs to save and
    leave when a node is drained. Nothing is changed.
    """
    found = catalog(context).advise(run, mtbf=mtbf)
    if as_json:
        values.write({**_values(found), "grace_seconds": found.grace, "grace_given_seconds": grace})
    else:
        _show(found)
        _show_grace(found, grace)


def _values(found: Advice) -> dict[str, Any]:
    low, high = found.failures.between
    return {
        "run": found.run,
        "pause_seconds": found.cost.pause,
        "written_seconds": found.cost.written if found.is_written else None,
        "step_seconds": found.step,
        "state_bytes": found.state_bytes,
        "policy": found.policy.to_json() if found.policy else None,
        "failures": found.failures.count,
        "trained_seconds": found.failures.seconds,
        "failures_mtbf_low_seconds": low,
        "failures_mtbf_high_seconds": high,
        "mtbf_seconds": found.mtbf,
        "mtbf_given": found.is_given,
        "present": _interval(found.present),
        "best": _interval(found.best),
        "others": [_interval(each) for each in found.others],
    }


def _interval(interval: Interval | None) -> dict[str, Any] | None:
    if interval is None:
        return None
    return {
        "steps": interval.steps,
        "seconds": interval.seconds,
        "mtbf_seconds": interval.mtbf,
        "lost_steps_a_week": interval.lost_steps,
        "states_bytes": interval.room.states,
        "trash_bytes": interval.room.trash,
        "more_bytes_a_week": interval.room.each_week,
    }


def _show(found: Advice) -> None:
    on_disk = (
        f"on the disk after {_time(found.cost.written)}"
        if found.is_written
        else "how long until it is on the disk is unknown"
    )
    line(f"a save: training stands still for {_time(found.cost.pause)}; {on_disk}; {size(found.state_bytes)}")
    line(f"a step: {_time(found.step)}")
    line(f"failures: {_failures(found)}")
    shown = Rows("saves", ">every", ">in time", ">lost per week", ">states", ">trash", ">growth per week")
    if found.present:
        shown.add_row("now", *_cells(found.present))
    if found.best:
        shown.add_row("best", *_cells(found.best))
    for each in found.others:
        shown.add_row(f"best at a failure each {_time(each.mtbf or 0.0)}", *_cells(each))
    shown.print("")
    if found.present and found.present.seconds < found.cost.shortest:
        line("it saves faster than the disk takes it: each save waits for the one before")
    if found.policy is None:
        line("no policy is stored: the space is that of a run from which nothing is removed")
    else:
        line("the sizes above are upper limits, by the stored policy")


def _show_grace(found: Advice, given: float | None) -> None:
    """Print how long an exit on request takes, and whether the grace period is long enough."""
    needs = f"an exit on request takes up to {_time(found.grace)}"
    if given is None:
        line(
            f"{needs}: set the grace period of your scheduler (Kubernetes: terminationGracePeriodSeconds) to "
            f"{_time(found.grace)} or more"
        )
    elif given < found.grace:
        line(f"{needs}, and the run has {_time(given)}: TOO SHORT, the last save would be cut")
    else:
        line(f"{needs}, and the run has {_time(given)}")


def _failures(found: Advice) -> str:
    seen = found.failures
    low, high = seen.between
    trained = f"{seen.count} in {_time(seen.seconds)} of training"
    bounds = f"between {_time(low)} and {_time(high)}" if high else f"one each {_time(low)} or less often"
    likely = f"{bounds} in nine of ten cases"
    if found.is_given:
        return f"one each {_time(found.mtbf or 0.0)}, as given; the catalog has seen {trained}"
    if found.mtbf is None:
        return f"none in {_time(seen.seconds)} of training, so {likely}; say how often with --mtbf"
    few = "; so few give only a rough number: give --mtbf if you know a better one" if seen.count < _FEW else ""
    return f"{trained}: one each {_time(found.mtbf)}, {likely}{few}"


def _cells(interval: Interval) -> tuple[str, ...]:
    lost = "-" if interval.lost_steps is None else count(round(interval.lost_steps), "step", "steps")
    room = interval.room
    return (
        count(interval.steps, "step", "steps"),
        _time(interval.seconds),
        lost,
        *(size(each) if each else "-" for each in (room.states, room.trash, room.each_week)),
    )


def _time(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds < _SHORT_SECONDS else span(timedelta(seconds=seconds))
