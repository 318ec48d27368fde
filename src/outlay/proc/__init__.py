"""Supervised commands: all descendants of a command are found and ended."""
