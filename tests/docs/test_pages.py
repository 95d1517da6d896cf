"""The pages of docs: their length, and what is made from the program."""

import ast
import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import pytest
from click import Group

from ckptstore.cli.main import cli
from ckptstore.core import events
from ckptstore.serve import openapi
from tests.docs import made_pages, printed_json

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
MOST_LINES = 200
LONGER = ("CONTRIBUTING.md",)


@pytest.mark.parametrize("path", [path for path in PAGES if path.name not in LONGER], ids=lambda path: path.name)
def test_no_page_is_long(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= MOST_LINES


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_row_of_a_table_is_on_one_line(path: Path) -> None:
    blocks = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL).split("\n\n")
    rows = [row for block in blocks if block.lstrip().startswith("|") for row in block.strip().splitlines()]
    assert [row for row in rows if not (row.startswith("|") and row.endswith("|"))] == []


def test_the_reference_of_commands_is_their_help() -> None:
    """Where it is not, and should be: python -m tests.docs.made_pages."""
    for path, text in made_pages.pages().items():
        assert path.read_text() == text, path


def test_every_command_with_json_has_a_row() -> None:
    own = [("", *each) for each in cli.commands.items()]
    inner = [
        (f"{name} ", *each) for _, name, group in own if isinstance(group, Group) for each in group.commands.items()
    ]
    with_json = [
        f"{above}{name}"
        for above, name, command in own + inner
        if any("--json" in option.opts for option in command.params)
    ]
    assert len(with_json) >= 30
    assert sorted(with_json) == sorted(printed_json.COMMANDS)


def test_a_document_that_the_page_of_json_does_not_have_is_found() -> None:
    """Tests hold what commands print to that page: a field too many, one too few, and another type."""
    whole = {"run": "a", "before": "b", "changed": True}
    printed_json.check("rename", json.dumps(whole))
    wrong: list[Any] = [{**whole, "whole": []}, {"run": "a", "before": "b"}, {**whole, "changed": None}, [whole]]
    for each in wrong:
        with pytest.raises(AssertionError, match="no document of the page of JSON"):
            printed_json.check("rename", json.dumps(each))
    with pytest.raises(AssertionError, match="no number Infinity"):
        printed_json.check("rename", '{"run": Infinity}')


def test_the_page_of_json_has_every_type_that_it_names() -> None:
    objects = openapi._FIELDS | printed_json.FIELDS
    texts = [*printed_json.COMMANDS.values(), *objects.values()]
    named = {name for text in texts for name in re.findall(r"\b[A-Z]\w+", text)}
    assert named - objects.keys() - openapi._OTHERS.keys() - printed_json._OTHERS.keys() == set()
    assert printed_json.FIELDS.keys() - named == set()


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


def test_messages_of_the_troubleshooting_page_are_printed_by_the_program() -> None:
    """Each part between `…` is in a string of the program."""
    page = (ROOT / "docs" / "how-to" / "troubleshooting.md").read_text()
    nodes = (node for path in (ROOT / "ckptstore").rglob("*.py") for node in ast.walk(ast.parse(path.read_text())))
    printed = "\n".join(node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))
    parts = [
        part.strip(" ,") for shown in re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE) for part in shown.split("…")
    ]
    assert len(parts) > 40
    assert [part for part in parts if part not in printed] == []


def test_the_picture_is_what_a_start_decides(tmp_path: Path) -> None:
    """Where it is not, and should be: make pictures."""
    spec: Any = importlib.util.spec_from_file_location("picture", ROOT / "examples" / "picture.py")
    picture = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(picture)
    drawn = "\n".join(picture.drawing(picture.saved(tmp_path))) + "\n"
    assert drawn == (ROOT / "docs" / "pictures" / "start.svg").read_text()


def test_the_transcript_of_the_readme_is_that_of_the_first_hour() -> None:
    """That page is held against what the commands print: `tests/test_first_hour.py`."""
    (shown,) = re.findall(r"```console\n(\$ KILL_AT.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    hour = (ROOT / "docs" / "tutorial" / "first-hour.md").read_text()
    killed, again = shown.split("$ python")
    assert f"```console\n{killed}```" in hour
    assert f"```console\n$ python{again}```" in hour


def test_figures_of_the_readme_are_those_that_were_measured() -> None:
    table = (ROOT / "README.md").read_text()
    figures = (ROOT / "docs" / "explanation" / "figures.md").read_text()
    for measured, told in (
        ("MindSpore's load without proof / restore with proof, .ckpt, 1 GB, warm", "takes {} times as long"),
        ("pause of a save of 1024 MiB / mindspore.save_checkpoint, ckpt", "| {} times the pause with MindSpore"),
    ):
        (figure,) = re.findall(rf"^\| {re.escape(measured)} \| \**([\d.]+) ×", figures, re.MULTILINE)
        assert told.format(figure) in table
    details = (ROOT / "bench" / "RESULTS.md").read_text()
    for told in ("15 files are left", "goes on from step 26", "goes on from step 30", "rank 3 loads step 2"):
        assert told in details


def test_the_diff_of_the_readme_ends_in_the_lines_of_its_example() -> None:
    readme = (ROOT / "README.md").read_text()
    (changed,) = re.findall(r"```diff\n(.*?)```", readme, re.DOTALL)
    after = [line[1:] for line in changed.splitlines() if line.startswith("+") and len(line) > 1]
    (example,) = (block for block in re.findall(r"```python\n(.*?)```", readme, re.DOTALL) if "saver" in block)
    lines = {line.partition("  #")[0] for line in example.splitlines()}
    assert [line for line in after if line not in lines and "callbacks" not in line] == []
