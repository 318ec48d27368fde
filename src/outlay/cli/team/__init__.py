"""``outlay team``: members, limits, requests, claims."""
