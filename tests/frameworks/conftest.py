"""TensorFlow of `.venv-frameworks`, and PyTorch where the system's Python has it."""

import subprocess
import sys
from pathlib import Path

import pytest

TORCH = Path(sys.prefix) / "torch" / "bin" / "python"
"""Sees what Debian installed for the system's Python, and ckptstore."""


@pytest.fixture(autouse=True)
def _a_user_of_its_own(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No catalog and no memory of runs but those of the test."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("XDG_STATE_HOME", str(home / "state"))
    monkeypatch.setenv("CKPTSTORE_URL", f"sqlite:///{home}/catalog.db")


@pytest.fixture(scope="session")
def torch() -> Path:
    """A Python that has PyTorch and ckptstore."""
    if not TORCH.exists():
        pytest.skip("the system's /usr/bin/python3 is none that ckptstore runs on")
    found = subprocess.run([TORCH, "-c", "import torch, ckptstore"], capture_output=True, text=True, check=False)
    if found.returncode:
        pytest.skip("the system's /usr/bin/python3 has no PyTorch: apt-get install python3-torch")
    return TORCH
