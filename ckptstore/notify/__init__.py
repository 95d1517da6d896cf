"""Reports facts about runs to a receiver, each fact once. A receiver is a webhook or a command."""
