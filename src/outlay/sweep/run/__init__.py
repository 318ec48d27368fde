"""Running a plan: launches, limits, money, devices."""
