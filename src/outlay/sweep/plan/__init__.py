"""A plan: the runs of a grid, named, priced and checked. Pure."""
