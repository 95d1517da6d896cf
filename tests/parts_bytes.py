"""Writes trees as MindFormers 2.0 does, for tests: its files, with the notes beside them."""

import json
import struct
from pathlib import Path
from typing import Any


def safetensors(entries: dict[str, int], metadata: dict[str, str] | None = None) -> bytes:
    """A file of one whole number a name."""
    header: dict[str, Any] = {"__metadata__": metadata or {"format": "ms"}}
    for place, name in enumerate(entries):
        header[name] = {"dtype": "I32", "shape": [1], "data_offsets": [4 * place, 4 * place + 4]}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + struct.pack(f"<{len(entries)}i", *entries.values())


def save(root: Path, step: int, *, count: int = 2, prefix: str = "net-", common: dict[str, Any] | None = None) -> Path:
    """Everything that MindFormers writes for one iteration, in graph mode; `common` changes what common.json says."""
    home = root / f"iteration_{step:08d}"
    home.mkdir(parents=True, exist_ok=True)
    for index in range(count):
        for holds, entries in (("model", {f"weight.{index}": 1}), ("opt", {"global_step": step, "moment": 1})):
            name = f"{prefix}{holds}-{index:07d}-{count:07d}.safetensors"
            (home / name).write_bytes(safetensors(entries))
    said = {"epoch_num": 1, "step_num": step, "global_step": step, "loss_scale": None, "global_batch_size": 8}
    (home / "common.json").write_text(json.dumps(said | (common or {}), indent=4))
    (home / "metadata.json").write_text("{}")
    return home
