"""The command that asks a run to save and leave. Imports stand where they are used: `--help` must be quick."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from ckptstore.cli import values
from ckptstore.cli.commands import Parsed, as_json, optional_run, seconds
from ckptstore.cli.terminal import error, line
from ckptstore.core.hints import Command
from ckptstore.core.text import count, of_ranks
from ckptstore.errors import CatalogUnavailableError, CkptstoreError, UsageError
from ckptstore.outside import os, threading, time

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ckptstore.leave.ask import Asked, Leaving

NOT_LEFT = 8
GRACE = "CKPTSTORE_GRACE_SECONDS"
"""The environment variable with the grace period of the container, in seconds."""

_KUBERNETES_GRACE = 30.0
_PART_OF_GRACE = 0.9
_LONGEST_SECONDS = 600.0
_PART_FOR_AN_ANSWER = 0.25
_LEAST_ANSWER_SECONDS = 0.1


@click.command("exit")
@optional_run
@click.option(
    "--from-env", is_flag=True, help="For a preStop hook: ask all runs that processes of this container have joined."
)
@click.option("--wait", is_flag=True, help="Wait until the state of all ranks is complete and registered.")
@click.option(
    "--timeout",
    type=Parsed("time", seconds),
    metavar="10m",
    help=f"How long to wait at most. [10m. With --from-env: 90 % of {GRACE}, or of 30 s if that is not set]",
)
@click.option("--reason", default="", metavar="TEXT", help="The reason. The request and the catalog keep it.")
@click.option("--cancel", is_flag=True, help="Withdraw the request. Ranks that have seen it leave anyway.")
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
    """Ask the newest launch of RUN to save and leave.

    The launch leaves after its current step. Every rank finds the request beside its checkpoints; the request is for
    this launch only. A process on this machine that does not look for requests gets SIGTERM. The command may be
    repeated, and may be called after the run has ended. Exit code 8, with --wait: the state was not complete in time;
    the output names the state that a restart would use.
    """
    from ckptstore.catalog.engine import open_database
    from ckptstore.leave.ask import take_back

    if from_env == (run is not None):
        raise click.UsageError("Give RUN, or --from-env." if run is None else "RUN and --from-env exclude each other.")
    if cancel and (wait or reason or from_env):
        raise click.UsageError("--cancel takes no other option.")
    if timeout is not None and not wait:
        raise click.UsageError("--timeout needs --wait.")
    patience = _seconds(timeout, from_env=from_env) if wait else None
    if run is None:
        return _leave_here(context.obj, reason, patience, as_json=as_json)
    if cancel:
        was_asked = take_back(open_database(context.obj), run)
        text = f"run {run} no longer has a request to leave" if was_asked else f"run {run} was not asked to leave"
        values.report({"run": run, "cancelled": was_asked}, text, as_json=as_json)
        return 0
    left = _Exit(context.obj, run, reason, (), patience, shown=not as_json)
    code = left.seen()
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
        return _PART_OF_GRACE * (seconds(told.strip()) if told else _KUBERNETES_GRACE)
    except UsageError:
        raise UsageError(f"{GRACE} is {told!r}", "give the seconds of terminationGracePeriodSeconds") from None


def _leave_here(url: str | None, reason: str, patience: float | None, *, as_json: bool) -> int:
    """Ask the runs that processes of this container have joined. A note has no password, `url` or CKPTSTORE_URL may."""
    from ckptstore.catalog.engine import open_database
    from ckptstore.disk.notes import of_living

    own = ""
    with suppress(UsageError):  # it may be the URL of no catalog: a note has its own
        own = open_database(url).name
    homes: dict[tuple[str, str], list[str]] = {}
    for note in of_living():
        catalog = "" if note.may_be_of(own) else note.catalog.replace(":***@", "@")  # libpq may know the password
        homes.setdefault((note.run, catalog), []).extend(note.directories)
    left = [
        _Exit(url or catalog or None, run, reason, directories, patience, shown=not as_json)
        for (run, catalog), directories in homes.items()
    ]
    code, failures = 0, []
    for each in left:
        try:
            code = max(code, each.seen())
        except CkptstoreError as failure:  # noqa: PERF203 — the others leave all the same
            failures.append((each.run, failure))
    if as_json:
        values.write([each.value() for each in left])
    elif not left:
        line("no process of this user here has joined a run: there is nothing to stop")
    for name, failed in failures:
        error(f"run {name}: {failed.message}", failed.hint, failed.exit_code, as_json=as_json)
    return failures[0][1].exit_code if failures else code


class _Exit:
    """Asks a run to leave, and follows how far it is. If `shown`, each change is printed.

    With `patience`, in seconds, all work is done on a thread: a disk or a catalog that hangs does not delay the command
    longer than that. Without it, the run is asked, and the command does not wait for it to leave.
    """

    def __init__(
        self,
        url: str | None,
        run: str,
        reason: str,
        directories: Iterable[str],
        patience: float | None,
        *,
        shown: bool,
    ) -> None:
        from ckptstore.catalog.engine import Database, open_database
        from ckptstore.disk.waiting import start_thread

        self.run, self._reason, self._directories = run, reason, tuple(directories)
        self._shows = shown
        self._began = time.monotonic()
        self._patience = patience
        self._database = open_database(url)
        if patience is not None:  # the catalog must not use up the time: the journals are read too
            answer_within = max(_LEAST_ANSWER_SECONDS, _PART_FOR_AN_ANSWER * patience)
            self._database = Database(self._database.url, answer_within=answer_within)
        self._asked: Asked | None = None
        self._found: Leaving | None = None
        self._failure: Exception | None = None
        self._said = ""
        self._is_over = threading.Event()
        if patience is None:
            self._work()
        else:
            start_thread(self._work, "ckptstore-exit")

    def seen(self) -> int:
        """Wait until the run has left, if there is `patience`, and return the exit code."""
        if self._patience is not None:
            self._is_over.wait(max(0.0, self._began + self._patience - time.monotonic()))
        if self._failure is not None:
            raise self._failure
        asked = self._asked
        if asked is not None and asked.ending:
            return 0
        if self._patience is not None:
            return self._end()
        if asked is not None and not asked.is_told:
            raise CatalogUnavailableError(
                f"launch {asked.launch.id} of run {self.run!r} was not asked to leave: neither the catalog nor a "
                f"directory of it can be written to ({asked.away})",
                "ask where one of them can be written to",
            )
        return 0

    def _work(self) -> None:
        from ckptstore.leave.ask import ask, follow

        try:
            asked = ask(self._database, self.run, self._reason, self._directories)
            self._say_asked(asked)
            if self._patience is not None and not asked.ending:
                away = bool(asked.away)
                for found in follow(self._database, self.run, asked.launch, self._directories, away=away):
                    self._say(found)
        except Exception as error:  # noqa: BLE001 — raised again by `seen`
            self._failure = error
        self._is_over.set()

    def value(self) -> dict[str, Any]:
        """The result as JSON."""
        asked, found = self._asked, self._found
        return {
            "run": self.run,
            "launch": asked.launch.id if asked else None,
            "world_size": asked.launch.world_size if asked else None,
            "ended_before": asked.ending or None if asked else None,
            "directories": list(asked.reached) if asked else [],
            "unreached": dict(asked.unreached) if asked else {},
            "by_catalog": asked is not None and asked.by_catalog,
            "signalled": list(asked.signalled) if asked else [],
            "whole": found.is_left if found else None,
            "step": found.step if found else None,
            "missing_ranks": sorted(found.missing) if found else None,
            "ended": found.ending or None if found else None,
            "restart_step": found.restart if found else None,
        }

    def _say_asked(self, asked: Asked) -> None:
        self._asked = asked
        if asked.away:
            self._line(f"{asked.away}. What follows is from the run's journals.")
        if asked.ending:
            self._line(f"run {self.run} does not train: launch {asked.launch.id}: {asked.ending}")
            return
        places = [count(len(asked.reached), "directory", "directories")] if asked.reached else []
        places += ["the catalog"] if asked.by_catalog else []
        ways = [f"a request in {' and in '.join(places)}"] if places else []
        if asked.by_note:
            ways.append(
                f"a file for {count(len(asked.by_note), 'process that has', 'processes that have')} saved nothing yet"
            )
        ways += [f"SIGTERM to {count(len(asked.signalled), 'process', 'processes')}"] if asked.signalled else []
        how = f"asked to save and leave, by {', '.join(ways)}" if asked.is_told else "no process could be asked"
        self._line(f"run {self.run}, launch {asked.launch.id}: {how}")
        for directory, why in asked.unreached:
            self._line(f"  not in {directory}: {why}")

    def _say(self, found: Leaving) -> None:
        self._found = found
        if found.step is None:
            text = "no rank has saved since the request; each rank saves when its step is done"
        elif found.missing:
            saved = f"{of_ranks(found.saved)} saved step {found.step}" if found.saved else f"step {found.step}"
            text = f"{saved}; not yet: {of_ranks(found.missing)}"
        else:
            text = f"all ranks saved step {found.step}"
        if text != self._said:
            self._said = text
            self._line(f"{time.monotonic() - self._began:5.0f} s  {text}")

    def _end(self) -> int:
        found = self._found
        if found is not None and found.is_left:
            self._line(f"run {self.run} has left: a restart goes on after step {found.step}")
            return 0
        if found is not None and found.ending:
            who = f"launch {self._asked.launch.id} of run {self.run}" if self._asked else f"run {self.run}"
            at = "" if found.step is None else f" after step {found.step}"
            self._line(
                f"{who} has left{at} ({found.ending}), but not with the state that a restart takes: "
                f"{self._restart(found)}; see: {Command('resolve', self.run, '--explain')}"
            )
            return NOT_LEFT
        self._line(f"run {self.run} has not left in time: {self._why(found)}; {self._restart(found)}")
        return NOT_LEFT

    def _why(self, found: Leaving | None) -> str:
        if found is None:
            return "nothing could be seen of it"
        if found.missing:
            # A rank sees the request only at the end of a step.
            seconds = found.step_seconds
            a_step = f" (a step takes {seconds:.3g} s by the newest saves)" if seconds else ""
            return f"{of_ranks(found.missing)} saved nothing since the request{a_step}"
        return f"step {found.step} is not complete yet"

    def _restart(self, found: Leaving | None) -> str:
        if found is None:
            return "what a restart gets is not known"
        if found.restart is None:
            return "a restart finds no state"
        return f"a restart goes on after step {found.restart}"

    def _line(self, text: str) -> None:
        if self._shows:
            line(text)
