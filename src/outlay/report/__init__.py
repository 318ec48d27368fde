"""A result as a page or a picture."""

__all__ = [
    "bill_document", "charts", "compared_runs", "digest", "document", "files", "html", "pictures",
    "run_charts", "run_document", "run_sections", "sweep_document", "what_if_sections",
]  # fmt: skip
