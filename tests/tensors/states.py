"""Runs whose files MindSpore wrote, of parameters that a test gives by name."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np

from ckptstore.api import Catalog


def written(path: Path, values: Mapping[str, Any], **settings: Any) -> Path:
    """A file of these arrays, or tensors of MindSpore, in the format of its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    tensors = [{"name": name, "data": ms.Tensor(value)} for name, value in values.items()]
    ms.save_checkpoint(tensors, str(path), format=path.suffix[1:], **settings)
    path.chmod(0o600)
    return path


def saved(
    catalog: Catalog,
    directory: Path,
    step: int,
    *ranks: Mapping[str, Any],
    run: str = "run",
    form: str = "ckpt",
    layout: str = "data_parallel",
    metrics: Mapping[str, float] | None = None,
) -> list[Path]:
    """A launch of so many ranks saves a state, each rank its own values; their files."""
    paths = []
    for rank, values in enumerate(ranks):
        launch = catalog.join(run, rank=rank, world_size=len(ranks), launch_id=f"L{step}", layout=layout)
        launch.set_steps_per_epoch(10)
        launch.resolve()
        path = written(directory / f"rank_{rank}" / f"net-1_{step}.{form}", values)
        launch.register(path, global_step=step, optimizer_step=step, metrics=metrics)
        paths.append(path)
    return paths


def network(seed: int = 0) -> dict[str, Any]:
    """Weights, moments, and the counter of an optimizer."""
    chance = np.random.default_rng(seed)
    shapes = {"conv.weight": (4, 3, 3), "conv.bias": (4,), "moments.conv.weight": (4, 3, 3)}
    values: dict[str, Any] = {name: chance.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    return values | {"global_step": np.array([seed], np.int32)}
