"""Vendors' bills: reading, keeping, matching with the books, reconciling, correcting."""

__all__ = ["bill_book", "bill_correction", "bill_line", "bill_readers", "reconciliation"]
