"""Decisions: data in, frozen values out. No disk, no clock, no log."""
