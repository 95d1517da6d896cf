"""What states hold: their tensors as NumPy arrays, and how those of two states differ."""
