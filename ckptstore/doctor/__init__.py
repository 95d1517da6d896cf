"""Checks of a catalog, its runs and their directories. Nothing is changed."""
