"""Fusion: several nodes that one instruction can do. Each kind is a file."""
