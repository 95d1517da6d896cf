"""A script of PyTorch that saves in both ways, and goes on where the catalog says: own_pytorch.py STEPS."""

import json
import sys
from functools import partial
from pathlib import Path

import torch

import ckptstore

step, weights = 0, torch.tensor([1.0, 2.0])

launch = ckptstore.connect().join("own")
plan = launch.resolve()
if plan is not None:
    loaded = torch.load(plan.ranks[0].source.path)
    step, weights = loaded["step"], loaded["weights"]
    assert step == plan.global_step
began = step
Path("saved").mkdir(exist_ok=True)
for _ in range(int(sys.argv[1])):
    weights = weights * 1.5
    step += 1
    state, name = {"step": step, "weights": weights}, f"at{step}.pt"
    if step % 2:
        launch.save(partial(torch.save, state), global_step=step, directory="saved", name=name)
    else:
        torch.save(state, Path("saved") / name)
        launch.register(Path("saved") / name, global_step=step)
print(json.dumps([began, step, weights.tolist()]))
