"""Adds the unregistered checkpoints of a directory tree to the catalog."""
