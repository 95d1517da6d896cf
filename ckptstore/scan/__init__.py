"""Takes a directory tree into the catalog that no registrar has seen."""
