"""Tensors of states as NumPy arrays, and the differences between two states."""
