"""A script whose saves MLflow or Weights & Biases shows: the name of the tracker, and "none" for no run of it.

It prints what the tracker has at the end.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import ckptstore
from ckptstore.errors import UsageError

TRACKER, *ACTIVE = sys.argv[1:]


def save(launch: ckptstore.RankLaunch, step: int, loss: float) -> None:
    path = Path(f"at{step}.bin")
    path.write_bytes(b"weights" * step)
    launch.register(path, global_step=step, metrics={"loss": loss})


def main() -> None:
    launch = ckptstore.connect().join("linked", launch_id="one")
    if ACTIVE:
        try:
            launch.link(TRACKER)
        except UsageError as error:
            print(error)
        return
    if TRACKER == "mlflow":
        import mlflow

        mlflow.set_tracking_uri(f"sqlite:///{Path.cwd()}/mlflow.db")
        run = mlflow.start_run()
    else:
        import wandb

        run = wandb.init(project="linked", dir=str(Path.cwd()))
    launch.link(TRACKER)
    save(launch, 10, 0.5)
    save(launch, 20, 0.25)
    launch.record(step=20, accuracy=0.75)
    until = time.monotonic() + 60
    while "ckptstore.accuracy" not in (told := told_to(run)) and time.monotonic() < until:
        time.sleep(0.1)
    print(json.dumps(told))


def told_to(run: Any) -> dict[str, Any]:
    if TRACKER == "wandb":
        return {name: value for name, value in dict(run.summary).items() if name.startswith("ckptstore.")}
    import mlflow

    data = mlflow.get_run(run.info.run_id).data
    tags = {name: value for name, value in data.tags.items() if name.startswith("ckptstore.")}
    return {**tags, **data.metrics}


main()
