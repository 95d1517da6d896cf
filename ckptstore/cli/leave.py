"""The command that asks a run to save and leave. Imports stand where they are used: `--help` must be quick."""

from __future__ import annotations

import os
import queue
import time
from typing import TYPE_CHECKING, Any

import click

from ckptstore.cli.commands import Parsed, as_json, optional_run, seconds
from ckptstore.core.text import count, of_ranks
from ckptstore.errors import CatalogUnavailableError, CkptstoreError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ckptstore.catalog.engine import Database
    from ckptstore.leave.follow import Leaving

NOT_LEFT = 8
GRACE = "CKPTSTORE_GRACE_SECONDS"
"""The variable with the seconds that a container is given to end in."""

_KUBERNETES_GRACE = 30.0
_PART_OF_GRACE = 0.9
_LONGEST_SECONDS = 600.0


@click.command("exit")
@optional_run
@click.option("--from-env", is_flag=True, help="The runs that processes of this container have joined, for preStop.")
@click.option("--wait", is_flag=True, help="See until the state of all ranks is whole and registered.")
@click.option(
    "--timeout",
    type=Parsed("time", seconds),
    metavar="10m",
    help=f"How long to wait at most. [10m; with --from-env nine tenths of {GRACE}, or of 30 s]",
)
@click.option("--reason", default="", metavar="TEXT", help="Why, for whoever asks later.")
@click.option("--cancel", is_flag=True, help="Take the request back. Ranks that have heard it leave all the same.")
@as_json
@click.pass_context
def exit_(
    context: click.Context,
    run: str | None,
    *,
    from_env: bool,
    wait: bool,
    timeout: float | None,
    reason: str,
    cancel: bool,
    as_json: bool,
) -> int:
    """Ask the newest launch of RUN to save and leave when its step is done.

    Every rank finds the request beside its checkpoints, for this launch only; a process of this machine that looks for
    none gets SIGTERM. It may be asked twice, and when the run has ended. Exit code 8, with --wait: the state that the
    launch left is not whole within the time; what a restart would get is said.
    """
    from ckptstore.catalog.engine import open_database
    from ckptstore.cli import values

    if from_env == (run is not None):
        raise click.UsageError("Give RUN, or --from-env." if run is None else "RUN and --from-env exclude each other.")
    if cancel and (wait or reason or from_env):
        raise click.UsageError("--cancel stands alone.")
    if timeout is not None and not wait:
        raise click.UsageError("--timeout needs --wait.")
    until = time.monotonic() + _seconds(timeout, from_env=from_env) if wait else None
    if run is None:
        return _leave_here(context.obj, reason, until, as_json=as_json)
    database = open_database(context.obj)
    if cancel:
        return _cancel(database, run, as_json=as_json)
    left = _Exit(database, run, reason, (), shown=not as_json)
    code = left.seen(until)
    if as_json:
        values.write(left.value())
    return code


def _seconds(timeout: float | None, *, from_env: bool) -> float:
    if timeout is not None:
        return timeout
    if not from_env:
        return _LONGEST_SECONDS
    told = os.environ.get(GRACE, "")
    try:
        return _PART_OF_GRACE * (float(told) if told else _KUBERNETES_GRACE)
    except ValueError:
        raise UsageError(f"{GRACE} is {told!r}", "give the seconds of terminationGracePeriodSeconds") from None


def _cancel(database: Database, run: str, *, as_json: bool) -> int:
    from ckptstore.cli import terminal, values
    from ckptstore.leave.ask import take_back

    was_asked = take_back(database, run)
    if as_json:
        values.write({"run": run, "cancelled": was_asked})
    else:
        terminal.line(f"run {run} is asked to leave no more" if was_asked else f"run {run} was not asked to leave")
    return 0


def _leave_here(url: str | None, reason: str, until: float | None, *, as_json: bool) -> int:
    """Ask the runs that processes of this container have joined."""
    from ckptstore.catalog.engine import open_database
    from ckptstore.cli import terminal, values
    from ckptstore.disk.notes import of_living

    homes: dict[tuple[str, str], list[str]] = {}
    for note in of_living():
        homes.setdefault((note.run, note.catalog), []).extend(note.directories)
    is_named = url is not None or "CKPTSTORE_URL" in os.environ
    left = [
        _Exit(open_database(url if is_named else catalog or None), run, reason, directories, shown=not as_json)
        for (run, catalog), directories in homes.items()
    ]
    code = max((each.seen(until) for each in left), default=0)
    if as_json:
        values.write([each.value() for each in left])
    elif not left:
        terminal.line("no process of this user here has joined a run: nothing is to leave")
    return code


class _Exit:
    """A run that is asked to leave, and how far it is; each change is `shown`."""

    def __init__(self, database: Database, run: str, reason: str, directories: Iterable[str], *, shown: bool) -> None:
        from ckptstore.leave.ask import ask

        self._database, self._run, self._directories = database, run, tuple(directories)
        self._shows = shown
        self._began = time.monotonic()
        self.asked = ask(database, run, reason, self._directories)
        self.found: Leaving | None = None
        self._said = ""
        self._say_asked()

    def seen(self, until: float | None) -> int:
        """See that it leaves, until then at most (None: not at all); the exit code."""
        if until is None or self.asked.ending:
            return 0
        for found in self._looks(until):
            if self.found is None or found != self.found:
                self.found = found
                self._say(found)
        return self._end()

    def value(self) -> dict[str, Any]:
        """All of it, for scripts."""
        asked, found = self.asked, self.found
        return {
            "run": self._run,
            "launch": asked.launch.id,
            "world_size": asked.launch.world_size,
            "ended_before": asked.ending or None,
            "directories": list(asked.reached),
            "unreached": dict(asked.unreached),
            "by_catalog": asked.by_catalog,
            "signalled": list(asked.signalled),
            "whole": found.is_left if found else None,
            "step": found.step if found else None,
            "missing_ranks": sorted(found.missing) if found else None,
            "ended": found.ending or None if found else None,
            "restart_step": found.restart if found else None,
        }

    def _looks(self, until: float) -> Iterator[Leaving]:
        """How far it is, from a thread: a disk or a catalog that hangs keeps nobody longer than that."""
        from ckptstore.disk.waiting import started
        from ckptstore.leave.follow import follow

        looks: queue.SimpleQueue[Leaving | CkptstoreError | None] = queue.SimpleQueue()

        def work() -> None:
            try:
                for found in follow(self._database, self._run, self.asked.launch, self._directories):
                    looks.put(found)
                looks.put(None)
            except CkptstoreError as error:
                looks.put(error)

        started(work, "ckptstore-look")
        while (rest := until - time.monotonic()) > 0:
            try:
                found = looks.get(timeout=rest)
            except queue.Empty:
                return
            if found is None:
                return
            if isinstance(found, CkptstoreError):
                raise found
            yield found

    def _say_asked(self) -> None:
        asked = self.asked
        if asked.away:
            self._line(f"{asked.away}. Journals tell of the run.")
        if asked.ending:
            self._line(f"run {self._run} does not train: launch {asked.launch.id}: {asked.ending}")
            return
        ways = [f"in {count(len(asked.reached), 'directory', 'directories')}"] if asked.reached else []
        ways += ["in the catalog"] if asked.by_catalog else []
        ways += [f"by SIGTERM to {count(len(asked.signalled), 'process', 'processes')}"] if asked.signalled else []
        self._line(f"run {self._run}, launch {asked.launch.id}: asked to save and leave {', '.join(ways) or 'nowhere'}")
        for directory, why in asked.unreached:
            self._line(f"  not in {directory}: {why}")

    def _say(self, found: Leaving) -> None:
        if found.step is None:
            text = "no rank has saved yet: each does when its step is done"
        elif found.missing:
            saved = f"{of_ranks(found.saved)} saved step {found.step}" if found.saved else f"step {found.step}"
            text = f"{saved}; not yet: {of_ranks(found.missing)}"
        else:
            text = f"all ranks saved step {found.step}"
        if text != self._said:
            self._said = text
            self._line(f"{time.monotonic() - self._began:5.0f} s  {text}")

    def _end(self) -> int:
        found = self.found
        if found is not None and found.is_left:
            self._line(f"run {self._run} has left: a restart goes on after step {found.step}")
            return 0
        self._line(f"run {self._run} has not left in time: {self._why(found)}; {self._restart(found)}")
        return NOT_LEFT

    def _why(self, found: Leaving | None) -> str:
        if found is None:
            return "nothing could be seen of it"
        if found.ending:
            return f"the launch: {found.ending}"
        if found.missing:
            return f"{of_ranks(found.missing)} saved nothing{self._long_step()}"
        return f"step {found.step} is no whole state yet"

    def _long_step(self) -> str:
        """A rank that does not come to the end of its step does not hear of the request."""
        from ckptstore.leave.follow import step_time

        try:
            seconds = step_time(self._database, self.asked.launch)
        except CatalogUnavailableError:
            return ""
        return f" (a step takes {seconds:.3g} s by the newest saves)" if seconds else ""

    def _restart(self, found: Leaving | None) -> str:
        if found is None:
            return "what a restart gets is not known"
        if found.restart is None:
            return "a restart finds no state"
        return f"a restart goes on after step {found.restart}"

    def _line(self, text: str) -> None:
        from ckptstore.cli.terminal import line

        if self._shows:
            line(text)
