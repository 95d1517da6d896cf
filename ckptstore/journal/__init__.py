"""The journals of a directory: what happened there, appended, read back and projected into the catalog."""
