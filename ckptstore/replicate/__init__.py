"""Copies checkpoints up: from this node to the tiers that are farther and safer."""
