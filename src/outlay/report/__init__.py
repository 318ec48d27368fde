"""A result as a page or a picture."""

__all__ = [
    "bill_document", "compared_runs", "digest", "document", "drawing", "files", "html",
    "run_document", "run_sections", "sweep_document", "what_if_sections",
]  # fmt: skip
