"""Checkpoints of PyTorch and TensorFlow, made without either: what the tools read of them is as theirs is."""

import os
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

MAGIC = 0x1950A86A20F9469CFC6C


class Tensor:
    """Pickled as a call, as tensors are: who loads the pickle runs it."""

    def __reduce__(self) -> tuple[Any, ...]:
        return Tensor.run, ()

    @staticmethod
    def run() -> None:
        raise AssertionError("the file was run")


def state(**numbers: object) -> dict[str, object]:
    """What seed 003 saves, with these numbers beside it."""
    weights = OrderedDict({"weight": Tensor(), "step": 77})
    return {"arch": "resnet50", "state_dict": weights, "best_acc1": 0.5, "optimizer": {"step": 3}, **numbers}


def pytorch(path: Path, *, at: int = 1, **numbers: object) -> Path:
    """As `torch.save` writes a file since PyTorch 1.6."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps(state(**numbers), 2))
        archive.writestr("archive/data/0", bytes(64))
        archive.writestr("archive/version", "3\n")
    return stamped(path, at)


def legacy_pytorch(path: Path, **numbers: object) -> Path:
    """As `torch.save` wrote it before."""
    path.parent.mkdir(parents=True, exist_ok=True)
    parts = (MAGIC, 1001, {"little_endian": True, "type_sizes": {"int": 4}}, state(**numbers), ["0"])
    path.write_bytes(b"".join(pickle.dumps(part, 2) for part in parts) + bytes(64))
    return stamped(path, 1)


def tensorflow(prefix: Path, *, parts: int = 2, at: int = 1) -> Path:
    """The files of a prefix."""
    stamped(written(prefix.parent / f"{prefix.name}.index", b"an index"), at)
    for part in range(parts):
        data = prefix.parent / f"{prefix.name}.data-{part:05d}-of-{parts:05d}"
        stamped(written(data, f"shard {part}".encode()), at)
    return prefix


def shards(directory: Path, *, parts: int = 2, at: int = 1) -> Path:
    """A directory as DeepSpeed makes it: files of PyTorch, and some that are none."""
    directory.mkdir(parents=True)
    stamped(written(directory / "latest.txt", b"notes"), at)
    for part in range(parts):
        stamped(written(directory / "zero" / f"mp_rank_{part:02d}_model_states.pt", f"shard {part}".encode()), at)
    for each in (directory, directory / "zero"):
        each.chmod(0o755)  # gc asks for it, whatever the umask is
    return directory


def written(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def stamped(path: Path, second: int) -> Path:
    os.utime(path, ns=(second * 10**9, second * 10**9))
    return path
