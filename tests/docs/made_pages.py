"""Makes the reference of commands from `--help`, that of JSON from the API: python -m tests.docs.made_pages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from ckptstore.cli.main import cli
from ckptstore.serve import openapi
from tests.docs import share_files

HOME = Path(__file__).parents[2] / "docs" / "reference"
WIDTH = 100
GROUPS = {
    "look": ("Look at runs and files", "runs list show history inspect diff doctor verify advise"),
    "watch": ("Serve and watch", "serve metrics watch"),
    "go-on": ("Go on, leave, hand over", "resolve exit export import"),
    "keep": ("Keep and remove", "gc undo purge policy pin unpin tag untag"),
    "copies": ("Copies in other places", "tier replicate"),
    "catalog": ("Fill and mend the catalog", ""),  # and each command that no other group names
}
NOTE = "<!-- Made by python -m tests.docs.made_pages from the commands' own --help. -->"


def pages() -> dict[Path, str]:
    """Each page with its text."""
    made = {HOME / "commands.md": "\n".join(_overview()), HOME / "json.md": _json()}
    for file, (title, _) in GROUPS.items():
        made[HOME / "commands" / f"{file}.md"] = "\n".join(_page(title, _commands(file)))
    return made | share_files.files()


JSON = """# JSON

<!-- Made by python -m tests.docs.made_pages from ckptstore/serve/openapi.py. -->

Fields are only ever added. `?` marks a field that may be null, `[]` a list. Times are UTC, sizes bytes, \
durations seconds.

| command | prints |
| --- | --- |
| `runs --json` | a list of Run |
| `list --json`, `list --files --json` | a list of Save, of File |
| `show --json` | a list of File |
| `history --json` | a list of Launch |
| `resolve --json` | Resolution |
| `gc --json` | GcPlan; with `--all` a list of these |
| `gc --tier NAME --json` | a list of `run`, `tier`, `applied`, `keep: Kept[]`, `remove: Removed[]`, `bytes_freed`, \
`policy: Policy`, `refused`, `skipped: Skipped[]`, `purged_bytes`, `troubles`. Of a tier of level 0 as without \
`--tier` |
| `undo --json` | `run`, `files`, `bytes`, `gone`, `troubles` |
| `purge --json` | `run`, `files`, `bytes`, `waiting`, `waiting_bytes`, `next_at`, `troubles` |
| `undo --tier NAME --json`, `purge --tier NAME --json` | `run`, `tier`, `copies`, `bytes`, `purged`, `purged_bytes`, \
`troubles` |
| `policy --json` | `run`, `policy` |
| `pin --json`, `unpin --json` | Pinned |
| `tag --json` | Tagged |
| `untag --json` | Untagged |
| `rename --json` | `run`, `before`, `changed` |
| `forget --json` | `run`, `launches`, `bytes`, `directories: [path]`, `trash_files`, `trash_bytes`, `forgotten`, \
`changed`; with `--undo` `run`, `forgotten`, `changed` |
| `scan --json` | `run`, `world_size`, `files` (the number of each kind), `known`, `from_journals`, `adopted: File[]`, \
`damaged: File[]`, `missing: File[]`, `uncertain: [{path, best_guess, reason, contradicted, place_with}]`, `regraded: \
File[]`, `skipped`, `opaque: [{path, rank, size, modified}]`, `trash: [{collection, run, files, bytes}]`, `warnings: \
[text]` |
| `sync --json` | `runs: [name]`, `journals`, `read`, `records`, `spoiled_lines`, `skipped` |
| `export --json` | `run`, `launch`, `global_step`, `target`, `holds`, `files`, `bytes` |
| `import --json` | `run`, `exported_run`, `launch`, `global_step`, `directory`, `holds`, `files`, `bytes` |
| `tier add --json`, `tier remove --json` | `name`, `url`, `level`, `changed` |
| `tier list --json` | a list of `name`, `url`, `level`, `declared`, `ready`, `bytes`, `pending`, `failed` |
| `replicate --json` | `files`, `bytes`, `held`, `elsewhere`, `troubles`; with `--watch` one of these after each round \
that copied |
| `verify --json` | `checked`, `bytes`, `damaged: [{path, rule, detail}]`, `troubles`, `skipped`, `unknown: \
[{path, reason}]`, `whole_again: [path]`, `new_digests`, `missing_before` |
| `verify --tier NAME --json` | `tier`, `checked`, `bytes`, `damaged: PathReason[]`, `troubles`, `whole: [key]`, \
`failed_before` |
| `inspect --json` | `path`, `format`, `parameters`; of a checkpoint also `info`, `optimizer_step`, `complete`, of \
safetensors `metadata`; of a strategy file also `stages`; of a group info file `restore_ranks` and `groups` in place \
of `parameters` |
| `diff --json` | `first`, `second`, `ranks: [{ranks, paths, same_bytes, same, new, gone, reshaped, changed: \
[{name, dtype, shape, relative, l2, max_abs, nan, inf}]}]`, `unmatched_ranks`. `first` and `second` are `{name, run, \
launch, global_step, epoch, step_in_epoch, optimizer_step, metrics, world_size, layout}`, `new` and `gone` lists of \
`{name, dtype, shape}`, `reshaped` one of `{name, first, second}`. `same` is null if nothing was read; `relative`, \
`l2` and `max_abs` are null for a type without norms |
| `exit --json` | `run`, `launch`, `world_size`, `ended_before`, `directories`, `unreached`, `by_catalog`, \
`signalled`, `whole`, `step`, `missing_ranks`, `ended`, `restart_step`; with `--from-env` a list of these. From \
`whole` on they are null without `--wait`; with `--cancel` `run`, `cancelled` |
| `doctor --json` | Checkup |
| `advise --json` | `run`, `pause_seconds`, `written_seconds`, `step_seconds`, `state_bytes`, `policy`, `failures`, \
`trained_seconds`, `failures_mtbf_low_seconds`, `failures_mtbf_high_seconds`, `mtbf_seconds`, `mtbf_given`, `present`, \
`best`, `others`, `grace_seconds`, `grace_given_seconds`. `present` and `best` are null or \
`{steps, seconds, mtbf_seconds, lost_steps_a_week, states_bytes, trash_bytes, more_bytes_a_week}`; `others` is a list \
of these |
| `watch --json` | for each notice a line with `id`, `kind`, `run`, `status`, `detail`, `hint`, `text`, `catalog` |
| `db current --json`, `db check --json`, `db upgrade --json` | `catalog`, `schema`, `needed` |
| `selftest --json` | a list of `promise`, `held`, `seen` |

`troubles` and `skipped` are PathReason[] if nothing else is said.

| object | fields |
| --- | --- |
"""
RULES = """
A reason is a rule and a detail. Rules of `resolve` are in [Find out why a newer state was passed \
over](../how-to/passed-over.md#the-rules). Rules of `gc` that keep: `floor`, `last`, `every`, `within`, `hourly`, \
`daily`, `weekly`, `best`, `kind`, `pinned`, `tagged`, `restoring`, `initial`, `parent`, `branch_tip`, \
`weights_only`, `doubt`, `in_progress`, `newer`. Rules that remove: `no_rule`, `not_restorable`, `abandoned`. \
`kind` is a list if files of several kinds make up a state.
"""


def _json() -> str:
    rows = (f"| {name} | {_fields(fields)} |\n" for name, fields in openapi._FIELDS.items() if name != "Problem")
    return f"{JSON}{''.join(rows)}{RULES}"


def _fields(fields: str) -> str:
    return ", ".join(f"`{name}` {kind}" for name, kind in (field.split(":") for field in fields.split()))


def _commands(file: str) -> list[str]:
    named = {name for _, names in GROUPS.values() for name in names.split()}
    return GROUPS[file][1].split() or sorted(set(cli.commands) - named)


def _overview() -> Iterator[str]:
    yield from ("# Commands", "", NOTE, "", "```text", _help(_of(cli, "ckptstore")), "```", "")
    for file, (title, _) in GROUPS.items():
        yield from (f"## {title}", "", "| command | does |", "| --- | --- |")
        for name in _commands(file):
            summary = cli.commands[name].get_short_help_str(limit=200)
            yield f"| [`ckptstore {name}`](commands/{file}.md#{name}) | {summary} |"
        yield ""


def _page(title: str, commands: list[str]) -> Iterator[str]:
    yield from (f"# {title}", "", NOTE, "", "Each command takes `--db URL` and `--help` too.", "")
    for name in commands:
        yield from (f"## {name}", "")
        for context in _contexts(name):
            yield from ("```text", _help(context), "```", "")


def _contexts(name: str) -> Iterator[click.Context]:
    """The command; of a group its commands too."""
    command = cli.commands[name]
    context = _of(command, name, _of(cli, "ckptstore"))
    yield context
    if isinstance(command, click.Group):
        for each, inner in sorted(command.commands.items()):
            yield _of(inner, each, context)


def _of(command: click.Command, name: str, parent: click.Context | None = None) -> click.Context:
    return click.Context(command, info_name=name, parent=parent, **command.context_settings)


def _help(context: click.Context) -> str:
    context.terminal_width = WIDTH
    lines = [line.rstrip() for line in context.get_help().splitlines()]
    if context.command is cli:
        lines = lines[: lines.index("Commands:")]
    else:
        lines = [line for line in lines if not line.startswith(("  -h, --help ", "  --help ", "  --db "))]
    return "\n".join(lines).rstrip()


def main() -> None:
    """Write them."""
    for path, text in pages().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main()
