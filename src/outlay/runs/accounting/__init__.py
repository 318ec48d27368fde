"""Slurm accounting: reading `sacct`, and importing its jobs as runs."""
