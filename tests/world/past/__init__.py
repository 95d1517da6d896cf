"""Bugs of the past, as patches that put them back."""
