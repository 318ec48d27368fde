"""Runs out of Slurm's own accounts: what sacct says, jobs imported from it, jobs settled by it."""
