"""Supervised commands: all descendants of a command are found and ended."""

__all__ = ["identity", "keeper", "keeper_process", "process_name", "strays", "supervisor"]
