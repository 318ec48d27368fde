"""What machines cost beyond their runs: owned ones, commitments, and time billed by increments."""

__all__ = ["billed_time", "commitments", "owned_machines"]
