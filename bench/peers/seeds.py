"""The hand-written script of the project's users: `glob`, `getmtime`, and `load_checkpoint` for the step.

As the adaptation guides for resuming on Ascend clusters print it; what they leave out is as MindSpore does it
(`keep_checkpoint_max` removes the oldest files).
"""

from __future__ import annotations

import glob
import os
import time
from collections.abc import Sequence

import mindspore as ms

from bench import files
from bench.peers.keeper import Keeper, serve


class Seeds(Keeper):
    """Files in a directory; the newest by its time is where to go on."""

    def _files(self) -> list[str]:
        """Newest first."""
        found = glob.glob(str(self.home / "ckpt" / "*.ckpt"))
        found.sort(key=os.path.getmtime, reverse=True)
        return found

    def fill(self, count: int) -> None:
        (self.home / "ckpt").mkdir()
        self.save(range(1, count + 1))

    def save(self, steps: Sequence[int]) -> float:
        begin = time.perf_counter()
        for step in steps:
            files.write(self.home / "ckpt" / files.name(step), step, synced=self.synced)
        return time.perf_counter() - begin

    def steps(self) -> list[int]:
        names = [os.path.basename(path).removesuffix(".ckpt").rpartition("-")[2] for path in self._files()]
        parts = [name.split("_") for name in names]
        return [(int(epoch) - 1) * files.STEPS_PER_EPOCH + int(step) for epoch, step in parts]

    def newest(self) -> int:
        parameters = ms.load_checkpoint(self._files()[0])
        return int(parameters["step_num"].asnumpy())

    def prune(self, keep: int) -> None:
        for path in self._files()[keep:]:
            os.remove(path)


if __name__ == "__main__":
    serve(Seeds)
