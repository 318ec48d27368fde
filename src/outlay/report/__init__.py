"""A result as a page or a picture."""
