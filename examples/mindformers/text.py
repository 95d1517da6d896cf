"""Makes a small text, and writes it as a MindRecord file for MindFormers: sequences of bytes, all of one length."""

import random
import sys
from pathlib import Path

import numpy as np
from mindspore.mindrecord import FileWriter

LENGTH = 33  # tokens in a sequence: MindFormers' Llama needs one more token than it predicts
SEQUENCES = 96

SUBJECTS = ("the ship", "a clerk", "our engine", "the old map", "one signal", "every rank")
VERBS = ("carries", "loses", "finds again", "remembers", "waits for", "outlives")
OBJECTS = ("the harbour", "its own name", "a second copy", "the last step", "the long night", "all others")


def make(path: Path, length: int = LENGTH) -> None:
    """Write the sequences of the text, which is the same every time."""
    drawn = random.Random(1)  # noqa: S311 — always the same text
    need = length * SEQUENCES
    text = ""
    while len(text) < need:
        text += f"{drawn.choice(SUBJECTS)} {drawn.choice(VERBS)} {drawn.choice(OBJECTS)}. "
    tokens = np.frombuffer(text[:need].encode("ascii"), np.uint8).astype(np.int32).reshape(SEQUENCES, length)
    writer = FileWriter(str(path), shard_num=1, overwrite=True)
    writer.add_schema({"input_ids": {"type": "int32", "shape": [-1]}}, "bytes of a text")
    writer.write_raw_data([{"input_ids": each} for each in tokens])
    writer.commit()


if __name__ == "__main__":
    make(Path(sys.argv[1]), *map(int, sys.argv[2:]))
