"""Passes, each `Graph -> Graph`, one per file."""
