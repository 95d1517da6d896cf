"""The commands over runs and their saves. Imports stand where they are used: `--help` must be quick."""

from __future__ import annotations

import gc
import re
from contextlib import contextmanager, suppress
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from ckptstore import progress
from ckptstore.cli import terminal, values
from ckptstore.cli.terminal import line
from ckptstore.core.hints import Call, Command
from ckptstore.core.limits import MOST_RANKS
from ckptstore.errors import CkptstoreError, NothingRestorableError, RefusedError, UsageError
from ckptstore.outside import Path, signal, time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import timedelta

    from ckptstore.api import Catalog
    from ckptstore.core.model import Resolution

KINDS = ("periodic", "graceful_exit", "dying_gasp", "ttp")
LEFT_OUT = 7
_YEAR_SECONDS = 366 * 86400.0


class Whole(click.IntRange):
    """A whole number within bounds. Error messages call it by `name`."""

    name = "whole number"


class StepArgument(Whole):
    """The STEP after RUN. Any other name of a state is part of the same word, as RUN@TAG."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert the text. Fails with a hint if it is no number."""
        if isinstance(value, str) and not value.lstrip("+-").isdigit():
            self.fail(f"{value!r} is no step; other states have one word: RUN@TAG, RUN@best:METRIC.", param, ctx)
        return super().convert(value, param, ctx)


STEP = Whole(0, 2**63 - 1)
RANKS = Whole(1, MOST_RANKS)


class Parsed(click.ParamType[Any]):
    """A value that the function `read` makes of the text. It raises `UsageError` for a text that it cannot read."""

    def __init__(self, name: str, read: Callable[[str], Any]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert the text. Fails with the message of the `UsageError`."""
        try:
            return self._read(str(value))
        except UsageError as error:
            self.fail(str(error), param, ctx)


def duration(text: str) -> timedelta:
    """A duration, from a text such as 7d or 12h."""
    from ckptstore.retention.policy import parse_duration

    return parse_duration(text)


def seconds(text: str) -> float:
    """A number of seconds, from a text such as 90s, 10m, 1h or 90."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text, re.ASCII)
    if found is None:
        raise UsageError(f"{text!r} is not a duration", "give one as 90s or 10m")
    length = float(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]]
    if length > _YEAR_SECONDS:  # Python cannot wait for centuries
        raise UsageError(f"{text!r} is longer than a year", "give a duration as 90s or 10m")
    return length


def together(*options: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that adds these options to a command, in this order."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return add


as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON for scripts.")
trust = click.option("--trust", multiple=True, metavar="USER", help="Believe the journals of this user, or of a group.")


replicas = click.option(
    "--replicas", metavar="SPEC", help='Who is whose replica: dp, none, "0,4;1,5", or a strategy or group info file.'
)


def file_and_step(text: str) -> tuple[str, int]:
    """A file and its step, from a text such as net-3_9.ckpt=65."""
    from ckptstore.core.validate import step_in

    path, equals, step = text.rpartition("=")
    if not (path and equals and step.isascii() and step.isdigit()):
        raise UsageError(f"{text!r} is no file and step", "write it as rank_0/net-3_9.ckpt=65")
    return path, step_in(step)


def complete_runs(context: click.Context, param: click.Parameter, incomplete: str) -> list[str]:  # noqa: ARG001
    """The runs whose names begin with `incomplete`, for shell completion. Empty without a usable catalog."""
    from ckptstore.catalog import reads
    from ckptstore.catalog.engine import open_to_look

    try:
        with open_to_look(context.obj or context.find_root().params.get("db"), answer_within=2).read() as connection:
            return [name for name in reads.run_names(connection) if name.startswith(incomplete)]
    except CkptstoreError:
        return []


def complete_references(context: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """The runs whose names begin with `incomplete`, or after an `@` the states of the run, for shell completion."""
    from ckptstore.catalog.engine import open_to_look
    from ckptstore.resume.resolve import states_of

    runs = complete_runs(context, param, incomplete)
    if runs or "@" not in incomplete:
        return runs
    try:
        database = open_to_look(context.obj or context.find_root().params.get("db"), answer_within=2)
        return [each for each in states_of(database, incomplete.rpartition("@")[0]) if each.startswith(incomplete)]
    except CkptstoreError:
        return []


def _zone(_: click.Context, __: click.Parameter, is_utc: bool | None) -> None:  # noqa: FBT001
    if is_utc is not None:
        terminal.show_in_utc(is_utc)


times = click.option(
    "--utc/--local",
    default=None,
    expose_value=False,
    callback=_zone,
    help="Times of day in UTC, or of this machine. Default: local on a terminal. JSON has UTC.",
)
run_argument = click.argument("run", shell_complete=complete_runs)
optional_run = click.argument("run", required=False, shell_complete=complete_runs)
reference_argument = click.argument("run", metavar="RUN[@STATE]", shell_complete=complete_references)
step_argument = click.argument("step", type=StepArgument(0, 2**63 - 1), required=False)


def named(opened: Catalog, reference: str, step: int | None) -> tuple[str, int]:
    """The run and the step that the arguments name: a reference alone, or a run and a step."""
    from ckptstore.resume.resolve import names_state, step_named

    if step is None:
        return step_named(opened.database, reference)
    if names_state(opened.database, reference):
        run = reference.rpartition("@")[0] or reference
        raise UsageError(f"the reference to run {run!r} and STEP both choose the state", "give one of them")
    return reference, step


def catalog(context: click.Context, *, waits: bool = False) -> Catalog:
    """The catalog that the command line names.

    The transactions of a command share a connection to PostgreSQL, unless it `waits` or reads for long.

    The garbage collector is off during the imports, which create no garbage. Collecting took a quarter of the time of a
    short command.
    """
    gc.disable()
    from ckptstore.api import connect
    from ckptstore.doctor.unanswered import named_if_slow

    gc.freeze()
    gc.enable()
    opened = connect(context.obj)
    context.with_resource(named_if_slow(opened.database))
    if not waits:
        context.with_resource(opened.database.connected())
    return opened


@click.command()
@click.option("--watch", is_flag=True, help="Show it again every 2 seconds, until Ctrl-C.")
@as_json
@click.pass_context
def runs(context: click.Context, *, watch: bool, as_json: bool) -> None:
    """List all runs: what each is doing, and where it can go on.

    A run is training, silent, ended, finished, killed, in a restart loop, or has never saved. Its size is that of its
    states; the trash is counted apart.
    """
    from ckptstore.cli import text

    if watch and as_json:
        raise click.UsageError("--watch is for people: no --json with it.")
    opened = catalog(context, waits=watch)
    if watch:
        _watch(lambda: text.runs(opened.runs()))
        return
    rows = opened.runs()
    values.write(rows.to_dicts()) if as_json else text.runs(rows)


_WATCHED_EVERY_SECONDS = 2.0


@contextmanager
def until_stopped() -> Iterator[None]:
    """Inside, SIGTERM, by which a service manager stops a service, raises `KeyboardInterrupt`. The two end it."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with suppress(KeyboardInterrupt):
            yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


def _watch(show: Callable[[], None]) -> None:
    """Call `show` every two seconds, until Ctrl-C, or until the reader of the output has ended."""
    with suppress(KeyboardInterrupt):
        while terminal.is_read():
            click.clear()
            show()
            time.sleep(_WATCHED_EVERY_SECONDS)


@click.command("list")
@optional_run
@click.option("--kind", type=click.Choice(KINDS), help="Only saves of this kind.")
@click.option("--files", is_flag=True, help="One row per file, including files that are gone.")
@click.option("--limit", type=Whole(1), metavar="N", help="The first N rows.")
@click.option(
    "--since",
    type=Parsed("time", duration),
    metavar="2d",
    help="Only saves of the last so many days or hours, as 2d or 12h.",
)
@times
@as_json
@click.pass_context
def list_(context: click.Context, /, run: str | None, *, files: bool, as_json: bool, **asked: Any) -> None:
    """List the saves of a run, or of all runs, newest first.

    The list shows what the catalog knows; `resolve` looks at the disk. A save without any file left is not shown.
    """
    from ckptstore.cli import retention_text, text
    from ckptstore.resume import overview

    opened, is_part = catalog(context), bool(asked["kind"] or asked["since"])
    if files:
        found = opened.files(run, **asked)
        values.write(found.to_dicts()) if as_json else text.files(found, is_part=is_part)
    else:
        saves = opened.saves(run, **asked)
        if as_json:
            values.write(saves.to_dicts())
        else:
            is_any_recorded = not saves and bool(opened.files(run, limit=1))
            name = opened.database.name
            text.saves(saves, text.no_saves(name, run, is_part=is_part, is_any_recorded=is_any_recorded))
            if run is not None:
                text.unplaced(run, opened.unplaced(run))
                retention_text.unmoved(run, overview.waiting(opened.database, run))


@click.command()
@reference_argument
@step_argument
@times
@as_json
@click.pass_context
def show(context: click.Context, run: str, step: int | None, *, as_json: bool) -> None:
    """Show one save: every rank, file, size and state.

    Name it as RUN STEP, or by a reference, as RUN@best:accuracy:max. RUN alone is the state from which the run goes on.
    """
    from ckptstore.cli import text

    opened = catalog(context)
    found = opened.show(*named(opened, run, step))
    values.write(found.to_dicts()) if as_json else text.files(found)


@click.command()
@run_argument
@times
@as_json
@click.pass_context
def history(context: click.Context, run: str, *, as_json: bool) -> None:
    """List every launch of RUN, oldest first.

    When and where it ran, from which launch and step it started, which newer states it passed over and why, how far it
    came, and how it ended.
    """
    from ckptstore.cli import text

    rows = catalog(context).history(run)
    values.write(rows.to_dicts()) if as_json else text.history(rows)


@click.command()
@reference_argument
@click.argument("directory", required=False, type=click.Path(file_okay=False))
@click.option("--world-size", type=RANKS, help="How many ranks will load it. Default: as many as saved.")
@click.option("--step", type=STEP, help="This step only.")
@click.option(
    "--lineage", metavar="LAUNCH", help="Look at the history that leads to this launch. Default: the newest launch."
)
@click.option("--all", "every_lineage", is_flag=True, help="Include states of abandoned branches.")
@click.option("--branch", is_flag=True, help="The next launch goes on from this plan; what came after it is given up.")
@click.option("--explain", is_flag=True, help="Say why newer states are not taken.")
@replicas
@click.option("--take-quarantined", is_flag=True, help="Consider states that were found to be bad, too.")
@click.option("--verify", type=click.Choice(["size", "digest"]), default="size", help="What to check of each file.")
@click.option(
    "--format",
    "output",
    type=click.Choice(["env", "paths", "meta"]),
    help="Output for other tools: the variable RESTORE_RANKS, one path for each rank, or MindFormers' meta.json below "
    "DIRECTORY. To copy the files use `export`.",
)
@as_json
@click.pass_context
def resolve(
    context: click.Context,
    /,
    run: str,
    *,
    directory: str | None,
    branch: bool,
    explain: bool,
    output: str | None,
    as_json: bool,
    **asked: Any,
) -> int:
    """Show which state a start restores, and why no newer one.

    The plan names the file that each rank loads: of the newest state that is provably complete, or of the state that
    a reference names, as RUN@1200, RUN@TAG, RUN@best:accuracy:max or RUN/LAUNCH@1200. Exit code 3: no state can be
    restored. Only --branch changes anything: the run goes back to the state of the plan. No file is deleted.
    """
    from ckptstore.cli import explanation
    from ckptstore.resume import dicts
    from ckptstore.resume.resolve import names_state

    if directory is not None and output != "meta":
        told = f"{directory!r} is read as a DIRECTORY, which needs --format meta; a state is named {run}@STEP."
        if directory.isdigit():
            told = f"name that state by {Command('resolve', f'{run}@{directory}')}"
        raise click.UsageError(told)
    if directory is None and output == "meta":
        raise click.UsageError("--format meta needs a DIRECTORY.")
    if output and (as_json or explain):
        raise click.UsageError("--format takes neither --json nor --explain.")
    opened = catalog(context)
    is_named = any(asked[option] for option in ("step", "lineage", "every_lineage")) or names_state(
        opened.database, run
    )
    if branch and not is_named:
        raise click.UsageError("--branch needs the state to go back to: RUN@STATE, --step, --lineage or --all.")
    if branch and asked["take_quarantined"]:
        way = Call("resume", "step=…", take_quarantined=True)
        raise click.UsageError(f"no start takes a quarantined state for --branch; write {way} in the script.")
    resolution = opened.resolve(run, **asked)
    decision = opened.branch(resolution.plan) if branch and resolution.plan else None
    if output:
        _export(resolution, output, directory)
    elif as_json:
        values.write(dicts.resolution(resolution))
    else:
        explanation.resolution(resolution, is_asked=is_named or asked["take_quarantined"], in_full=explain)
        if decision and resolution.plan:
            line(f"the next launch goes on after step {resolution.plan.global_step}; no file is deleted")
            line(f"this is recorded as launch {decision}, which trains nothing")
    return 0 if resolution.plan else NothingRestorableError.exit_code


def _export(resolution: Resolution, output: str, directory: str | None) -> None:
    """Print the plan for another tool on stdout, or write it. If there is no plan, stderr says so."""
    from ckptstore.resume import export

    plan = resolution.plan
    if plan is None:
        line(f"ckptstore: {resolution.why_none}", err=True)
    elif plan.copies:
        paths = ", ".join(each.source.path for each in plan.ranks if each.source.id in plan.copies)
        raise RefusedError(f"only tiers have {paths}", "a start fetches them; --format names files that are here")
    if output == "env":
        for name, value in export.restore_ranks(plan).items():
            click.echo(f"export {name}={quote(value)}")
    elif plan is not None and output == "paths":
        for path in export.paths(plan):
            click.echo(path)
    elif plan is not None and directory is not None:
        for path in export.write_meta(plan, Path(directory)):
            line(path)


@click.command()
@reference_argument
@step_argument
@as_json
@click.pass_context
def pin(context: click.Context, run: str, step: int | None, *, as_json: bool) -> None:
    """Protect every save of STEP of RUN from retention.

    Name the state as RUN STEP, or by a reference, as RUN@best:accuracy:max. RUN alone is the state from which the run
    goes on.
    """
    opened = catalog(context)
    run, step = named(opened, run, step)
    _report_pin(opened, run, step, pinned=True, changed=opened.pin(run, step), as_json=as_json)


@click.command()
@reference_argument
@step_argument
@as_json
@click.pass_context
def unpin(context: click.Context, run: str, step: int | None, *, as_json: bool) -> None:
    """Remove the pin of STEP of RUN.

    Name the state as RUN STEP, or by a reference, as RUN@best:accuracy:max. RUN alone is the state from which the run
    goes on.
    """
    opened = catalog(context)
    run, step = named(opened, run, step)
    _report_pin(opened, run, step, pinned=False, changed=opened.unpin(run, step), as_json=as_json)


def every_save(opened: Catalog, run: str, step: int) -> str:
    """The step in words, with the number of its existing saves if there are several: a protection holds for all."""
    from ckptstore.resume import overview

    saves = len({row.launch.id for row in overview.saves(opened.database, run, step=step)})
    every = f" (all {saves} saves)" if saves > 2 else " (both saves)" if saves == 2 else ""  # noqa: PLR2004
    return f"step {step} of {run}{every}"


def _report_pin(opened: Catalog, run: str, step: int, *, pinned: bool, changed: bool, as_json: bool) -> None:
    if pinned:
        text = f"{every_save(opened, run, step)} is {'pinned' if changed else 'already pinned'}"
    else:
        text = f"{every_save(opened, run, step)} {'is no longer pinned' if changed else 'was not pinned'}"
    values.report({"run": run, "global_step": step, "pinned": pinned, "changed": changed}, text, as_json=as_json)


@click.command()
@click.argument("file", type=click.Path(path_type=Path, readable=False))
@as_json
def inspect(file: Path, *, as_json: bool) -> None:
    """Print the content of a checkpoint, strategy or group info file.

    Reads the header only, without MindSpore and without a catalog. Exit code 6: the file is cut, or of another format.
    """
    from ckptstore.cli import inspection
    from ckptstore.formats.inspect import look_into

    found = look_into(file)
    values.write(inspection.value(file, found)) if as_json else inspection.show(file, found)


@click.command()
@click.argument("directory", type=click.Path(file_okay=False))
@click.option(
    "--run",
    help="The run of these files. Default: the run that the journals in DIRECTORY name; if they name none, the "
    "directory's name.",
)
@click.option("--world-size", type=RANKS, help="How many ranks saved it.")
@click.option("--steps-per-epoch", type=Whole(1), metavar="E", help="How many batches an epoch has.")
@click.option(
    "--trust",
    multiple=True,
    metavar="counter|name|info|numbers|USER",
    help="Where nothing else says the step, believe the optimizer's counter (counter), the file's name (name) or "
    "step_num in the file (info); numbers: files with the same _N in their names are of one launch; USER: believe "
    "the journals of this user or group.",
)
@click.option(
    "--step",
    "steps",
    multiple=True,
    type=Parsed("file and step", file_and_step),
    metavar="FILE=STEP",
    help="The step of a file, of a prefix of TensorFlow's files, or of a directory that is one checkpoint.",
)
@replicas
@click.option("--into", metavar="DIR", help="Where to write the journals, if DIRECTORY is a tier.")
@click.option("--dry-run", is_flag=True, help="Show what would be done, and record nothing.")
@click.option("--verbose", is_flag=True, help="Name every file.")
@times
@as_json
@click.pass_context
def scan(context: click.Context, /, directory: str, *, as_json: bool, verbose: bool, **asked: Any) -> int:
    """Adopt the checkpoints below DIRECTORY that no catalog knows.

    Names and headers say what the files are. A file whose step is not certain is listed and not adopted, with the
    option that adopts it. If a run trains with ckptstore, files outside its own directories are added to it only with
    --run. The scan can be repeated, also while training writes. DIRECTORY may be the URL of a tier, as
    s3://bucket/prefix: its journals are brought back, and a start fetches the files. Exit code 1: a directory or a
    journal could not be read; 5: there are several experiments, and the output has a command for each; 7: checkpoints
    without a certain step or rank were left out.
    """
    from ckptstore.cli import scanning

    asked["steps"] = dict(asked["steps"])
    with progress.count("looked at") as more:
        scanned = catalog(context).scan(directory, progress=more, **asked)
    if as_json:
        values.write(values.scanned(scanned))
    else:
        scanning.show(scanned, dry_run=asked["dry_run"], verbose=verbose)
    return 1 if scanned.unread else LEFT_OUT if scanned.uncertain else 0


ALL = (runs, list_, show, history, resolve, pin, unpin, inspect, scan)
