"""The command line: each command parses its options, calls a use case, and prints the result."""
