"""Runs as jobs of a Ray cluster, through its Jobs REST API; they outlive the submitting process."""
