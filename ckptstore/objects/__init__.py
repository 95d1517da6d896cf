"""Stores of copies: a directory, or a bucket of any S3-compatible server."""
