"""Asks a launch to save and leave, and checks that it did."""
