"""Search: which parameters a sweep tries, and which of its runs go on."""

__all__ = ["halving", "results", "samplers", "space", "study"]
