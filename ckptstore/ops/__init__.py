"""The use cases, one file each. They open the transactions."""
