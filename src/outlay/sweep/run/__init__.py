"""Running a plan: the harness, limits, money, devices."""
