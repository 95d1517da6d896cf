"""Makes what a wheel installs in `share`: the man page, and what lets shells complete. See `made_pages`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from ckptstore.cli.main import cli

ROOT = Path(__file__).parents[2]
SHARE = ROOT / "share"
SHELLS = {
    "bash": "bash-completion/completions/ckptstore",
    "zsh": "zsh/site-functions/_ckptstore",
    "fish": "fish/vendor_completions.d/ckptstore.fish",
}
MAN_PAGE = SHARE / "man" / "man1" / "ckptstore.1"


def files() -> dict[Path, str]:
    """Each file with its text."""
    return {MAN_PAGE: "\n".join(_man_page()) + "\n"} | {
        SHARE / place: _source(shell) for shell, place in SHELLS.items()
    }


def _source(shell: str) -> str:
    made = get_completion_class(shell)
    assert made is not None
    completion = made(cli, {}, "ckptstore", "_CKPTSTORE_COMPLETE")
    return completion.source_template % completion.source_vars()


def _man_page() -> Iterator[str]:
    context = click.Context(cli, info_name="ckptstore")
    yield '.TH CKPTSTORE 1 "" "ckptstore" "ckptstore"'
    yield from (".SH NAME", r"ckptstore \- look after the checkpoints of MindSpore runs")
    yield from (
        ".SH SYNOPSIS",
        ".B ckptstore",
        r"[\fB\-\-db\fR \fIURL\fR] [\fICOMMAND\fR] [\fIOPTIONS\fR] [\fIARGUMENTS\fR]",
    )
    yield from (".SH DESCRIPTION", *_text(cli.help or ""))
    yield from (".SH OPTIONS", *_options(cli, context), ".SH COMMANDS")
    for name in sorted(cli.commands):
        yield from _command(cli.commands[name], f"ckptstore {name}", context)
    yield from (".SH EXIT STATUS", *_table("exit-codes.md"), ".SH ENVIRONMENT", *_table("environment.md"))


def _command(command: click.Command, path: str, parent: click.Context) -> Iterator[str]:
    context = click.Context(command, info_name=path.rpartition(" ")[2], parent=parent)
    if isinstance(command, click.Group):
        for name in sorted(command.commands):
            yield from _command(command.commands[name], f"{path} {name}", context)
        return
    arguments = " ".join(command.collect_usage_pieces(context))
    yield from (f".SS {_plain(f'{path} {arguments}')}", *_text(command.help or ""), *_options(command, context))


def _text(text: str) -> Iterator[str]:
    for number, paragraph in enumerate(re.split(r"\n\s*\n", text.strip())):
        if number:
            yield ".PP"
        yield _plain(" ".join(paragraph.split()))


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    for parameter in command.params:
        shown = parameter.get_help_record(context)
        is_repeated = command is not cli and "--db" in parameter.opts
        if shown is not None and shown[1] and not is_repeated:
            yield from (".TP", rf"\fB{_plain(shown[0])}\fR", _plain(shown[1]))


def _table(page: str) -> Iterator[str]:
    """The first two columns of the tables on a page of the reference."""
    for line in (ROOT / "docs" / "reference" / page).read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and len(cells) > 1 and cells[0] not in ("code", "variable") and "--" not in cells[0]:
            yield from (".TP", rf"\fB{_plain(cells[0])}\fR", _plain(cells[1]))


def _plain(text: str) -> str:
    """Text as roff has it: without Markdown's links and quotes."""
    text = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", text).replace("`", "")
    text = text.replace("\\", r"\e").replace("-", r"\-")
    return rf"\&{text}" if text.startswith((".", "'")) else text
