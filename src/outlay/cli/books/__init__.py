"""``outlay books`` and ``outlay bill``: closed months, and vendors' bills."""
