"""``outlay guard``."""
