"""Draws how the cost of keeping saves grows with their number.

.venv-bench/bin/python -m bench.plot RESULTS.JSON
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt

from bench import results
from bench.report import NAMES

PANELS = {
    "save, as written": "one more save",
    "list, as written": "list all",
    "newest, as written": "find the newest",
    "prune, as written": "delete all but ten",
}


def draw(found: results.Results, path: Path) -> None:
    """One panel for each kind of work: seconds over the number of saves, both on logarithmic scales."""
    figure, axes = plt.subplots(1, len(PANELS), figsize=(11, 3), constrained_layout=True)
    for axis, (what, title) in zip(axes, PANELS.items(), strict=True):
        rows = [row for row in found.of("registry") if row.what == what]
        for who, name in NAMES.items():
            points = [(row.size, row.spread(who)) for row in rows if who in row.seconds]
            if not points:
                continue
            axis.plot(
                [size for size, _ in points],
                [spread.median for _, spread in points],
                marker=".",
                label=name,
                linewidth=2.2 if who == "ckptstore" else 1.1,
                linestyle="--" if who == "sqlite3" else "-",
            )
        axis.set(title=title, xscale="log", yscale="log", xlabel="saves that there are")
        axis.grid(visible=True, alpha=0.3)
    axes[0].set_ylabel("seconds")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(NAMES), frameon=False)
    figure.savefig(path, dpi=80)


if __name__ == "__main__":
    source = Path(sys.argv[1])
    whole = results.read(source)
    assert whole is not None, source
    draw(whole, source.with_name("growth.png"))
