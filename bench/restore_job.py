"""One process of `bench.restore`: makes the files, or loads one as a restart does, and says what it cost.

What it is asked is JSON in its argument, its answer one line of JSON.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import nn
from safetensors.numpy import load_file

import ckptstore.mindspore
from ckptstore import Catalog, connect
from ckptstore.core.model import Assignment, Checkpoint, Kind, Launch, RestorePlan
from ckptstore.core.replicas import stand_alone
from ckptstore.disk.files import digest
from ckptstore.mindspore.resume import load

PAGE = 4096


class Large(nn.Cell):
    """Parameters of so many bytes each; all of it is in memory when it is made, as after a first step."""

    def __init__(self, count: int, size: int, seed: int) -> None:
        super().__init__()
        values = np.arange(size // 4, dtype=np.int32)
        self.weights = ms.ParameterTuple(
            [
                ms.Parameter(ms.Tensor((values + seed * place).view(np.float32)), f"layer.{place}.weight")
                for place in range(1, count + 1)
            ]
        )


def by_ckptstore(network: nn.Cell, path: str, form: str, recorded: str) -> None:
    """With proof, as `resume` does once the plan is known."""
    launch = Launch(id="L", run="run", order=1, world_size=1, layout=stand_alone())
    file = Checkpoint(
        run="run", launch="L", kind=Kind.PERIODIC, global_step=1, rank=0, path=path, format=form, digest=recorded
    )
    plan = RestorePlan(launch=launch, global_step=1, ranks=(Assignment(0, file),))
    load(network, plan, 0, {}, layout=launch.layout, on_failure=print, on_put=lambda: None)


def by_reference(catalog: Catalog, network: nn.Cell, _: str, __: str, reference: str) -> None:
    """With proof, as for an evaluation: which state it is has to be found out."""
    ckptstore.mindspore.load(reference, network, catalog=catalog)


def by_mindspore(network: nn.Cell, path: str, form: str, _: str) -> None:
    """Without any proof."""
    ms.load_param_into_net(network, ms.load_checkpoint(path, format=form), strict_load=True)


def by_safetensors(network: nn.Cell, path: str, *_: str) -> None:
    """By the library that the format is of."""
    found = load_file(path)
    for item in network.get_parameters():
        np.copyto(item.asnumpy(), found.pop(item.name))


def by_cat(_: nn.Cell, path: str, *__: str) -> None:
    """Nothing but the bytes."""
    with Path(os.devnull).open("wb") as nothing:
        subprocess.run(["cat", path], check=True, stdout=nothing)


WAYS: dict[str, Callable[..., None]] = {
    "ckptstore": by_ckptstore,
    "mindspore": by_mindspore,
    "safetensors": by_safetensors,
    "cat": by_cat,
}


def touched(network: nn.Cell) -> int:
    """Read something of each page of each parameter: what is mapped only is not loaded yet."""
    return sum(int(item.asnumpy().view(np.uint8)[::PAGE].sum()) for item in network.get_parameters())


def memory(name: str) -> int:
    """Bytes of memory that this process has ("VmRSS"), or had at most ("VmHWM")."""
    found = re.search(rf"^{name}:\s*(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def main() -> None:
    asked = json.loads(sys.argv[1])
    ms.set_context(mode=ms.GRAPH_MODE)
    network = Large(asked["count"], asked["size"], asked["seed"])
    if "make" in asked:
        for path in asked["make"]:
            ms.save_checkpoint(network, path, format=path.rpartition(".")[2])
        print(json.dumps({path: digest(path) for path in asked["make"]}))
        return
    load = partial(by_reference, connect()) if asked["who"] == "load" else WAYS[asked["who"]]
    expected, path = touched(network), asked["path"]
    if asked["cold"]:
        with Path(path).open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    Path("/proc/self/clear_refs").write_text("5")  # what it had at most begins anew
    before = memory("VmRSS")
    begin = time.perf_counter()
    try:
        load(network, path, path.rpartition(".")[2], asked["digest"])
    except ValueError as error:
        print(json.dumps({"refused": str(error)}))
        return
    found = touched(network) if asked["who"] != "cat" else 0
    seconds = time.perf_counter() - begin
    assert asked["who"] == "cat" or found != expected
    print(json.dumps({"seconds": seconds, "peak": memory("VmHWM") - before, "found": found}))


if __name__ == "__main__":
    main()
