"""How often a run should save."""
