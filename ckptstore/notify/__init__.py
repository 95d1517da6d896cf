"""Tells facts about runs to a receiver, each once: a webhook, or a command."""
