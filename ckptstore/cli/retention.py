"""The commands of retention: gc, undo, purge, policy, tag, untag."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ckptstore import progress
from ckptstore.cli import values
from ckptstore.cli.commands import (
    KINDS,
    STEP,
    Parsed,
    Whole,
    as_json,
    catalog,
    duration,
    every_save,
    named,
    optional_run,
    reference_argument,
    run_argument,
    together,
)
from ckptstore.core.hints import Command
from ckptstore.errors import UsageError

if TYPE_CHECKING:
    from ckptstore.catalog.engine import Database
    from ckptstore.core.copies import Tier
    from ckptstore.retention.policy import Policy

COUNT = Whole(0, 2**31 - 1)


def _kind_count(text: str) -> tuple[str, int]:
    """A kind and a number of states, from a text such as ttp=2."""
    kind, _, count = text.partition("=")
    if kind not in KINDS or not count.isascii() or not count.isdigit():
        raise UsageError(f"{text!r} is not KIND=N, as ttp=2; KIND is one of {', '.join(KINDS)}")
    return kind, COUNT(count)


_rules = together(
    click.option("--keep-last", type=COUNT, metavar="N", help="The newest N states."),
    click.option("--keep-every", type=COUNT, metavar="N", help="The first state at or after each multiple of N steps."),
    click.option("--keep-within", type=Parsed("time", duration), metavar="7d", help="States saved within that time."),
    click.option(
        "--keep-hourly", type=COUNT, metavar="N", help="The newest state of an hour, for the last N that have one."
    ),
    click.option(
        "--keep-daily", type=COUNT, metavar="N", help="The newest state of a day, for the last N that have one."
    ),
    click.option(
        "--keep-weekly", type=COUNT, metavar="N", help="The newest state of a week, for the last N that have one."
    ),
    click.option("--keep-best", type=COUNT, metavar="N", help="The N best by --metric."),
    click.option("--metric", metavar="M", help="The metric of --keep-best."),
    click.option("--mode", type=click.Choice(["min", "max"]), help="Whether lower or higher values are better."),
    click.option(
        "--keep-kind", type=Parsed("kind=n", _kind_count), multiple=True, metavar="K=N", help="The newest N of a kind."
    ),
    click.option("--keep-parents", is_flag=True, help="The states that a launch resumed from."),
    click.option("--drop-branches", is_flag=True, help="Do not keep the newest state of an abandoned branch."),
    click.option(
        "--grace",
        type=Parsed("time", duration),
        metavar="24h",
        help="How long removed states can be brought back. [24h]",
    ),
    click.option("--floor", type=COUNT, metavar="K", help="Keep K restorable states whatever the rules say. [2]"),
)


def _policy(rules: dict[str, Any]) -> Policy | None:
    """The policy by the given options. None if no rule is given: floor and grace are no rules."""
    from ckptstore.retention.policy import Policy

    given = {name: value for name, value in rules.items() if value is not None and value is not False and value != ()}
    if "keep_kind" in given:
        given["keep_kind"] = dict(given["keep_kind"])
    return Policy(**given) if given.keys() - {"floor", "grace"} else None


@click.command()
@optional_run
@_rules
@click.option("--apply", "apply_it", is_flag=True, help="Carry the plan out. Without this option, it is only shown.")
@click.option("--now", "at_once", is_flag=True, help="Delete at once: no trash, no undo. For a disk that is full.")
@click.option("--allow-mass-delete", is_flag=True, help="Remove more than 90 % of the bytes, if the plan says so.")
@click.option("--all", "all_runs", is_flag=True, help="Every run that has a stored policy.")
@click.option("--tier", metavar="NAME", help="Remove from this tier only: copies, or the files of a tier of level 0.")
@as_json
@click.pass_context
def gc(
    context: click.Context,
    /,
    run: str | None,
    *,
    all_runs: bool,
    at_once: bool,
    tier: str | None,
    as_json: bool,
    **asked: Any,
) -> int:
    """Show which states of RUN stay, and why; --apply acts on it.

    States that no rule keeps move to the trash beside the checkpoints. For a day, or --grace, `undo` brings them back.
    Without rules, the stored policy counts. With --tier, gc removes only copies in that tier. A tier of level 0
    is the nodes' own disks: gc removes only states from it that a higher tier has. Exit code 5: refused by a safety
    rule.
    """
    from ckptstore.cli import retention_text as text
    from ckptstore.retention import dicts, execute, in_tier
    from ckptstore.tiers import facts

    how = {name: asked.pop(name) for name in ("apply_it", "allow_mass_delete")}
    policy = _policy(asked)
    if all_runs and (run is not None or policy is not None):
        raise click.UsageError("--all applies each run's stored policy: give no RUN and no rules with it.")
    if at_once and not how["apply_it"]:
        raise click.UsageError("--now changes how --apply removes: give --apply too.")
    database = catalog(context).database
    names = execute.names(database, run, all_runs=all_runs)
    of_nodes = None if tier is None else facts.named(database, tier)
    if of_nodes is not None and of_nodes.level > 0:
        if at_once:
            raise click.UsageError(
                "--now is for files on disks; after gc --apply, for copies in a tier: "
                f"{Command('purge', run or 'RUN', '--now', '--tier', of_nodes.name)}"
            )
        limits = {name: asked[name] for name in ("floor", "grace")}
        done = [in_tier.collect(database, name, of_nodes, policy, **limits, **how) for name in names]
        return text.in_tier(done, all_runs=all_runs, as_json=as_json)
    with progress.count("removing", shown=how["apply_it"]) as more:
        outcomes = [
            execute.collect(
                database,
                name,
                policy,
                floor=asked["floor"],
                grace=asked["grace"],
                at_once=at_once,
                tier=of_nodes,
                progress=more,
                **how,
            )
            for name in names
        ]
    shown = [dicts.collected(outcome) for outcome in outcomes if outcome.plan is not None]
    values.write(shown if all_runs else shown[0]) if as_json and (all_runs or shown) else None
    return text.collected(outcomes, only_errors=as_json)


def tier_with_copies(database: Database, name: str, instead: Command) -> Tier:
    """The tier of that name. Raises `UsageError` if it is the nodes' disks: gc moves their files to a trash there."""
    from ckptstore.tiers import facts

    found = facts.named(database, name)
    if found.level == facts.NODE_LEVEL:
        raise UsageError(f"tier {name} is the nodes' own disks, and has no copies", f"for the files there: {instead}")
    return found


of_tier = click.option("--tier", metavar="NAME", help="Do it with the copies in this tier, instead of files.")


@click.command()
@run_argument
@of_tier
@as_json
@click.pass_context
def undo(context: click.Context, run: str, *, tier: str | None, as_json: bool) -> int:
    """Bring back what the last gc of RUN moved to the trash.

    Called again, it brings back the gc before that, while its grace lasts. If no file of a gc can be brought back now,
    undo takes the gc before it.
    """
    from ckptstore.cli import retention_text as text
    from ckptstore.retention import dicts, in_tier, in_trash

    if tier is not None:
        database = catalog(context).database
        back = in_tier.undo(database, run, tier_with_copies(database, tier, Command("undo", run)))
        return text.of_copies(back, "brought back", as_json=as_json)
    with progress.count("brought back") as more:
        done = in_trash.undo(catalog(context).database, run, progress=more)
    values.write(dicts.undone(done)) if as_json else text.undone(done)
    return text.not_undone(done)


@click.command()
@run_argument
@click.option("--now", "at_once", is_flag=True, help="Delete all of the trash, also before its grace is over.")
@of_tier
@as_json
@click.pass_context
def purge(context: click.Context, run: str, *, at_once: bool, tier: str | None, as_json: bool) -> int:
    """Delete files of RUN whose time in the trash is over."""
    from ckptstore.cli import retention_text as text
    from ckptstore.retention import dicts, in_tier, in_trash

    if tier is not None:
        database = catalog(context).database
        instead = Command("purge", run, *(["--now"] if at_once else []))
        done_there = in_tier.purge(database, run, tier_with_copies(database, tier, instead), at_once=at_once)
        return text.of_copies(done_there, "deleted", as_json=as_json)
    with progress.count("deleted") as more:
        done = in_trash.purge(catalog(context).database, run, at_once=at_once, progress=more)
    values.write(dicts.purged(done)) if as_json else text.purged(done)
    return text.troubles(done.troubles, run)


@click.command()
@run_argument
@_rules
@click.option("--clear", is_flag=True, help="Forget the policy.")
@as_json
@click.pass_context
def policy(context: click.Context, /, run: str, *, clear: bool, as_json: bool, **rules: Any) -> None:
    """Show the policy of RUN, or store one for `gc`."""
    from ckptstore.cli import retention_text as text
    from ckptstore.retention import stored_policy as storing

    wanted = _policy(rules)
    if (clear or rules["floor"] is not None or rules["grace"] is not None) and (clear is (wanted is not None)):
        raise click.UsageError("--floor and --grace need a rule beside them; --clear takes no other option.")
    database = catalog(context).database
    if clear:
        storing.clear(database, run)
    elif wanted is not None:
        storing.store(database, run, wanted)
    stored = storing.show(database, run)
    values.write({"run": run, "policy": stored.to_json() if stored else None}) if as_json else text.policy(run, stored)


@click.command()
@reference_argument
@click.argument("step_and_name", nargs=-1, required=True, metavar="[STEP] NAME")
@as_json
@click.pass_context
def tag(context: click.Context, run: str, step_and_name: tuple[str, ...], *, as_json: bool) -> None:
    """Give STEP of RUN a name, which protects it from retention.

    Name the state as RUN STEP, or by a reference, as RUN@best:accuracy:max. RUN alone is the state from which the run
    goes on. Then RUN@NAME is that state, until a later launch saves the same step again: then it is the newer one. A
    reference to a launch, as RUN/LAUNCH@1200, is refused if RUN@NAME would be the state of another launch.
    """
    from ckptstore.resume.resolve import step_to_tag

    *steps, name = step_and_name
    if len(steps) > 1 or (steps and not steps[0].isdigit()):
        raise click.UsageError("give RUN STEP NAME, or RUN@STATE NAME.")
    if not steps and name.isdigit() and "@" not in run:
        raise click.UsageError(f"NAME is missing: {Command('tag', run, name, 'NAME')}")
    opened = catalog(context)
    run, step = named(opened, run, STEP(steps[0], ctx=context)) if steps else step_to_tag(opened.database, run, name)
    changed = opened.tag(run, step, name)
    text = f"{every_save(opened, run, step)} is{'' if changed else ' already'} tagged {name}"
    values.report({"run": run, "global_step": step, "tag": name, "changed": changed}, text, as_json=as_json)


@click.command()
@run_argument
@click.argument("name")
@as_json
@click.pass_context
def untag(context: click.Context, run: str, name: str, *, as_json: bool) -> None:
    """Remove the tag NAME, and its protection, from a step of RUN."""
    from ckptstore.retention.protect import check_was_tag

    opened = catalog(context)
    check_was_tag(opened.database, run, name)
    changed = opened.untag(run, name)
    text = f"no step of {run} is tagged {name}{' any more' if changed else ''}"
    values.report({"run": run, "tag": name, "changed": changed}, text, as_json=as_json)


ALL = (gc, undo, purge, policy, tag, untag)
