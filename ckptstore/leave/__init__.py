"""Ask a launch to save and leave, and see that it did."""
