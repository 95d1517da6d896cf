"""Tiers: places that hold copies of checkpoints, and what is known of those copies."""
