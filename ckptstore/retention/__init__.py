"""Which states stay, and how the others are removed."""
