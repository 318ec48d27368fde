"""Search: which parameters a sweep tries, and which of its runs go on."""

__all__ = ["results"]
