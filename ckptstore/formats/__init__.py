"""Reads the headers of checkpoint files without MindSpore and without loading tensors."""
