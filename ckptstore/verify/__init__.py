"""Compares files with their records."""
