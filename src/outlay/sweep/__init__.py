"""Many runs under the same budget: a grid becomes a plan, the plan becomes runs, runs a summary."""
