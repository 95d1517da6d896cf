"""Reads a YAML, and trains, as MindFormers' own run_mindformer.py does. MindFormers' wheel lacks that script."""

import argparse

import cpu_stand_in  # noqa: F401 — on an Ascend device, remove this line
from mindformers import Trainer
from mindformers.core.context import build_context
from mindformers.tools.register import ActionDict, MindFormerConfig


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", required=True)
    parser.add_argument("--output_dir")
    parser.add_argument("--train_dataset_dir")
    parser.add_argument("--options", nargs="+", action=ActionDict, default={})
    asked = parser.parse_args()
    config = MindFormerConfig(asked.config)
    config.merge_from_dict(asked.options)
    if asked.output_dir:
        config.output_dir = asked.output_dir
    if asked.train_dataset_dir:
        config.train_dataset.data_loader.dataset_dir = asked.train_dataset_dir
    build_context(config)
    Trainer(config).train()


if __name__ == "__main__":
    main()
