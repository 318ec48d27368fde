"""``outlay sweep``."""
