"""Values for the tests of core: launches, files and what the disk shows of them."""

from dataclasses import replace

from ckptstore.core.model import Checkpoint, FileState, Kind, Launch, Observed, State
from ckptstore.core.replicas import Layout, stand_alone


def launch(
    launch_id: str = "L1",
    order: int = 1,
    world_size: int = 2,
    layout: Layout | None = None,
    parent: tuple[str, int] | None = None,
    *,
    decided: bool = True,
    branched: bool = False,
) -> Launch:
    return Launch(
        id=launch_id,
        run="run",
        order=order,
        world_size=world_size,
        layout=layout or stand_alone(),
        steps_per_epoch=10,
        decided=decided,
        parent=parent[0] if parent else None,
        parent_step=parent[1] if parent else None,
        branched=branched,
    )


def file(of: Launch, rank: int, step: int = 15, kind: Kind = Kind.PERIODIC, size: int | None = 100) -> Checkpoint:
    return Checkpoint(
        run=of.run,
        launch=of.id,
        kind=kind,
        global_step=step,
        rank=rank,
        path=f"/ckpt/{of.id}/rank_{rank}/{kind}-{step}.ckpt",
        size=size,
        digest=None if size is None else f"digest-{rank}-{step}",
        mtime_ns=None if size is None else 1,
        state=FileState.IN_PROGRESS if size is None else FileState.COMPLETE,
    )


def state(of: Launch, *files: Checkpoint, step: int = 15) -> State:
    return State(launch=of, global_step=step, files=files)


def whole_state(of: Launch, step: int) -> State:
    return state(of, *(file(of, rank, step) for rank in range(of.world_size)), step=step)


def as_recorded(*states: State) -> dict[str, Observed]:
    """A disk on which every finished file is as it was recorded."""
    return {item.path: Observed(item.size) for one in states for item in one.files if item.size is not None}


def damaged(item: Checkpoint) -> Checkpoint:
    return replace(item, state=FileState.DAMAGED)
