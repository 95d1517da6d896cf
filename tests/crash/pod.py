"""One rank of a job that trains in lockstep, in a pod of its own, and leaves on request as the functional loop does.

    python pod.py JSON

No MindSpore, whose import takes seconds a process. It prints PLAN and the plan that the launch starts from, then HAS
and the path of each file that is registered. The ranks meet after each step, at a socket: each says whether it was
asked to leave, and hears how many were. Files are written in pieces with pauses between them, as by a slow disk.
"""

import json
import signal
import socket
import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ckptstore.api import Catalog
from ckptstore.catalog.engine import Database, open_database
from ckptstore.core.events import TrainingEnded
from ckptstore.core.model import Kind, RestorePlan
from ckptstore.training.rank_launch import RankLaunch
from tests import ckpt_bytes

LEFT = 75
"""As `ckptstore.mindspore.loop.LEFT`."""

_ANSWER_SECONDS = 2.0
"""Shorter than those of `ckptstore.mindspore.join`, as all times are here."""

_AN_EPOCH = 10
_PIECE = 40  # bytes


def main(asked: dict[str, Any]) -> int:
    rank, world_size, layout = asked["rank"], asked["world_size"], asked["layout"]
    catalog = Catalog(Database(open_database(asked["url"]).url, answer_within=_ANSWER_SECONDS))
    launch = catalog.join("run", rank=rank, world_size=world_size, launch_id=asked["launch"], layout=layout)
    launch.set_steps_per_epoch(_AN_EPOCH)
    plan = launch.resolve()
    print("PLAN", json.dumps(told(plan)), flush=True)
    folder = Path(asked["directory"]) / f"rank_{rank}"
    folder.mkdir(parents=True, exist_ok=True)
    launch.signs.begin()
    launch.add_source(
        str(folder), kind=Kind.PERIODIC, prefix=f"net_{launch.id}", breakpoint_prefix="net", names_before=()
    )
    terminated: list[int] = []

    def terminate(number: int, _: object) -> None:
        terminated.append(number)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    signal.signal(signal.SIGTERM, terminate)
    step = plan.global_step if plan else 0
    with socket.socket(socket.AF_UNIX) as others:
        others.connect(asked["socket"])
        answers = others.makefile("r")
        while True:
            time.sleep(asked["step_seconds"])
            step += 1
            others.sendall(f"{step} {int(bool(terminated or launch.exit_requested))}\n".encode())
            leaves = int(answers.readline()) > 0
            if leaves or step % asked["every"] == 0:
                save(launch, folder, step, Kind.GRACEFUL_EXIT if leaves else Kind.PERIODIC, asked)
            if leaves:
                break
    now = datetime.now(timezone.utc)
    launch.recorder.record([TrainingEnded(launch.run, launch.id, rank, step, None, None, "", now)])
    launch.signs.end()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    return LEFT


def told(plan: RestorePlan | None) -> dict[str, Any]:
    if plan is None:
        return {"step": 0, "launch": None, "files": []}
    files = [[each.rank, each.source.rank, each.source.path] for each in plan.ranks]
    return {"step": plan.global_step, "launch": plan.launch.id, "files": files}


def save(launch: RankLaunch, folder: Path, step: int, kind: Kind, asked: dict[str, Any]) -> None:
    name = f"net_{launch.id}-{(step - 1) // _AN_EPOCH + 1}_{(step - 1) % _AN_EPOCH + 1}.ckpt"
    content = ckpt_bytes.checkpoint(step, step)
    pieces = [content[start : start + _PIECE] for start in range(0, len(content), _PIECE)]

    def write(path: str | Path) -> None:
        with Path(path).open("wb", buffering=0) as file:
            for piece in pieces:
                file.write(piece)
                time.sleep(asked["save_seconds"] / len(pieces))

    if asked["aside"]:
        saved = launch.save(write, directory=folder, name=name, global_step=step, optimizer_step=step, kind=kind)
    else:
        write(folder / name)
        saved = launch.register(folder / name, global_step=step, optimizer_step=step, kind=kind)
    print("HAS", saved.path, flush=True)


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
