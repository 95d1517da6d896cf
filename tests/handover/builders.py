"""What the tests of exports and imports look at."""

from pathlib import Path


def snapshot(directory: Path) -> dict[str, tuple[bytes, int]]:
    """The files below a directory, but for journals: their bytes, and their times."""
    return {
        str(path): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in directory.rglob("*")
        if path.is_file() and path.suffix != ".jsonl"
    }
