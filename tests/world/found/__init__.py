"""Histories that broke a promise, each as short as it could be made."""
