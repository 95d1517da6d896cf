"""The only toucher of checkpoint directories: stat, digest, walk, trash, locks."""
