"""The catalog as web pages and as an HTTP API. Both make the same calls as the command line."""
