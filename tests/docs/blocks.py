"""The code blocks of the pages, and how each is run: python -m tests.docs.blocks prints how many are."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = ("README.md", "CONTRIBUTING.md", "docs/**/*.md", "examples/**/*.md")
HOUR = "tests/test_first_hour.py::test_the_page_is_what_the_commands_print"
SCHEDULERS = (
    "tests/mindspore/test_graceful_exit.py::test_the_script_of_the_docs_ends_with_codes_that_a_scheduler_can_act_on"
)


class Block(NamedTuple):
    """A fenced block: the page it is on, its number there from 1, the language, the text."""

    page: str
    number: int
    language: str
    text: str

    @property
    def first(self) -> str:
        return self.text.split("\n", 1)[0]

    @property
    def is_listing(self) -> bool:
        """Commands behind a `$`, perhaps with what they print."""
        return self.language == "console" and self.text.startswith("$ ")

    @property
    def commands(self) -> list[str]:
        """The lines that somebody types."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [line.removeprefix("$ ") for line in lines if not self.is_listing or line.startswith("$ ")]


def blocks() -> Iterator[Block]:
    """Those of all pages, by page."""
    for path in sorted({path for pattern in PAGES for path in ROOT.glob(pattern)}):
        found = re.finditer(r"^( *)```(\w*)\n(.*?)^ *```$", path.read_text(), re.DOTALL | re.MULTILINE)
        for number, match in enumerate(found, 1):
            text = re.sub(rf"^{match[1]}", "", match[3], flags=re.MULTILINE)
            yield Block(str(path.relative_to(ROOT)), number, match[2], text)


ELSEWHERE: dict[str, dict[str, str]] = {
    "README.md": {
        "$ KILL_AT=17": "tests/docs/test_pages.py::test_the_transcript_of_the_readme_is_that_of_the_first_hour",
        "import ckptstore.mindspore": "tests/test_readme.py::test_the_lines_for_a_script_train_and_are_in_the_example",
        "+import": "tests/docs/test_mindspore_blocks.py::test_the_diff_of_the_readme_trains_before_and_after",
    },
    "docs/tutorial/first-hour.md": {"$ ": HOUR, "launch = ": HOUR},
    "docs/tutorial/your-script.md": {
        "import ckptstore.mindspore": "tests/test_readme.py::test_the_lines_for_a_script_train_and_are_in_the_example",
        'launch = ckptstore.mindspore.join("digits")\nloop': (
            "tests/test_readme.py::test_the_lines_for_a_script_train_and_are_in_the_example"
        ),
    },
    "docs/how-to/passed-over.md": {"$ ": "tests/test_readme.py::test_the_listings_are_what_the_commands_print"},
    "docs/how-to/check-health.md": {"$ ": "tests/cli/test_doctor.py::test_the_page_in_the_docs"},
    "docs/how-to/compare.md": {"$ ": "tests/cli/test_diff.py::test_the_listing_in_the_docs"},
    "docs/how-to/evaluate.md": {
        "import ckptstore.mindspore": "tests/mindspore/test_evaluation.py::test_the_examples_of_the_docs"
    },
    "docs/how-to/numpy.md": {"import ckptstore": "tests/mindspore/test_evaluation.py::test_the_examples_of_the_docs"},
    "docs/how-to/fine-tune.md": {"launch": "tests/mindspore/test_initial.py::test_the_lines_of_the_page"},
    "docs/how-to/early-stopping.md": {
        "for data": "tests/mindspore/test_loop_left.py::test_early_stopping_as_the_guide_has_it"
    },
    "docs/how-to/hand-over.md": {"network": "tests/mindspore/test_handover.py::test_the_recipe_for_mindir"},
    "docs/how-to/schedulers.md": {"import logging": SCHEDULERS},
    "docs/how-to/drain-a-node.md": {
        "$ ckptstore exit": "tests/mindspore/test_cluster.py::test_a_drained_pod",
        "$ CKPTSTORE_GRACE": "tests/mindspore/test_cluster.py::test_a_drained_pod",
    },
    "docs/how-to/browser-for-a-team.md": {
        "server {": "tests/serve/test_guard.py::test_the_headers_that_nginx_sends_in_the_docs"
    },
    "docs/how-to/your-device.md": {
        "$ ckptstore selftest": "tests/mindspore/test_selftest.py::test_all_that_can_be_tried_holds"
    },
}
"""By page, how a block begins, and the test that runs it. Every other block runs in `test_blocks.py`."""

OUTSIDE = {
    "pip install": "another machine's Python",
    "createuser": "a PostgreSQL of the reader's",
    "msrun": "several ranks: tests/mindspore starts them",
    "make ": "a target of its own: `make test-long`, or its own environment",
    "kubectl": "a cluster",
    ".venv/bin/python -m pytest": "the tests themselves",
    "python examples": "tests/mindspore starts the examples",
    "export PATH": "`make demo`",
    "MS_ENABLE": "tests/mindspore starts the examples",
}
"""How the first line of a block begins that needs something outside, and what."""


def elsewhere(block: Block) -> str | None:
    """The test that runs a block, if it is not run here."""
    known = ELSEWHERE.get(block.page, {})
    return next((test for begin, test in known.items() if block.text.startswith(begin)), None)


def outside(block: Block) -> str | None:
    """Why a block runs in no test."""
    line = block.commands[0] if block.language == "console" else ""
    return next((why for begin, why in OUTSIDE.items() if line.startswith(begin)), None)


def is_made(block: Block) -> bool:
    """Whether a program writes it."""
    return block.page.startswith("docs/reference/commands")


def how(block: Block) -> str:
    """One word for how it is run."""
    if is_made(block):
        return "made by a program"
    if elsewhere(block):
        return "run by a test of its subject"
    if block.language == "console":
        return "needs something outside" if outside(block) else "commands, run here"
    return "Python, run here" if block.language == "python" else "text: read or compared here"


def needs_mindspore(block: Block) -> bool:
    """A block that a script of MindSpore has: `test_mindspore_blocks.py` runs it."""
    words = ("mindspore", "resume(", "callbacks", "model.train", "launch.restore", "launch.link", "launch.loop")
    return any(word in block.text for word in words)


HERE = [block for block in blocks() if not is_made(block) and not elsewhere(block)]


def main() -> None:
    """Print the counts."""
    counts = Counter(map(how, blocks()))
    for name, count in counts.most_common():
        print(f"{count:4} {name}")
    print(f"{sum(counts.values()):4} in all")


if __name__ == "__main__":
    main()
