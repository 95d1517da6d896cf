"""Checks of a catalog, its runs, their directories and the tiers. They change nothing.

Only the check of a tier writes: one small object, which it deletes again.
"""
