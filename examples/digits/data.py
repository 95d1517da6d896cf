"""Writes scikit-learn's handwritten digits as MNIST idx files, so that MindSpore's own MnistDataset reads them."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def write_idx(directory: Path) -> Path:
    """Write 1,797 images of 28 x 28 pixels, the size that MnistDataset needs, and their labels, if they do not exist.

    The original digits have 8 x 8 pixels with values 0…16. Each pixel becomes 3 x 3 pixels with values 0…255. A margin
    of 2 pixels is added.
    """
    images = directory / "train-images-idx3-ubyte"
    labels = directory / "train-labels-idx1-ubyte"
    if images.exists() and labels.exists():
        return directory
    from sklearn.datasets import load_digits  # noqa: PLC0415 — the import takes a second, and most starts do not need it

    directory.mkdir(parents=True, exist_ok=True)
    digits = load_digits()
    large = digits.images.repeat(3, axis=1).repeat(3, axis=2)
    pixels = (np.pad(large, ((0, 0), (2, 2), (2, 2))) * (255 / 16)).round().astype(np.uint8)
    _write(images, 0x803, pixels)
    _write(labels, 0x801, digits.target.astype(np.uint8))
    return directory


def _write(path: Path, magic: int, values: np.ndarray) -> None:
    header = np.array([magic, *values.shape], dtype=">i4").tobytes()
    path.write_bytes(header + values.tobytes())


if __name__ == "__main__":
    import sys

    print(write_idx(Path(sys.argv[1])))
