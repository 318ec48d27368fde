"""Charts as values, as SVG of pages, and as pictures for papers."""

__all__ = ["charts", "pictures", "run_charts"]
