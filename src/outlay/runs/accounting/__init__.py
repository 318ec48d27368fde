"""Slurm accounting: reading `sacct`, and importing its jobs as runs."""

__all__ = ["sacct", "sacct_import"]
