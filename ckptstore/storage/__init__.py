"""The only toucher of checkpoint directories."""
