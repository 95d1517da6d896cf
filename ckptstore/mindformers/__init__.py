"""For jobs of MindFormers: the callback of a YAML that registers its checkpoints, and has it resume from the catalog.

    callbacks:
      - type: CkptstoreRegistrar
        run: my-llm

    python -m ckptstore.mindformers run_mindformer.py --config my.yaml

A script of one's own imports this package first instead. The only package of ckptstore that imports MindFormers.
"""

from __future__ import annotations

from ckptstore.mindformers.hooks import CkptstoreRegistrar, install

__all__ = ["CkptstoreRegistrar"]

install()
