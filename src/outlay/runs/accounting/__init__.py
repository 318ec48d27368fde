"""Slurm accounting: reading `sacct`, importing its jobs as runs, and settling what jobs held."""

__all__ = ["job_gate", "sacct", "sacct_import"]
