"""Search: which parameters a sweep tries, and which of its runs go on."""

__all__ = ["doubt", "halving", "samplers", "space", "study"]
