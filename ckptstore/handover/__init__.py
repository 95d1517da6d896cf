"""Hands one state of a run over: as a directory or a file that another catalog takes in as a run."""
