"""Commands of the gate at a Slurm cluster's scheduler."""
