"""The journals of a directory: their events are appended, read back, and projected into the catalog."""
