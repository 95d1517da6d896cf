"""Makes the reference of commands from their `--help`: python -m tests.docs.command_pages."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from ckptstore.cli.main import cli

HOME = Path(__file__).parents[2] / "docs" / "reference"
WIDTH = 100
GROUPS = {
    "look": ("Look at runs and files", "runs list show history inspect diff doctor verify advise"),
    "watch": ("Serve and watch", "serve metrics watch"),
    "go-on": ("Go on, leave, hand over", "resolve exit export import"),
    "keep": ("Keep and remove", "gc undo purge policy pin unpin tag untag tier"),
    "catalog": ("Fill and mend the catalog", ""),  # and each command that no other group names
}
NOTE = "<!-- Made by python -m tests.docs.command_pages from the commands' own --help. -->"


def pages() -> dict[Path, str]:
    """Each page with its text."""
    made = {HOME / "commands.md": "\n".join(_overview())}
    for file, (title, _) in GROUPS.items():
        made[HOME / "commands" / f"{file}.md"] = "\n".join(_page(title, _commands(file)))
    return made


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
