"""The only package that touches checkpoint directories: stat, digest, walk, trash, locks."""
