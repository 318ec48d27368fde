"""Supervised commands: all descendants of a command are found and ended."""

__all__ = ["exit_record", "identity", "keeper", "keeper_process", "orphaned_tree", "supervisor"]
