"""Data parallel in PyTorch, following the recovery example of the Ascend guide: a `rank_*/model_best.pth.tar` a rank.

    RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 CKPTSTORE_LAUNCH_ID=… \
        python examples/pytorch/train.py OUTPUT_DIRECTORY

torchrun sets the first four variables. All ranks get the same launch id, and each start gets a new one. Start the
script again after any crash. The comment `# ckptstore` marks the lines that use ckptstore.
"""

from __future__ import annotations

import os
import signal
import sys
from functools import partial
from pathlib import Path

import torch
from torch import distributed, nn

import ckptstore  # ckptstore

EPOCHS, BATCH, SAMPLES = 3, 8, 160


def batches(rank: int, ranks: int, done: int):
    """For each step after `done`: its number, and the rank's samples and labels. Each epoch is shuffled anew."""
    data = torch.rand(SAMPLES, 12, generator=torch.Generator().manual_seed(7))
    labels = (data.sum(1) * 4 % 4).long()
    an_epoch = SAMPLES // ranks // BATCH
    for step in range(done, EPOCHS * an_epoch):
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(step // an_epoch))[rank::ranks]
        chosen = order[step % an_epoch * BATCH :][:BATCH]
        yield step + 1, data[chosen], labels[chosen]


def main(output: Path, killed_at: int) -> None:
    distributed.init_process_group("gloo")
    rank, ranks = distributed.get_rank(), distributed.get_world_size()
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    launch = ckptstore.connect().join("pytorch", rank=rank, world_size=ranks, layout="data_parallel")  # ckptstore
    plan = launch.resolve()  # ckptstore
    done = 0
    if plan is not None:  # ckptstore
        done = plan.global_step  # ckptstore
        state = torch.load(plan.ranks[rank].source.path)  # ckptstore
        model.load_state_dict(state["state_dict"])
        optimizer.load_state_dict(state["optimizer"])
    print(f"rank {rank} goes on after step {done}", flush=True)

    for step, data, labels in batches(rank, ranks, done):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(data), labels).backward()
        for parameter in model.parameters():
            distributed.all_reduce(parameter.grad)
            parameter.grad /= ranks
        optimizer.step()
        if step % 5 == 0:
            state = {"state_dict": model.state_dict(), "optimizer": optimizer.state_dict()}
            launch.save(  # ckptstore
                partial(torch.save, state),
                global_step=step,
                directory=output / f"rank_{rank}",
                name="model_best.pth.tar",
            )
        if step == killed_at:
            os.kill(os.getpid(), signal.SIGKILL)
    torch.save(model.state_dict(), output / f"final_{rank}.pt")


if __name__ == "__main__":
    folder = Path(sys.argv[1]).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    main(folder, int(os.environ.get("KILLED_AT", "0")))
