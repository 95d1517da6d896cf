"""What a newcomer reads: examples are run, listings compared with the commands, names looked up in the tree."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import griffe
import pytest

from ckptstore.api import connect
from tests.docs.preludes import PRELUDE, PRELUDE_OF_LOOP
from tests.mindspore.running import python

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "examples" / "README.md"])
LAUNCH = "20261121T034217-0d35d4"
SIZE = 494_183
FOREIGN = ("train/", "nn/", "core/callback/", "checkpoint/", "iteration_")
"""How paths begin that are of MindSpore and MindFormers."""


def page(name: str) -> str:
    return (ROOT / name).read_text()


def blocks(name: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page(name), re.DOTALL)


@pytest.fixture
def digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The run that the README shows: its files, and its catalog."""
    monkeypatch.setenv("CKPTSTORE_URL", str(tmp_path / "catalog.db"))
    data = tmp_path / "digits"
    ranks = [
        connect().join("digits", rank=rank, world_size=2, launch_id=LAUNCH, layout="data_parallel") for rank in (0, 1)
    ]
    for step, name in ((35, "lenet-2_7"), (40, "lenet-2_12"), (41, "lenet-2_13_breakpoint")):
        for launch in ranks:
            launch.set_steps_per_epoch(28)
            launch.resolve()
            if step == 41 and launch.rank == 0:
                continue
            path = data / f"rank_{launch.rank}" / f"{name}.ckpt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
            os.truncate(path, SIZE)
            loss = {35: {"loss": 1.891}, 40: {"loss": 1.319}}.get(step)
            launch.register(path, kind="dying_gasp" if step == 41 else "periodic", global_step=step, metrics=loss)
    os.truncate(path, SIZE - 1)
    return data


def as_in_the_readme(text: str, data: Path) -> list[str]:
    text = text.replace(str(data), "/data/digits")
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d(:\d\d)?Z", "<moment>", text)
    return [line.rstrip() for line in text.strip().splitlines()]


def test_the_listings_are_what_the_commands_print(digits: Path) -> None:
    listings = [block for block in blocks("docs/how-to/passed-over.md", "console") if block.startswith("$ ")]
    assert len(listings) == 2
    for listing in listings:
        command, shown = listing.removeprefix("$ ").split("\n", 1)
        program, *arguments = command.split()
        done = subprocess.run(
            [Path(sys.executable).with_name(program), *arguments], capture_output=True, text=True, check=True
        )
        assert as_in_the_readme(done.stdout, digits) == as_in_the_readme(shown, digits)


def test_the_lines_for_a_script_train_and_are_in_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CKPTSTORE_URL", str(tmp_path / "catalog.db"))
    (program,) = (block for block in blocks("docs/tutorial/your-script.md", "python") if "registrar" in block)
    assert program.count("  # ") == 5
    (saver,) = (block for block in blocks("README.md", "python") if "launch.saver" in block)
    assert saver.count("  # ") == 3
    (loop,) = (block for block in blocks("docs/tutorial/your-script.md", "python") if "launch.loop" in block)
    program += PRELUDE_OF_LOOP + loop.replace('"digits"', '"own loop"')
    saver = "model, dataset = make_model(), make_dataset()\n" + saver.replace('"digits"', '"saved"').replace(
        "every=100", "every=25"
    )
    script = tmp_path / "script.py"
    script.write_text(PRELUDE + program + saver)
    command = [*python(), str(script), str(tmp_path / "ckpt")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert connect().saves("digits")[0].tally.global_step == 60
    assert connect().saves("own loop")[0].tally.global_step == 60
    assert [save.tally.global_step for save in connect().saves("saved")] == [60, 50, 25]
    example = (ROOT / "examples" / "digits" / "train.py").read_text().splitlines()
    assert len([line for line in example if line.endswith("# ckptstore")]) == 3


def test_every_rule_is_documented() -> None:
    from ckptstore.core.model import Rule

    rules = page("docs/how-to/passed-over.md")
    assert [rule for rule in Rule if f"\n| `{rule}` |" not in rules] == []


def shown_commands() -> set[tuple[str, str]]:
    """Every command line of ckptstore on a page, in a block or in a sentence, and the page that it is on."""
    found = set()
    for path in PAGES:
        text = path.read_text()
        lines = [line for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]
        lines += re.findall(r"`([^`\n]+)`", text)
        for line in lines:
            for asked in re.findall(r"(?:^|[$(] ?)ckptstore ([a-z][^#|)]*)", line.replace("\\|", " ")):
                found.add((str(path.relative_to(ROOT)), asked.strip()))
    return found


def test_commands_on_the_pages_have_these_options() -> None:
    """The command is there, and knows each option that is named with it."""
    from ckptstore.cli.main import cli

    shown = shown_commands()
    assert len(shown) > 50
    for where, asked in sorted(shown):
        name, *words = asked.split()
        command: Any = cli.commands.get(name)
        assert command is not None, f"{where}: ckptstore {asked}"
        command = getattr(command, "commands", {}).get(words[0] if words else "", command)
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        named = re.findall(r"(?<![\w-])--?[a-z][\w-]*", " ".join(words))
        assert set(named) <= known, f"{where}: ckptstore {asked}"


def names_of(text: str) -> set[str]:
    """Paths in the tree, and what is defined in them, as links or between backticks.

    `file.py::name` is a function or class in the file; `::name` alone is one in the file that was named last.
    """
    names = {link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link} - {""}
    last = ""
    for file, inside in re.findall(r"`((?:[\w.-]+/)+[\w.-]+\.(?:py|md|toml|sql|txt))?((?:::[\w.]+)?)`", text):
        last = file or last
        if (file or inside) and not last.startswith(FOREIGN):
            names.add(f"{last}{inside}")
    return names


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_names_on_the_pages_are_in_the_tree(path: Path) -> None:
    missing = sorted(name for name in names_of(path.read_text()) if not is_there(name, path.parent))
    assert missing == []


def is_there(name: str, beside: Path) -> bool:
    file, _, inside = name.partition("::")
    homes = (home / file for home in (beside, ROOT, ROOT / "ckptstore", ROOT / "tests", ROOT / "examples"))
    home = next((home for home in homes if home.exists()), None)
    last = inside.rpartition(".")[2]
    return home is not None and (
        not last or re.search(rf"^ *(?:def|class) {last}\b", home.read_text(), re.MULTILINE) is not None
    )


def test_links_into_pages_have_their_headings() -> None:
    for path in PAGES:
        for link in re.findall(r"\]\(([^)\s]*#[^)\s]+)\)", path.read_text()):
            file, _, anchor = link.partition("#")
            text = (path.parent / file).read_text() if file else path.read_text()
            titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}, link


def test_each_public_name_has_its_entry_and_a_docstring() -> None:
    """What the site says of it is that docstring: `make docs`."""
    package = griffe.load("ckptstore")
    public = {f"{each.path}.{name}": each[name] for each in (package, package["mindspore"]) for name in each.exports}
    entries = re.findall(r"^::: (\S+)$", page("docs/reference/api.md"), re.MULTILINE)
    assert sorted(entries) == sorted([*public, "ckptstore.errors"])
    assert [name for name, known in public.items() if not known.has_docstring] == []
