"""The pages of docs: their length, and what is made from the program."""

import re
from pathlib import Path

import pytest

from ckptstore.core import events
from tests.docs import command_pages

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
MOST_LINES = 200
LONGER = ("CONTRIBUTING.md", "CHANGELOG.md")


@pytest.mark.parametrize("path", [path for path in PAGES if path.name not in LONGER], ids=lambda path: path.name)
def test_no_page_is_long(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MOST_LINES


def test_the_reference_of_commands_is_their_help() -> None:
    """Where it is not, and should be: python -m tests.docs.command_pages."""
    for path, text in command_pages.pages().items():
        assert path.read_text() == text, path


def test_every_environment_variable_is_in_the_table() -> None:
    table = (ROOT / "docs" / "reference" / "environment.md").read_text()
    read = {
        name
        for path in (ROOT / "ckptstore").rglob("*.py")
        for name in re.findall(r'"(CKPTSTORE_[A-Z_]+)"', path.read_text())
    }
    assert len(read) >= 9
    assert [name for name in sorted(read) if f"| `{name}` |" not in table] == []


def test_every_event_is_in_the_table() -> None:
    table = (ROOT / "docs" / "reference" / "events.md").read_text()
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)[1:] == list(events._TAGS.values())


def test_every_page_is_in_the_index_and_in_the_navigation() -> None:
    docs = ROOT / "docs"
    index, navigation = (docs / "README.md").read_text(), (ROOT / "mkdocs.yml").read_text()
    linked = set(re.findall(r"\]\(([^)#]+)\)", index))
    pages = {str(path.relative_to(docs)) for path in docs.rglob("*.md")} - {"README.md"}
    made = {name for name in pages if name.startswith("reference/commands/")}
    further = {"explanation/mindspore-resuming.md", "explanation/mindspore-limits.md"}
    assert sorted(pages - made - further - linked) == []
    assert sorted(name for name in pages if f"docs/{name}" not in navigation) == []
