"""Finds phrases that have to be read twice, in pages, docstrings and messages: python -m tests.docs.prose."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = ("*.md", "docs/**/*.md", "examples/**/*.md")
MADE = ("docs/reference/commands", "docs/reference/json.md", "docs/explanation/figures.md")  # by programs
SOURCES = "ckptstore/**/*.py"

_PHRASES = {
    r"of whatever": "name the thing, or 'any'",
    r"whoever": "name the user or the program",
    r"what (is|was|has|had|it is)": "name the thing: 'the files that', 'a state that'",
    r"who may(?! not be)": "'users with the right to'",
    r"(it|this|that) is said": "'a warning says'",
    r"(is|are|was|were|been) told": "'is reported', 'is listed', or an active verb",
    r"(was|is|were) meant": "'on purpose'",
    r"meanwhile": "'since then', 'at the same time'",
    r"(is|are|was|were|be|been) away": "'unreachable', 'unmounted'",
    r"no[tr]? \w+ (that|which) (is|are|has|have) no": "a double negation: say what it is",
    r"not un\w+": "a double negation: say what it is",
    r"(so|nor) (it|they) (is|are|does|do)": "repeat the verb",
    r"by whom": "name the user or the program",
    r"nobody": "'no user', 'no process', or the passive",
    r"as ever": "'as usual'",
    r"of which nothing": "name the thing",
}
PHRASES = {re.compile(rf"\b{phrase}\b", re.IGNORECASE): instead for phrase, instead in _PHRASES.items()}
_CODE = re.compile(r"```.*?```|`[^`\n]*`|<!--.*?-->", re.DOTALL)


class Found(NamedTuple):
    """A phrase, and what to write instead."""

    where: str
    phrase: str
    instead: str


def in_text(text: str, where: str, first_line: int = 1) -> Iterator[Found]:
    """The phrases of a text."""
    for phrase, instead in PHRASES.items():
        for match in phrase.finditer(text):
            line = first_line + text.count("\n", 0, match.start())
            yield Found(f"{where}:{line}", " ".join(match.group().split()), instead)


def in_page(text: str, where: str) -> Iterator[Found]:
    """The phrases of a Markdown page, without its code."""
    yield from in_text(_CODE.sub(lambda code: re.sub(r"[^\n]", " ", code.group()), text), where)


def in_source(text: str, where: str) -> Iterator[Found]:
    """The phrases of a Python file: of its docstrings, and of strings that are sentences."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip():
            yield from in_text(node.value, where, node.lineno)


def found() -> Iterator[Found]:
    """The phrases of all pages and sources."""
    for path in sorted({path for pattern in PAGES for path in ROOT.glob(pattern)}):
        name = str(path.relative_to(ROOT))
        if not name.startswith(MADE):
            yield from in_page(path.read_text(), name)
    for path in sorted(ROOT.glob(SOURCES)):
        yield from in_source(path.read_text(), str(path.relative_to(ROOT)))


def main() -> int:
    """Print each phrase, a line each."""
    phrases = list(found())
    for each in phrases:
        print(f"{each.where}: {each.phrase!r}: {each.instead}")
    return 1 if phrases else 0


if __name__ == "__main__":
    sys.exit(main())
