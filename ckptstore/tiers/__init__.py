"""Tiers: places that hold copies of checkpoints, and the records of those copies."""
