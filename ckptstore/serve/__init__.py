"""The catalog as pages and as an API: a thin layer above the calls that the command line makes."""
