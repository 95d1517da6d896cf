"""Makes the reference of commands from `--help`, that of JSON from the API: python -m tests.docs.made_pages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from ckptstore.cli.main import cli
from ckptstore.serve import openapi
from tests.docs import printed_json, share_files

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

<!-- Made by python -m tests.docs.made_pages from ckptstore/serve/openapi.py and tests/docs/printed_json.py. -->

Fields are only ever added. `?` marks a field that may be null, `[]` a list. Times are UTC, sizes bytes, \
durations seconds. Each command prints one document; `watch` and `replicate --watch` print one after the other.

| command | prints |
| --- | --- |
"""
OBJECTS = """
| object | fields |
| --- | --- |
"""
NOTES = """
- Metrics are numbers by name, Counts numbers by kind, Values anything by name. A Layout has its `source`, and the \
`groups` of ranks that hold the same. A Policy has the rules that are set. \
Axes are a number or a list of numbers, as in MindSpore's `tensor_map`.
- Of Asked, `whole` and all fields behind it are null without `--wait`. `unreached` has a reason for each directory.
- Of RankCompared, `same` is null if nothing was read. A Norm is null for a type without norms, and text if it is not \
finite, as other numbers of a checkpoint are: JSON has no number for these.
- `complete` of a header is null if nothing in the file marks its end.
- Of Scanned, `from_journals` is the number of records that the scan took from journals.
- `whole_again` of Verified has paths, `whole` of TierVerified keys in the tier.
"""
RULES = """
A reason is a rule and a detail. Rules of `resolve` are in [Find out why a newer state was passed \
over](../how-to/passed-over.md#the-rules). Rules of `gc` that keep: `floor`, `last`, `every`, `within`, `hourly`, \
`daily`, `weekly`, `best`, `kind`, `pinned`, `tagged`, `restoring`, `initial`, `parent`, `branch_tip`, \
`weights_only`, `doubt`, `in_progress`, `newer`. Rules that remove: `no_rule`, `not_restorable`, `abandoned`. \
`kind` is a list if files of several kinds make up a state.
"""


def _json() -> str:
    commands = (f"| `{name} --json` | {types} |\n" for name, types in printed_json.COMMANDS.items())
    own = {name: fields for name, fields in openapi._FIELDS.items() if name != "Problem"}
    rows = (f"| {name} | {_fields(fields)} |\n" for name, fields in (own | printed_json.FIELDS).items())
    return f"{JSON}{''.join(commands)}{OBJECTS}{''.join(rows)}{NOTES}{RULES}"


def _fields(fields: str) -> str:
    kinds = ((name, kind.replace("][", "]\\[")) for name, kind in (field.split(":") for field in fields.split()))
    return ", ".join(f"`{name}` {kind}" for name, kind in kinds)  # without the backslash, `[][]` would be a link


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
