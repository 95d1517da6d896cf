"""Exports one state of a run to a directory or a tar file, and imports it into another catalog as a run."""
