"""Runs as jobs of a Slurm cluster, through submitit; they outlive the submitting process."""
