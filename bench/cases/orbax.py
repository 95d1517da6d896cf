"""What a restart gets from Orbax's `CheckpointManager`."""

from __future__ import annotations

import shutil
from pathlib import Path
from unittest import mock

import orbax.checkpoint as ocp

from bench.cases.case import (
    KEEP,
    KILLED,
    LAUNCHES,
    NAME_LIES,
    NEWEST_CUT,
    RANK_MISSING,
    RESTARTS,
    SAVES,
    Judged,
    cut,
    die,
    killed,
    left,
    main,
    refused,
    went_on,
)
from bench.peers.orbax import Orbax, state


def _keeper(home: Path, saves: int = SAVES) -> Orbax:
    keeper = Orbax(home, synced=False)
    if saves:
        keeper.save(range(1, saves + 1))
    return keeper


def _restarted(keeper: Orbax, expected: int) -> Judged:
    """As its guide does: `restore(latest_step())`."""
    with keeper.manager() as manager:
        step = manager.latest_step()
        try:
            restored = manager.restore(step, args=ocp.args.Composite(state=ocp.args.JsonRestore()))
        except Exception as error:  # noqa: BLE001 — whatever it raises, a person has to look
            return refused(error, f"latest_step() names step {step}")
    return went_on(restored.state["step"], expected, f"latest_step() names step {step}")


def newest_cut(home: Path) -> Judged:
    keeper = _keeper(home)
    cut(home / "orbax" / str(SAVES) / "state" / "metadata")
    return _restarted(keeper, SAVES - 1)


def dying_prune(home: Path) -> None:
    """It has no mark: it is killed when the first file of a save is gone."""
    remove = Path.unlink

    def unlink(path: Path) -> None:
        remove(path)
        die()

    def rmtree(path: Path, *_: object, **__: object) -> None:
        unlink(next(each for each in sorted(Path(path).rglob("*")) if each.is_file()))

    with mock.patch("shutil.rmtree", rmtree):
        Orbax(home, synced=False).prune(KEEP)


def killed_between(home: Path) -> Judged:
    keeper = _keeper(home, 2 * KEEP)
    killed(dying_prune, home)
    keeper.prune(KEEP)
    last = max(keeper.steps())
    orphans = [path.name for path in (home / "orbax").iterdir() if path.is_dir() and int(path.name) <= last - KEEP]
    return left(
        sorted(keeper.steps()), list(range(last - KEEP + 1, last + 1)), orphans, "the next save deletes the rest"
    )


def restarts(home: Path) -> Judged:
    keeper = _keeper(home, 0)
    for launch in range(LAUNCHES):
        with keeper.manager(KEEP) as manager:
            for step in range(launch * SAVES + 1, (launch + 1) * SAVES + 1):
                manager.save(step, args=state(step))
    last = LAUNCHES * SAVES
    return left(sorted(keeper.steps()), list(range(last - KEEP + 1, last + 1)), [], "LatestN(3) looks at the directory")


def dying_save(home: Path) -> None:
    """Killed before the save is committed, as it is where not all hosts reach the barrier."""
    with mock.patch("os.rename", die), mock.patch("os.replace", die), mock.patch.object(Path, "rename", die):
        Orbax(home, synced=False).save([SAVES])


def rank_missing(home: Path) -> Judged:
    keeper = _keeper(home, SAVES - 1)
    killed(dying_save, home)
    judged = _restarted(keeper, SAVES - 1)
    return Judged(
        judged.verdict, f"{judged.detail}; one process here: it was killed where the barrier of hosts would be"
    )


def name_lies(home: Path) -> Judged:
    """A save of an older step under a newer one's name, as a copy by hand leaves it."""
    keeper = _keeper(home)
    shutil.copytree(home / "orbax" / "1", home / "orbax" / "9")
    return _restarted(keeper, SAVES)


if __name__ == "__main__":
    main(
        {
            NEWEST_CUT: newest_cut,
            KILLED: killed_between,
            RESTARTS: restarts,
            RANK_MISSING: rank_missing,
            NAME_LIES: name_lies,
        }
    )
