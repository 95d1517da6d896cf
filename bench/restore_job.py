"""One process of `bench.restore`: makes the files, or loads one as a restart does, and reports the cost.

The request is JSON in the argument, the answer is one line of JSON.
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
    """A network of `count` parameters of `size` bytes each. All pages are in memory at once, as after a first step."""

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
    """Load with digest check, as `resume` does once the plan is known."""
    launch = Launch(id="L", run="run", order=1, world_size=1, layout=stand_alone())
    file = Checkpoint(
        run="run", launch="L", kind=Kind.PERIODIC, global_step=1, rank=0, path=path, format=form, digest=recorded
    )
    plan = RestorePlan(launch=launch, global_step=1, ranks=(Assignment(0, file),))
    load(network, plan, 0, {}, layout=launch.layout, on_failure=print, on_put=lambda: None)


def by_reference(catalog: Catalog, network: nn.Cell, _: str, __: str, reference: str) -> None:
    """Load with digest check, as for an evaluation, which must first find the state of a reference."""
    ckptstore.mindspore.load(reference, network, catalog=catalog)


def by_mindspore(network: nn.Cell, path: str, form: str, _: str) -> None:
    """Load with MindSpore, without digest check."""
    ms.load_param_into_net(network, ms.load_checkpoint(path, format=form), strict_load=True)


def by_safetensors(network: nn.Cell, path: str, *_: str) -> None:
    """Load with the library `safetensors`."""
    found = load_file(path)
    for item in network.get_parameters():
        np.copyto(item.asnumpy(), found.pop(item.name))


def by_cat(_: nn.Cell, path: str, *__: str) -> None:
    """Only read the bytes."""
    with Path(os.devnull).open("wb") as nothing:
        subprocess.run(["cat", path], check=True, stdout=nothing)


WAYS: dict[str, Callable[..., None]] = {
    "ckptstore": by_ckptstore,
    "mindspore": by_mindspore,
    "safetensors": by_safetensors,
    "cat": by_cat,
}


def touched(network: nn.Cell) -> int:
    """Read one byte of each page of each parameter, because mapped pages are not loaded yet."""
    return sum(int(item.asnumpy().view(np.uint8)[::PAGE].sum()) for item in network.get_parameters())


def memory(name: str) -> int:
    """The memory of this process in bytes: "VmRSS" now, "VmHWM" at the peak."""
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
    Path("/proc/self/clear_refs").write_text("5")  # reset the peak
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
